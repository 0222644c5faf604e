"""What an ingest asks of its source, whatever its kind."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.commits.changes import WrittenFiles
from spark_jobs.engine.sources.census import Census
from spark_jobs.engine.sources.judging import Decision, Judge
from spark_jobs.engine.sources.places import Group, Places
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.spark.data_files import DataFiles
from spark_jobs.spark.frames import size_of
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spec import Ingest
from spark_jobs.transforms.rows import DETAIL, REASON
from spark_jobs.transforms.shape import Shape, first_and_last_name, shape_of


@dataclass(frozen=True)
class PlannedBatch:
    """One batch as Spark has planned it.

    Attributes:
        frame: as Spark hands it over.
        bounds: of it.
        epoch: of its checkpoint.
        decision: what a person has decided about it.
        known_unreadable: finds out which files an interrupted attempt at this batch has set aside, and why.
        first_seq: the number that its first row gets in bronze.
        kept_before: columns of bronze for fields that are kept no more.
        data_files: of bronze, where rows may be written while they are judged.
    """

    frame: DataFrame
    bounds: BatchBounds
    epoch: Epoch
    decision: Decision
    known_unreadable: Callable[[], Mapping[str, str]]
    first_seq: int
    kept_before: Collection[str]
    data_files: DataFiles

    @property
    def at_ms(self) -> int:
        """The batch's clock, which a retry repeats."""
        return self.bounds.batch_time_ms


class Verdict(NamedTuple):
    """Which rows of a batch go to the quarantine.

    Attributes:
        bad: whether a row does.
        reason: why.
        detail: more of it.
    """

    bad: Column
    reason: Column
    detail: Column


@dataclass(frozen=True)
class BatchRows:
    """What has been read of one batch.

    Attributes:
        rows: judged, and kept in memory.
        counted: the groups of the counting pass.
        unreadable: (path, error) of each file that cannot be read; each stands for a row of the quarantine.
        left_out: why something of it was not read -> how often; it is told as a warning.
    """

    rows: DataFrame
    counted: Sequence[Group]
    unreadable: Sequence[tuple[str, str]] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


class Batch:
    """One batch that has been read: its rows are judged, counted, and kept in memory until it is closed.

    A row has `__raw` (its text), `__name` and `__block` (in which file or topic it came, and which piece of it),
    `__order`, `_ingest_time`, the payload, and `__reason` with `__detail`.

    Args:
        judge: who has judged it.
        read: what has been read.
    """

    def __init__(self, judge: Judge, read: BatchRows) -> None:
        self.definition = judge.definition
        self.rows = read.rows
        self.unreadable = read.unreadable
        self.left_out = read.left_out
        self._judge = judge
        self._counted = read.counted

    @cached_property
    def census(self) -> Census:
        """What the one pass that counted the batch has found: rows for bronze, rows set aside, and why."""
        return Census.of_groups(self._counted, self._judge.counted_of_good, has_header=self._judge.headers is not None)

    @cached_property
    def places(self) -> Places:
        """Where its rows stand."""
        return Places(self._counted)

    @property
    def size(self) -> int:
        """What its rows take in memory, in bytes."""
        return size_of(self.rows)

    def written(self, first_seq: int) -> WrittenFiles | None:
        """The good rows, where they are in data files already; None: they are to be written out of `rows`.

        From now on a commit may name the files.

        Args:
            first_seq: the number that the first row of the batch gets.
        """
        return None

    @property
    def is_event(self) -> Column:
        """Whether a row may be an event at all, and is no header."""
        return F.lit(True)

    @property
    def verdict(self) -> Verdict:
        """Which rows go to the quarantine."""
        return Verdict(F.col(REASON).isNotNull(), F.col(REASON), F.col(DETAIL))

    def placed(self, rows: DataFrame) -> DataFrame:
        """Adds each row's number in the batch, and its place in its source unless it brings one.

        Args:
            rows: of this batch.
        """
        return self.places.placed(rows)

    def shape(self) -> Shape:
        """What it tells of the shape of its source."""
        return shape_of(self.census.good, self.census.counted, self._unknown_names, self.definition)

    def _unknown_names(self) -> tuple[str, ...]:
        """Of fields of its good rows that no column takes, the first and the last."""
        return first_and_last_name(self.rows, self.definition)

    def close(self) -> None:
        """Lets go of the rows."""
        self.rows.unpersist()


class Source(ABC):
    """Where an ingest reads.

    Args:
        spark: the session of its query.
        lake: where.
        definition: of the ingest.
    """

    def __init__(self, spark: SparkSession, lake: Lake, definition: Ingest) -> None:
        self.spark = spark
        self.lake = lake
        self.definition = definition

    @cached_property
    def usual_judge(self) -> Judge:
        """Who judges batches about which nobody has decided anything."""
        return Judge(self.spark, self.definition)

    def judge(self, decision: Decision) -> Judge:
        """Who judges a batch.

        Args:
            decision: about it.
        """
        return self.usual_judge if decision == Decision() else replace(self.usual_judge, decision=decision)

    @abstractmethod
    def stream(self) -> DataFrame:
        """A stream of what is new.

        Raises:
            TidemarkError: if it cannot be read.
        """

    def begin(self, epoch: Epoch) -> bool:
        """Called when the query begins on a checkpoint: notes what must hold as long as it lives.

        Args:
            epoch: of the checkpoint.

        Returns:
            Whether the stream begins elsewhere than it was planned to.

        Raises:
            TidemarkError: if it does not hold any more.
        """
        return False

    # Not abstract: most sources have nothing to ask.
    def before_batch(self, epoch: Epoch) -> None:  # noqa: B027
        """Called before anything of a batch is done: what must hold for its offsets to mean what they meant.

        Args:
            epoch: of the checkpoint.

        Raises:
            TidemarkError: if it does not; nothing of the batch was written.
        """

    @abstractmethod
    def read(self, planned: PlannedBatch) -> Batch:
        """Reads, judges and counts one batch.

        Args:
            planned: the batch.
        """
