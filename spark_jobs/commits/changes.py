"""What a commit does to a table, as values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, MapType, StructType

GONE = "__gone"
"""Marks the rows of a merge that are to be deleted."""

# Beyond that Spark is the faster one. A merge holds each row against those of the table, in the memory of this process.
_FEW_ROWS, _FEW_ROWS_TO_MERGE, _FEW_BYTES = 250_000, 50_000, 128 * 2**20


def is_nested(schema: StructType) -> bool:
    """Whether rows have a value that holds others."""
    return any(isinstance(field.dataType, ArrayType | MapType | StructType) for field in schema)


@dataclass(frozen=True)
class Append:
    """Rows are added.

    Attributes:
        rows: of the table's columns, in any order.
        count: how many there are.
        size: what they take in memory at most, in bytes: see `spark.frames.size_of`.
    """

    rows: DataFrame | pa.Table
    count: int
    size: int

    @property
    def few(self) -> bool:
        """Whether the rows may be collected."""
        if isinstance(self.rows, pa.Table) or not self.count:
            return True
        return self.count <= _FEW_ROWS and self.size <= _FEW_BYTES


@dataclass(frozen=True)
class WrittenFiles:
    """Rows are added whose data files are there already: the job that computed them has written them.

    Attributes:
        files: the `add` action of each.
        count: how many rows they hold.
    """

    files: Sequence[Mapping[str, Any]]
    count: int

    few = True
    """Their commit needs no job of Spark's."""


@dataclass(frozen=True)
class Upsert:
    """Rows are merged by key; one that does not differ from the table's keeps its `revision`.

    Attributes:
        rows: the new state of every row that may have changed.
        count: as `Append`.
        size: as `Append`.
        keys: columns that identify a row.
    """

    rows: DataFrame | pa.Table
    count: int
    size: int
    keys: Sequence[str]

    @property
    def few(self) -> bool:
        """Whether the rows may be collected, or have been; values that are nested cannot be compared without Spark."""
        if isinstance(self.rows, pa.Table):
            return True
        if is_nested(self.rows.schema):
            return False
        return self.count <= _FEW_ROWS_TO_MERGE and Append(self.rows, self.count, self.size).few


@dataclass(frozen=True)
class ReplaceWindows(Upsert):
    """As `Upsert`; rows of a window that is touched are deleted where `rows` does not have them.

    Attributes:
        rows: every row of each window that is touched.
    """


@dataclass(frozen=True)
class Revise(Upsert):
    """As `Upsert`; rows that `GONE` marks are deleted.

    Attributes:
        rows: those that differ from the table's, with `GONE`.
        between: a column, and its least and greatest value in `rows` in microseconds since 1970: by them files are left
            out. None: no file is.
        permitted: raises where the table is not any more what they were compared with; asked of the table over which
            the change is committed.
    """

    between: tuple[str, int, int] | None
    permitted: Callable[[DeltaTable], object]


@dataclass(frozen=True)
class Remove:
    """Rows are taken away.

    Attributes:
        rows: the keys of these.
        count: how many rows of the table have one of them.
        keys: columns that identify a row; nulls are a value like any other.
    """

    rows: DataFrame
    count: int
    keys: Sequence[str]

    few = False
    """Spark finds them."""


Change = Append | WrittenFiles | Upsert | Remove
