"""Writes the good rows of a batch while it judges them, and keeps only the others (docs/decisions/0032).

The lines are counted first, as text: that gives the rows their numbers. Then one job parses, judges and writes them.
"""

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.commits.changes import WrittenFiles
from spark_jobs.engine.sources.base import Batch, BatchRows, PlannedBatch
from spark_jobs.engine.sources.census import Census
from spark_jobs.engine.sources.judging import Judge
from spark_jobs.engine.sources.places import (
    BLOCK,
    NUMBER,
    ORDER,
    PARTITION,
    POSITION,
    Group,
    Places,
    group_of_piece,
    partition,
    source,
)
from spark_jobs.lake.errors import LedgerError
from spark_jobs.spark.batch_values import batch_value
from spark_jobs.spark.data_files import files_for
from spark_jobs.spark.lines import FixedLines
from spark_jobs.spark.set_aside import SetAside, Tally
from spark_jobs.transforms.bronze import bronze_columns
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.rows import DETAIL, RAW, REASON, broken, rules_with
from spark_jobs.transforms.shape import unknown_names

_COUNTED = "__counted_"
_HASH, _MARKED, _LEAST, _MOST = "__hash", "__marked", "__least", "__most"


class WritingRead:
    """The lines of a batch, counted; then its good rows, written to data files that no commit names yet.

    Args:
        judge: of the batch.
        planned: the batch.
        raw: its lines, of files that can be read.

    Attributes:
        judge: of the batch.
        counted: the lines by partition, file and piece of it.
        places: where they stand.
        tally: of the judged rows, once they are written.
        kept: the rows that are set aside, and those that break a rule which must not be broken.
    """

    tally: Tally
    kept: DataFrame

    def __init__(self, judge: Judge, planned: PlannedBatch, raw: DataFrame) -> None:
        self.judge = judge
        self._planned = planned
        # Both passes must give each line the same number.
        lines = FixedLines(raw)
        self._lines = lines.rows.withColumn(ORDER, F.monotonically_increasing_id())
        self.counted = self._counted(lines.counted())
        self.places = Places(self.counted)
        self._files: list[dict[str, Any]] = []
        self._first_seq: int | None = None

    def _counted(self, pieces: Sequence[Mapping[str, Any]] | None) -> Sequence[Group]:
        """The groups of the lines, which Spark counts where nothing else can.

        Args:
            pieces: as `FixedLines.counted` gives them.
        """
        if pieces is not None:
            return [group_of_piece(piece) for piece in pieces]
        groups = self._lines.groupBy(partition().alias("pid"), NAME, BLOCK)
        return groups.agg(F.count(F.lit(1)).alias("rows"), F.min(ORDER).alias("first"), *self.judge.figures).collect()

    def finish(self) -> None:
        """Judges the lines and writes the good ones, with the numbers that the batch was planned with.

        Raises:
            LedgerError: if the files give other lines than they did when they were counted; nothing is left of it.
        """
        rows, aside = self._write(self._planned.first_seq)
        kept = aside.kept()
        if kept is None:
            kept = rows.where(F.col(REASON).isNotNull() | F.col(_MARKED)).persist()
        self.kept = kept

    def files(self, first_seq: int) -> WrittenFiles:
        """The data files, which a commit may name from now on.

        Args:
            first_seq: the number that the first line of the batch gets.
        """
        if self._first_seq != first_seq:
            self._remove()
            self._write(first_seq)
        files, self._files, self._first_seq = self._files, [], None
        return WrittenFiles(files, self.tally.good.rows)

    def close(self) -> None:
        """Lets go of what was kept, and removes the data files that no commit can name."""
        if self._first_seq is not None:
            self._remove()
        if hasattr(self, "kept"):
            self.kept.unpersist()

    def _remove(self) -> None:
        self._planned.data_files.remove(self._files)
        self._files, self._first_seq = [], None

    def _write(self, first_seq: int) -> tuple[DataFrame, SetAside]:
        """Writes the good rows, and counts all; the judged rows, and what has passed of them."""
        rows, bronze = self._judged(first_seq)
        counted = self.judge.counted_of_good
        has_names = "unknown" in counted
        aside = SetAside(
            rows,
            reason=REASON,
            row_hash=_HASH,
            marked=_MARKED,
            counted=[f"{_COUNTED}{name}" for name in counted],
            names=(_LEAST, _MOST) if has_names else None,
        )
        passed = aside.passed.select(bronze).coalesce(files_for(rows, self.places.rows))
        self._files, self._first_seq = self._planned.data_files.write(passed), first_seq
        tally = aside.tally
        self.tally = replace(tally, filled=dict(zip(counted, tally.filled.values(), strict=True)))
        self._refuse_other_lines()
        return rows, aside

    def _judged(self, first_seq: int) -> tuple[DataFrame, Sequence[str]]:
        """Each line with all that its tables have of it, and what is counted; and the names of bronze's columns."""
        definition = self.judge.definition
        placed = self.places.placed(self.judge.judged(self._lines))
        bronze = bronze_columns(
            definition,
            seq=batch_value(placed.sparkSession, first_seq) + F.col(NUMBER),
            clock=F.col("_ingest_time"),
            source=source(),
            kept_before=self._planned.kept_before,
        )
        strict = (broken(rule) for rule in rules_with(definition, "fail"))
        is_marked = F.col(REASON).isNull() & reduce(operator.or_, strict, F.lit(False))
        names = unknown_names(definition)
        figures = (
            F.when(found.isNotNull(), 1).alias(f"{_COUNTED}{name}")
            for name, found in self.judge.counted_of_good.items()
        )
        rows = placed.select(
            *bronze,
            REASON,
            DETAIL,
            # The text of a row that is written is not needed any more.
            F.when(F.col(REASON).isNotNull() | is_marked, F.col(RAW)).alias(RAW),
            NAME,
            PARTITION,
            POSITION,
            F.xxhash64(NAME, RAW).alias(_HASH),
            is_marked.alias(_MARKED),
            *figures,
            F.array_min(names).alias(_LEAST),
            F.array_max(names).alias(_MOST),
        )
        return rows, rows.columns[: len(bronze)]

    def _refuse_other_lines(self) -> None:
        """The numbers of rows come from the count of the lines: both must have found the same ones."""
        written = sum(json.loads(file["stats"])["numRecords"] for file in self._files)
        if self.tally.partitions == self.places.partitions and written == self.tally.good.rows:
            return
        self._remove()
        raise LedgerError(
            f"pipeline `{self.judge.definition.name}`: files of a batch were counted with {self.places.rows:,} lines "
            f"and read with {sum(self.tally.partitions.values()):,}, of which {self.tally.good.rows:,} are good; "
            f"{written:,} rows were written, and are removed. Somebody changes the files while they are read. Nothing "
            "of this batch is in bronze; it runs again at the next start."
        )


class WrittenBatch(Batch):
    """One batch whose good rows are in data files; its other rows are kept in memory.

    Args:
        read: the batch.
        unreadable: as `BatchRows`.
        left_out: as `BatchRows`.
    """

    def __init__(self, read: WritingRead, unreadable: Sequence[tuple[str, str]], left_out: Mapping[str, int]) -> None:
        super().__init__(read.judge, BatchRows(read.kept, read.counted, unreadable, left_out))
        self._read = read

    @cached_property
    def census(self) -> Census:
        """What was counted while the rows were written."""
        return Census.of_tally(self._read.tally)

    def placed(self, rows: DataFrame) -> DataFrame:
        """The rows as they are: they were placed before they were judged.

        Args:
            rows: of this batch.
        """
        return rows

    def written(self, first_seq: int) -> WrittenFiles:
        """As `Batch.written`; rows that are to have other numbers than they were given are written again.

        Args:
            first_seq: the number that the first row of the batch gets.
        """
        return self._read.files(first_seq)

    def close(self) -> None:
        """Lets go of the rows, and removes data files that no commit can name."""
        self._read.close()

    def _unknown_names(self) -> tuple[str, ...]:
        return self._read.tally.names
