"""Where the rows of a batch stand: in its partitions, and in the pieces of its files; what gives them their numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.quotes import Block

ORDER = "__order"
"""The column with the number of a row in its batch; its upper bits are the partition's."""

BLOCK = "__block"
"""The column of a batch that says in which piece of its file a row stands."""

PARTITION, POSITION = "__partition", "__position"
"""Columns with the place of a row in what `NAME` names."""

_STARTS = pa.schema([(NAME, pa.string()), (BLOCK, pa.int64()), ("first", pa.int64()), ("lines", pa.int64())])


class Group(Protocol):
    """Rows of a batch that are counted together: a row of Spark's, or a dictionary."""

    def __getitem__(self, name: str, /) -> Any:
        """A key of the group, or a figure of it."""


@dataclass(frozen=True)
class Places:
    """Where the rows of a batch stand.

    Attributes:
        groups: how many rows (`rows`) there are by partition (`pid`), file and piece of it, and the least `ORDER` of
            them (`first`).
    """

    groups: Sequence[Group]

    @cached_property
    def partitions(self) -> dict[int, int]:
        """Partition of the batch -> its rows."""
        sizes: dict[int, int] = {}
        for group in self.groups:
            sizes[group["pid"]] = sizes.get(group["pid"], 0) + group["rows"]
        return sizes

    @property
    def rows(self) -> int:
        """All rows of the batch, headers of files included."""
        return sum(self.partitions.values())

    def number(self) -> Column:
        """The number of a row in its batch, from 0, without gaps."""
        starts, total = [], 0
        for pid, rows in sorted(self.partitions.items()):
            starts += [F.lit(pid), F.lit(total)]
            total += rows
        start = F.create_map(*starts)[partition()] if starts else F.lit(0)
        return start + F.col(ORDER).bitwiseAND(F.lit((1 << 33) - 1))

    def placed(self, rows: DataFrame) -> DataFrame:
        """Adds each row's line in its file, `POSITION`; a row of Parquet brings its own place.

        Args:
            rows: of this batch.
        """
        # From Arrow: rows of Python objects would start Python workers in each batch.
        columns = zip(*self.block_starts(), strict=True)
        table = dict(zip(_STARTS.names, columns, strict=False))
        starts = rows.sparkSession.createDataFrame(pa.table(table, schema=_STARTS) if table else _STARTS.empty_table())
        placed = rows.join(F.broadcast(starts), [NAME, BLOCK], "left")
        if POSITION not in rows.columns:
            placed = placed.withColumn(POSITION, F.col(ORDER) - F.col("first") + F.col("lines"))
        return placed

    def block_starts(self) -> list[tuple[str, int, int, int]]:
        """(file, piece of it, order of its first row, lines of the file before it)."""
        starts, lines = [], dict.fromkeys((group[NAME] for group in self.groups), 0)
        for block in sorted(blocks_of(self.groups), key=lambda block: (block.file, block.start)):
            starts.append((block.file, block.start, block.first, lines[block.file]))
            lines[block.file] += block.rows
        return starts


def blocks_of(counted: Iterable[Group]) -> list[Block]:
    """The pieces in which the files were read, from the counts of their rows."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for group in counted:
        first, rows = found.get((group[NAME], group[BLOCK]), (group["first"], 0))
        found[group[NAME], group[BLOCK]] = min(first, group["first"]), rows + group["rows"]
    return [Block(file, start, first, rows) for (file, start), (first, rows) in found.items()]


def partition() -> Column:
    """The number of a row's partition in the batch."""
    return F.shiftright(ORDER, 33).cast("int")


def source(*, of_whole_file: bool = False) -> Column:
    """Where a row came from; of a whole file there is no more than its name."""
    part, position = (F.lit(None),) * 2 if of_whole_file else (F.col(PARTITION), F.col(POSITION))
    return F.struct(
        F.col(NAME).alias("name"), part.cast("int").alias("partition"), position.cast("bigint").alias("position")
    )
