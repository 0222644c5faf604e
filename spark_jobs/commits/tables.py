"""Makes the tables of a lake, without Spark, and holds those that exist against the definition."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructField, StructType

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, TidemarkError, UnsupportedTableError, first_line
from spark_jobs.lake.store.health import trouble
from spark_jobs.lake.tables.checksums import write_checksum
from spark_jobs.lake.tables.opening import open_or_create, row_count
from spark_jobs.plan.columns import SOURCE_TABLE
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.spec.names import in_property


class SchemaMismatchError(TidemarkError):
    """A table has other columns than the definition gives."""


ADDED_LATER = {
    *("settled_version", "settled_at"),
    *("replayed_batch", "replayed_at", "changes_from", "changes_upto"),
    SOURCE_TABLE,
}
"""Columns of Tidemark's own that tables of earlier versions lack; they are added."""


def create_table(
    lake: Lake,
    table: str,
    schema: StructType,
    *,
    statistics: Sequence[str] = (),
    comments: Mapping[str, str] = MappingProxyType({}),
    grows: bool = False,
) -> frozenset[str]:
    """Creates a table unless it exists; without Spark, which takes a second for it.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        schema: its columns; all may be null.
        statistics: columns whose minimum and maximum each file records.
        comments: column -> what it means.
        grows: columns that the table lacks are added; its rows have null there.

    Returns:
        The columns that the table has.

    Raises:
        SchemaMismatchError: if the table exists with other columns.
        LakeUnavailableError: if it cannot be created.
    """
    nullable = StructType([_nullable(field, comments) for field in schema])
    properties = {
        # Readers start at the first version, and the ledger lives in the history: both need the log.
        "delta.logRetentionDuration": "interval 3650 days",
        # Nothing of it is ever too old; to look for that would list all of it at each commit.
        "delta.enableExpiredLogCleanup": "false",
    }
    if statistics:
        properties["delta.dataSkippingStatsColumns"] = ",".join(map(in_property, statistics))
    try:
        opened = open_or_create(lake, table, Schema.from_json(nullable.json()), properties)
    except UnsupportedTableError:
        raise
    except (DeltaError, OSError) as error:
        reason = trouble(lake) or first_line(error)
        raise LakeUnavailableError(
            f"table {table}: cannot be created in {lake.uri}: {reason}. Nothing was started."
        ) from error
    except Exception as error:  # the schema's types are checked by native code that raises plain exceptions
        raise SchemaMismatchError(
            f"table {table}: Delta cannot keep these columns ({first_line(error)}): {nullable.simpleString()}. Nothing "
            "was written. Cast them to other types in the definition."
        ) from error
    if opened.version() == 0:
        write_checksum(lake, table)
    present = {field.name for field in opened.schema().fields}
    lacking = [field for field in Schema.from_json(nullable.json()).fields if field.name not in present]
    if later := [field for field in lacking if grows or field.name in ADDED_LATER]:
        opened.alter.add_columns(later)
    columns = {field.name: field.dataType for field in StructType.fromJson(json.loads(opened.schema().to_json()))}
    expected = {field.name: field.dataType for field in nullable}
    if grows:
        # Fields that were kept once stay, whether or not they still are.
        columns = {name: each for name, each in columns.items() if name in expected or name != UNKNOWN_FIELDS}
    if columns == expected:
        _comment(opened, comments)
        return frozenset(field.name for field in opened.schema().fields)
    if row_count(opened) == 0:
        # Emptied by a reset after the definition changed: nothing would be lost with the old columns.
        empty = pa.schema(Schema.from_json(nullable.json()).to_arrow()).empty_table()
        write_deltalake(opened, empty, mode="overwrite", schema_mode="overwrite")
        return frozenset(expected)
    differing = sorted(name for name in columns.keys() | expected.keys() if columns.get(name) != expected.get(name))
    described = "; ".join(
        f"{name}: expected {_type(expected.get(name))}, the table has {_type(columns.get(name))}" for name in differing
    )
    raise SchemaMismatchError(
        f"table {table} in {lake.uri} does not fit the definition: {described}. Nothing was written. Write to a new "
        "table (sink), or move the old one away."
    )


def _nullable(field: StructField, comments: Mapping[str, str]) -> StructField:
    said = {"comment": comments[field.name]} if comments.get(field.name) else None
    return StructField(field.name, field.dataType, metadata=said)


def _comment(table: DeltaTable, comments: Mapping[str, str]) -> None:
    """Changes the comments that differ, each in a commit of its own."""
    for field in table.schema().fields:
        metadata, comment = dict(field.metadata or {}), comments.get(field.name) or ""
        if comment != metadata.get("comment", ""):
            table.alter.set_column_metadata(field.name, {**metadata, "comment": comment})


def _type(data_type: object) -> str:
    return "no such column" if data_type is None else str(getattr(data_type, "simpleString", lambda: data_type)())
