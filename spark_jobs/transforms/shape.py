"""What a batch tells of the shape of its source: fields that no column takes, and columns that stay empty."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.spark.columns import column
from spark_jobs.spec import Ingest
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.transforms.csv_columns import Wider
from spark_jobs.transforms.rows import MORE, REASON

_SHOWN = 5


def shape_columns(definition: Ingest) -> dict[str, Column]:
    """Figure -> column whose values in good rows are counted for it; `shape_of` reads these."""
    filled = {f"filled_{index}": column(name) for index, name in enumerate(definition.columns)}
    if not definition.reads_json:
        return filled
    return {**filled, "unknown": F.when(F.col(REASON).isNull() & unknown_names(definition).isNotNull(), 1)}


def unknown_names(definition: Ingest) -> Column:
    """Names of the fields of a row of JSON that no column takes; null: there are none."""
    if UNKNOWN_FIELDS in definition.payload:
        return F.map_keys(F.col(UNKNOWN_FIELDS))
    return F.col(MORE)


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

    def with_headers(self, rows: Mapping[str, int], definition: Ingest, wider: Wider) -> "Shape":
        """The same, where the headers of files tell which columns they have.

        Args:
            rows: file -> its rows that go to bronze.
            definition: of the ingest.
            wider: files that have more columns.
        """
        found = rows.keys() & wider.keys()
        more = sorted({name for file in found for name in wider[file]} - definition.columns.keys())
        counts = {"searched": sum(rows.values()), "unknown": sum(rows[file] for file in found)}
        return replace(self, counts={**self.counts, **counts}, unknown_fields=tuple(more[:_SHOWN]))


def shape_of(good: int, counted: Mapping[str, int], names: Callable[[], tuple[str, ...]], definition: Ingest) -> Shape:
    """The shape of the rows that go to bronze.

    Args:
        good: how many they are.
        counted: the figures of `shape_columns` over them.
        names: of JSON: finds the first and the last name of a field that no column takes. Asked where there are any.
        definition: of the ingest.
    """
    nulls = {name: good - counted.get(f"filled_{index}", 0) for index, name in enumerate(definition.columns)}
    unknown = counted.get("unknown", 0)
    return Shape(
        counts={"searched": good if definition.reads_json else 0, "unknown": unknown},
        unknown_fields=names() if unknown else (),
        nulls={name: number for name, number in nulls.items() if number},
    )


def first_and_last_name(rows: DataFrame, definition: Ingest) -> tuple[str, ...]:
    """The first and the last unknown name by the alphabet, of rows in memory; a source may have a new one in each
    event."""
    names = unknown_names(definition)
    found = rows.where(F.col(REASON).isNull()).agg(F.min(F.array_min(names)), F.max(F.array_max(names))).collect()[0]
    return tuple(sorted({*found} - {None}))
