"""What a batch tells of the shape of its source: fields that no column takes, and columns that stay empty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from spark_jobs.spark.columns import column
from spark_jobs.spec import Ingest
from spark_jobs.transforms.csv_columns import Wider, more_columns
from spark_jobs.transforms.rows import RAW, REASON

_UNKNOWN = "__unknown"
# The names of fields are read from the text a second time: of each row that would cost the counting pass a sixth more.
_ALL_OF, _EACH = 1_000, 16
_SHOWN = 5


def with_unknown_fields(rows: DataFrame, definition: Ingest, number: Column, wider: Wider) -> DataFrame:
    """Adds, for the counting pass, the fields of a good row that no column takes; null where it is not searched.

    They are those at the top of a JSON object, of which the first thousand of each partition are searched, then each
    sixteenth; and the columns more of a CSV file, of which the header tells. The schema of a Parquet file is not seen
    here (`Shape.with_file`).

    Args:
        rows: to which they are added.
        definition: of the ingest.
        number: of the row in its partition.
        wider: files of CSV with more columns.
    """
    source = definition.source
    if source.has_header:
        return rows.withColumn(_UNKNOWN, F.when(F.col(REASON).isNull(), more_columns(definition.columns, wider)))
    if source.format != "json":
        return rows.withColumn(_UNKNOWN, F.lit(None).cast("array<string>"))
    known = F.array(*(F.lit(name) for name in definition.columns))
    searched = F.col(REASON).isNull() & ((number < _ALL_OF) | (number % _EACH == 0))
    return rows.withColumn(_UNKNOWN, F.when(searched, F.array_except(F.json_object_keys(RAW), known)))


def shape_counts(definition: Ingest) -> list[Column]:
    """The aggregates of the counting pass that `shape_of` reads."""
    return [
        *(F.count(column(name)).alias(f"filled_{index}") for index, name in enumerate(definition.columns)),
        F.count(F.col(_UNKNOWN)).alias("searched"),
        F.count(F.when(F.size(_UNKNOWN) > 0, 1)).alias("unknown"),
        F.min(F.array_min(_UNKNOWN)).alias("first_unknown"),
        F.max(F.array_max(_UNKNOWN)).alias("last_unknown"),
    ]


@dataclass(frozen=True)
class Shape:
    """What a batch tells of its source.

    Attributes:
        counts: terms of the ledger: `searched` and `unknown`, rows that were searched for fields, and of these those
            with a field that no column takes.
        unknown_fields: the first and the last of these by name in each group, a few of them.
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


def shape_of(groups: Sequence[Row], definition: Ingest) -> Shape:
    """The shape of the groups that go to bronze.

    Args:
        groups: of the counting pass.
        definition: of the ingest.
    """
    ends = {group[end] for group in groups for end in ("first_unknown", "last_unknown")}
    rows = sum(group["rows"] for group in groups)
    nulls = {
        name: rows - sum(group[f"filled_{index}"] for group in groups) for index, name in enumerate(definition.columns)
    }
    return Shape(
        counts={name: sum(group[name] for group in groups) for name in ("searched", "unknown")},
        unknown_fields=tuple(sorted(ends - {None})[:_SHOWN]),
        nulls={name: count for name, count in nulls.items() if count},
    )
