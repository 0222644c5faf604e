"""The pass that computes a batch: once, with all figures that its commits are held against.

Spark's stateful operators may run once in a batch, so what they give is either kept until it is counted and checked, or
written while it is computed, to data files that no commit names yet (docs/decisions/0019).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.commits.changes import Append, WrittenFiles
from spark_jobs.engine.batch_columns import STRAYS, BatchColumns
from spark_jobs.lake.errors import LedgerError
from spark_jobs.plan.columns import FATE, LATE_US
from spark_jobs.spark.batch_values import batch_value
from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.data_files import DataFiles
from spark_jobs.spark.frames import compute, size_of
from spark_jobs.spark.observed_rows import ObservedRows
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.transforms.content import BY_IDENTITY, digest
from spark_jobs.transforms.late import (
    verdicts_on_late,
    verdicts_on_set_aside,
    with_missed_windows,
)
from spark_jobs.transforms.results import with_revision

LEAST_ROWS_A_FILE = 50_000
"""Each partition of the state becomes a file, which is to hold so many rows at least."""


class BatchPass(ABC):
    """One batch, computed and not committed.

    Args:
        asked: what is asked of its rows.
        bounds: of the batch.

    Attributes:
        events: terms of the ledger, counted over all events of the batch, once it has run.
        figures: counted over result rows and over late ones, once it has run.
        repeated_tasks: how many tasks were counted twice.
    """

    def __init__(self, asked: BatchColumns, bounds: BatchBounds) -> None:
        self._asked, self._bounds = asked, bounds
        self.events: Mapping[str, int] = {}
        self.figures: Mapping[str, int] = {}
        self.repeated_tasks = 0

    @abstractmethod
    def run(self) -> None:
        """Computes the batch, all partitions of its state included."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what was kept."""

    @abstractmethod
    def append(self, count: int) -> Append | WrittenFiles:
        """The result, where its rows are appended as they are."""

    @property
    @abstractmethod
    def late(self) -> DataFrame | pa.Table:
        """The verdict on each late event (`transforms.late.verdicts_on_late`)."""

    @property
    @abstractmethod
    def set_aside(self) -> DataFrame | pa.Table:
        """The verdict on each event that a step could not use (`transforms.late.verdicts_on_set_aside`)."""

    def _judged(self, rows: DataFrame) -> DataFrame:
        """Rows with what their events are late by."""
        return rows.withColumn(LATE_US, batch_value(rows.sparkSession, self._bounds.late_watermark_us))

    def _note(self, observed: ObservedRows, of_events: ObservedRows) -> None:
        """Takes the figures of a batch that has been computed."""
        self.figures = {**of_events.figures, **observed.figures}
        self.events = {figure.name: of_events.figures[figure.name] for figure in self._asked.of_events}
        self.repeated_tasks = max(observed.repeated_tasks, of_events.repeated_tasks)

    def content(self) -> dict[str, str | None]:
        """A digest of each kind of rows."""
        return {role: self._digest(role) for role in ("result", *self._asked.narrow_hashes)}

    def _digest(self, role: str) -> str | None:
        figures = self.figures[f"{role}_xor"], self.figures[f"{role}_sum"]
        return digest([figures] if figures[1] else (), form=BY_IDENTITY if role == "result" else None)

    def _appended(self, rows: DataFrame) -> DataFrame:
        """What is written of result rows that are appended as they are."""
        written = self._asked.branches.transform.written(rows.where(F.col(FATE).isNull()))
        return with_revision(written, self._asked.plan, self._bounds.batch_time_ms)


class _WithFrame(BatchPass):
    """One whose rows Spark has in its memory until they are written."""

    @property
    @abstractmethod
    def kept(self) -> DataFrame:
        """The rows that were kept: late events, those that were set aside, and results unless they are written."""

    @property
    def late(self) -> DataFrame:
        """The verdict on each late event."""
        lateness = self._asked.branches.lateness
        late = with_missed_windows(self._judged(self.kept).where(self._asked.is_late), lateness)
        return late.selectExpr(*verdicts_on_late(self._asked.plan, lateness))

    @property
    def set_aside(self) -> DataFrame:
        """The verdict on each event that a step could not use."""
        return self.kept.where(self._asked.is_set_aside).selectExpr(*verdicts_on_set_aside(self._asked.plan))


class KeepingPass(_WithFrame):
    """Keeps the result rows until they are counted and written.

    Args:
        asked: what is asked of its rows.
        bounds: of the batch.
        batch: as Spark hands it over.
    """

    def __init__(self, asked: BatchColumns, bounds: BatchBounds, batch: DataFrame) -> None:
        super().__init__(asked, bounds)
        self._observed = ObservedRows(self._judged(batch), asked.figures)
        self._kept = self._observed.rows.where(asked.is_kept).drop(LATE_US).persist()

    @property
    def kept(self) -> DataFrame:
        """Result rows, late events and events that were set aside."""
        return self._kept

    def run(self) -> None:
        """Computes and counts the batch in one job of Spark's, which keeps its rows in memory."""
        compute(self._kept)
        self._note(self._observed, self._observed)

    def close(self) -> None:
        """Lets go of the rows that were kept in memory."""
        self._kept.unpersist()

    @property
    def results(self) -> DataFrame:
        """The result rows, those that a step withholds included."""
        return self._kept.where(self._asked.is_result)

    @property
    def size(self) -> int:
        """What is kept takes so many bytes in memory."""
        return size_of(self._kept)

    def append(self, count: int) -> Append:
        """The change that appends the result rows from memory; `count` is how many they are."""
        return Append(self._appended(self.results), count, self.size)


class WritingPass(_WithFrame):
    """Writes the result rows to data files while it computes them.

    Args:
        asked: what is asked of its rows.
        bounds: of the batch.
        files: of the result table.
        around_state: the batch in two: what its stateful operators give, and its narrow rows.
    """

    def __init__(
        self, asked: BatchColumns, bounds: BatchBounds, files: DataFiles, around_state: tuple[DataFrame, DataFrame]
    ) -> None:
        super().__init__(asked, bounds)
        results, narrow = around_state
        self._data_files = files
        self._narrow = ObservedRows(self._judged(narrow), asked.narrow_figures)
        self._kept = self._narrow.rows.where(f"{asked.is_late} OR {asked.is_set_aside}").drop(LATE_US).persist()
        self._results = ObservedRows(results, asked.result_figures)
        self._files: list[dict[str, Any]] = []

    @property
    def kept(self) -> DataFrame:
        """Narrow rows of late events and of those that were set aside; result rows are in files."""
        return self._kept

    def run(self) -> None:
        """Computes and counts the batch in one job of Spark's, which writes its result rows to data files.

        Raises:
            LedgerError: if its two parts are not what they were taken for.
        """
        # No narrow row is a result: those tasks write nothing, but keep what is late.
        rows = self._results.rows.unionByName(self._kept.where(self._asked.is_result))
        self._files = self._data_files.write(self._appended(rows).select(*columns_of(self._asked.written)))
        if strays := self._narrow.figures[STRAYS] + self._results.figures[STRAYS]:
            raise LedgerError(
                f"pipeline `{self._asked.plan.definition.name}`: {strays} rows of a batch came from another of its "
                "branches than expected. Nothing of it was written; the stream has stopped."
            )
        self._note(self._results, self._narrow)

    def append(self, count: int) -> WrittenFiles:
        """The change that adds the files, which hold `count` rows.

        From now on a commit may name them, also where its answer gets lost: `close` keeps them.
        """
        files, self._files = self._files, []
        return WrittenFiles(files, count)

    def close(self) -> None:
        """Lets go of the rows, and removes the data files if `append` was never called."""
        self._kept.unpersist()
        self._data_files.remove(self._files)
