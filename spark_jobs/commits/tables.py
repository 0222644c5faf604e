"""Makes the tables of a lake, without Spark, and holds those that exist against the definition."""

import json
from collections.abc import Sequence

import pyarrow as pa
from deltalake import Schema, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructField, StructType

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, TidemarkError, first_line
from spark_jobs.lake.health import trouble
from spark_jobs.lake.tables import open_or_create, row_count


class SchemaMismatchError(TidemarkError):
    """A table has other columns than the definition gives."""


ADDED_LATER = {"settled_version", "settled_at"}
"""Columns of Tidemark's own that tables of earlier versions lack; they are added."""


def create_table(lake: Lake, table: str, schema: StructType, *, statistics: Sequence[str] = ()) -> None:
    """Creates a table unless it exists; without Spark, which takes a second for it.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        schema: its columns; all may be null.
        statistics: columns whose minimum and maximum each file records.

    Raises:
        SchemaMismatchError: if the table exists with other columns.
        LakeUnavailableError: if it cannot be created.
    """
    nullable = StructType([StructField(field.name, field.dataType) for field in schema])
    properties = {
        # Readers start at the first version, and the ledger lives in the history: both need the log.
        "delta.logRetentionDuration": "interval 3650 days",
        # Nothing of it is ever too old; to look for that would list all of it at each commit.
        "delta.enableExpiredLogCleanup": "false",
    }
    if statistics:
        properties["delta.dataSkippingStatsColumns"] = ",".join(statistics)
    try:
        found = open_or_create(lake, table, Schema.from_json(nullable.json()), properties)
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
    present = {field.name for field in found.schema().fields}
    if later := [field for field in Schema.from_json(nullable.json()).fields if field.name in ADDED_LATER - present]:
        found.alter.add_columns(later)
    columns = {field.name: field.dataType for field in StructType.fromJson(json.loads(found.schema().to_json()))}
    expected = {field.name: field.dataType for field in nullable}
    if columns == expected:
        return
    if row_count(found) == 0:
        # Emptied by a reset after the definition changed: nothing would be lost with the old columns.
        empty = pa.schema(Schema.from_json(nullable.json()).to_arrow()).empty_table()
        write_deltalake(found, empty, mode="overwrite", schema_mode="overwrite")
        return
    differing = sorted(name for name in columns.keys() | expected.keys() if columns.get(name) != expected.get(name))
    described = "; ".join(
        f"{name}: expected {_type(expected.get(name))}, the table has {_type(columns.get(name))}" for name in differing
    )
    raise SchemaMismatchError(
        f"table {table} in {lake.uri} does not fit the definition: {described}. Nothing was written. Write to a new "
        "table (sink), or move the old one away."
    )


def _type(data_type: object) -> str:
    return "no such column" if data_type is None else str(getattr(data_type, "simpleString", lambda: data_type)())
