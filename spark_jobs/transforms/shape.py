"""What a batch tells of the shape of its source: fields that no column takes, and columns that stay empty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from spark_jobs.spark.columns import column
from spark_jobs.spec import Ingest
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.transforms.csv_columns import NAME, Wider
from spark_jobs.transforms.rows import MORE, REASON

_SHOWN = 5


def shape_counts(definition: Ingest) -> list[Column]:
    """The aggregates of the counting pass that `shape_of` reads: numbers alone, so that no row is sorted for them."""
    filled = [F.count(column(name)).alias(f"filled_{index}") for index, name in enumerate(definition.columns)]
    if not definition.reads_json:
        return filled
    return [*filled, F.count(F.when(F.col(REASON).isNull() & _more(definition).isNotNull(), 1)).alias("unknown")]


def _more(definition: Ingest) -> Column:
    return F.col(UNKNOWN_FIELDS if UNKNOWN_FIELDS in definition.payload else MORE)


@dataclass(frozen=True)
class Shape:
    """What a batch tells of its source.

    Attributes:
        counts: terms of the ledger: `searched` and `unknown`, rows that were searched for fields, and of these those
            with a field that no column takes.
        unknown_fields: the first and the last of these by name; of files, which name them once, a few.
        nulls: column -> rows that have none of it.
    """

    counts: Mapping[str, int]
    unknown_fields: tuple[str, ...]
    nulls: Mapping[str, int]

    def with_file(self, names: Sequence[str], rows: int, definition: Ingest) -> "Shape":
        """The same, where one file of the batch was searched.

        Args:
            names: of its columns.
            rows: that it has.
            definition: of the ingest.
        """
        more = sorted(set(names) - definition.columns.keys())
        counts = {"searched": rows, "unknown": rows if more else 0}
        return replace(self, counts={**self.counts, **counts}, unknown_fields=tuple(more[:_SHOWN]))

    def with_headers(self, groups: Sequence[Row], definition: Ingest, wider: Wider) -> "Shape":
        """The same, where the headers of files tell which columns they have.

        Args:
            groups: of the counting pass, those that go to bronze.
            definition: of the ingest.
            wider: files that have more columns.
        """
        found = [group for group in groups if group[NAME] in wider]
        more = sorted({name for group in found for name in wider[group[NAME]]} - definition.columns.keys())
        counts = {
            "searched": sum(group["rows"] for group in groups),
            "unknown": sum(group["rows"] for group in found),
        }
        return replace(self, counts={**self.counts, **counts}, unknown_fields=tuple(more[:_SHOWN]))


def shape_of(rows: DataFrame, groups: Sequence[Row], definition: Ingest) -> Shape:
    """The shape of the groups that go to bronze; fields of JSON are named in a pass of its own, where there are any.

    Args:
        rows: of the batch, kept in memory.
        groups: of the counting pass.
        definition: of the ingest.
    """
    count = sum(group["rows"] for group in groups)
    nulls = {
        name: count - sum(group[f"filled_{index}"] for group in groups) for index, name in enumerate(definition.columns)
    }
    unknown = sum(group["unknown"] for group in groups) if definition.reads_json else 0
    return Shape(
        counts={"searched": count if definition.reads_json else 0, "unknown": unknown},
        unknown_fields=_names(rows, definition) if unknown else (),
        nulls={name: number for name, number in nulls.items() if number},
    )


def _names(rows: DataFrame, definition: Ingest) -> tuple[str, ...]:
    """The first and the last name by the alphabet; a source may have a new one in each event."""
    more = _more(definition)
    names = F.map_keys(more) if UNKNOWN_FIELDS in definition.payload else more
    found = rows.where(F.col(REASON).isNull()).agg(F.min(F.array_min(names)), F.max(F.array_max(names))).collect()[0]
    return tuple(sorted({*found} - {None}))
