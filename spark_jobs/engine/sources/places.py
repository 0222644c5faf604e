"""Where the rows of a batch stand: in its partitions, and in the pieces of its files; what gives them their numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.spark.lines import RowPlaces
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.quotes import Block

ORDER = "__order"
"""The column with the number of a row in its batch; its upper bits are the partition's."""

_PARTITION_AT_BIT = 33

BLOCK = "__block"
"""The column of a batch that says in which piece of its file a row stands."""

PARTITION, POSITION = "__partition", "__position"
"""Columns with the place of a row in what `NAME` names."""

NUMBER = "__number"
"""The column with the number of a row in its batch, from 0, without gaps."""


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

    def placed(self, rows: DataFrame) -> DataFrame:
        """Adds each row's number in the batch, `NUMBER`; and its line in its file, `POSITION`, where it brings none.

        Args:
            rows: of this batch.
        """
        before, total = [], 0
        for pid in range(max(self.partitions, default=-1) + 1):
            before.append(total)
            total += self.partitions.get(pid, 0)
        pieces = [(first, lines) for _, _, first, lines in self.block_starts()]
        places = RowPlaces(rows.sparkSession, before, pieces)
        numbered = rows.withColumn(NUMBER, places.numbers(F.col(ORDER)))
        return numbered if POSITION in rows.columns else numbered.withColumn(POSITION, places.positions(F.col(ORDER)))

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


def group_of_piece(piece: Mapping[str, Any]) -> Group:
    """The group of the lines of a piece of a file.

    Args:
        piece: as `FixedLines.counted` gives it.
    """
    return {
        "pid": piece["partition"],
        NAME: piece["file"],
        BLOCK: piece["begins"],
        "rows": piece["lines"],
        "first": (piece["partition"] << _PARTITION_AT_BIT) + piece["before"],
        "bytes": piece["bytes"],
        "size": piece["size"],
    }


def partition() -> Column:
    """The number of a row's partition in the batch."""
    return F.shiftright(ORDER, _PARTITION_AT_BIT).cast("int")


def source(*, of_whole_file: bool = False) -> Column:
    """Where a row came from; of a whole file there is no more than its name."""
    part, position = (F.lit(None),) * 2 if of_whole_file else (F.col(PARTITION), F.col(POSITION))
    return F.struct(
        F.col(NAME).alias("name"), part.cast("int").alias("partition"), position.cast("bigint").alias("position")
    )
