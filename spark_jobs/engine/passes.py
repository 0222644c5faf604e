"""The pass that computes a batch: once, with all figures that its commits are held against.

Spark's stateful operators may run once in a batch, so what they give is either kept until it is counted and checked, or
written while it is computed, to data files that no commit names yet (docs/decisions/0019).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.commits.changes import Append, WrittenFiles
from spark_jobs.lake.errors import LedgerError
from spark_jobs.plan.columns import FATE, LATE_US, SEQ, SOURCE, SOURCE_TABLE
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.data_files import DataFiles
from spark_jobs.spark.frames import compute, size_of
from spark_jobs.spark.observed_rows import Figure, ObservedRows
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spec.names import in_spark
from spark_jobs.transforms import account
from spark_jobs.transforms.branches import Branches
from spark_jobs.transforms.content import BY_IDENTITY, digest, digest_figures
from spark_jobs.transforms.late import with_late_watermark
from spark_jobs.transforms.results import with_revision

LEAST_ROWS_A_FILE = 50_000
"""Each partition of the state becomes a file, which is to hold so many rows at least."""

_STRAYS = "strays"


class BatchPass(ABC):
    """One batch, computed and not committed.

    Args:
        plan: of the pipeline.
        branches: of it.
        bounds: of the batch.
        columns: that its rows have.

    Attributes:
        events: terms of the ledger, counted over all events of the batch, once it has run.
        figures: counted over result rows and over late ones, once it has run.
        repeated_tasks: how many tasks were counted twice.
    """

    def __init__(self, plan: LogicalPlan, branches: Branches, bounds: BatchBounds, columns: Sequence[str]) -> None:
        self._plan, self._branches, self._bounds = plan, branches, bounds
        self._operator = branches.operator
        # A checkpoint of an earlier version may know no source tables.
        self._content = [name for name in self._operator.output.content if name != SOURCE_TABLE or name in columns]
        self.events: Mapping[str, int] = {}
        self.figures: Mapping[str, int] = {}
        self.repeated_tasks = 0

    @abstractmethod
    def run(self) -> None:
        """Computes the batch, all partitions of its state included."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what was kept."""

    @property
    @abstractmethod
    def kept(self) -> DataFrame:
        """The rows that were kept: late events, those that were set aside, and results unless they are written."""

    @abstractmethod
    def append(self, count: int) -> Append | WrittenFiles:
        """The result, where its rows are appended as they are."""

    @property
    def late(self) -> DataFrame:
        """A narrow row of each late event."""
        return self._judged(self.kept).where(self._is_late).drop(LATE_US)

    @property
    def set_aside(self) -> DataFrame:
        """A narrow row of each event that a step could not use."""
        return self.kept.where(self._is_set_aside)

    def _judged(self, rows: DataFrame) -> DataFrame:
        """Rows with what their events are late by."""
        return with_late_watermark(rows, self._bounds)

    def content(self) -> dict[str, str | None]:
        """A digest of each kind of rows."""
        return {role: self._digest(role) for role in ("result", *self._narrow_hashes)}

    def _digest(self, role: str) -> str | None:
        figures = self.figures[f"{role}_xor"], self.figures[f"{role}_sum"]
        return digest([figures] if figures[1] else (), form=BY_IDENTITY if role == "result" else None)

    @property
    def _is_result(self) -> str:
        return self._branches.result_rows

    @cached_property
    def _is_late(self) -> str:
        return account.late_events(self._branches.lateness)

    @property
    def _is_set_aside(self) -> str:
        return account.SET_ASIDE if self._operator.output.sets_aside else "false"

    @property
    def _narrow_hashes(self) -> dict[str, str]:
        hashes = {"late": _hash(self._is_late, (SEQ, SOURCE))}
        if self._operator.output.sets_aside:
            hashes["quarantine"] = _hash(self._is_set_aside, (SEQ, SOURCE))
        return hashes

    @property
    def _of_results(self) -> list[Figure]:
        """What is counted over result rows."""
        # The digest is not of measures: sums of floating-point numbers may differ in their last digits.
        return [
            Figure.count("rows", self._is_result),
            Figure.count("withheld", f"{self._is_result} AND {FATE} IS NOT NULL"),
            *(Figure(name, sql) for name, sql in self._operator.accounting.result_terms.items()),
            *digest_figures(_hash(self._is_result, self._content), prefix="result"),
        ]

    @property
    def _of_narrow(self) -> list[Figure]:
        """What is counted over late events and those that were set aside."""
        pairs = self._branches.lateness.late_pairs(LATE_US)
        return [
            Figure.count("late_events", self._is_late),
            Figure("pairs_late", f"CASE WHEN {self._is_late} THEN {pairs} END"),
            *chain.from_iterable(digest_figures(hashed, prefix=role) for role, hashed in self._narrow_hashes.items()),
        ]

    def _appended(self, rows: DataFrame) -> DataFrame:
        """What is written of result rows that are appended as they are."""
        written = self._branches.transform.written(rows.where(F.col(FATE).isNull()))
        return with_revision(written, self._plan, self._bounds.batch_time_ms)


class KeepingPass(BatchPass):
    """Keeps the result rows until they are counted and written.

    Args:
        plan: of the pipeline.
        branches: of it.
        bounds: of the batch.
        batch: as Spark hands it over.
    """

    def __init__(self, plan: LogicalPlan, branches: Branches, bounds: BatchBounds, batch: DataFrame) -> None:
        super().__init__(plan, branches, bounds, batch.columns)
        terms = account.terms_of_events(plan, self._branches.lateness)
        self._of_events = [figure.name for figure in terms]
        figures = [*terms, *self._of_results, *self._of_narrow]
        self._observed = ObservedRows(self._judged(batch), figures)
        kept = f"{self._is_result} OR {self._is_late} OR {self._is_set_aside}"
        self._kept = self._observed.rows.where(kept).drop(LATE_US).persist()

    @property
    def kept(self) -> DataFrame:
        """Result rows, late events and events that were set aside."""
        return self._kept

    def run(self) -> None:
        """Computes and counts the batch in one job of Spark's, which keeps its rows in memory."""
        compute(self._kept)
        self.figures, self.repeated_tasks = self._observed.figures, self._observed.repeated_tasks
        self.events = {name: self.figures[name] for name in self._of_events}

    def close(self) -> None:
        """Lets go of the rows that were kept in memory."""
        self._kept.unpersist()

    @property
    def results(self) -> DataFrame:
        """The result rows, those that a step withholds included."""
        return self._kept.where(self._is_result)

    @property
    def size(self) -> int:
        """What is kept takes so many bytes in memory."""
        return size_of(self._kept)

    def append(self, count: int) -> Append:
        """The change that appends the result rows from memory; `count` is how many they are."""
        return Append(self._appended(self.results), count, self.size)


class WritingPass(BatchPass):
    """Writes the result rows to data files while it computes them.

    Args:
        plan: of the pipeline.
        branches: of it.
        bounds: of the batch.
        columns: of the result table.
        files: of it.
        around_state: the batch in two: what its stateful operators give, and its narrow rows.
    """

    def __init__(
        self,
        plan: LogicalPlan,
        branches: Branches,
        bounds: BatchBounds,
        *,
        columns: Sequence[str],
        files: DataFiles,
        around_state: tuple[DataFrame, DataFrame],
    ) -> None:
        results, narrow = around_state
        super().__init__(plan, branches, bounds, results.columns)
        self._columns, self._data_files = columns, files
        terms = account.terms_of_events(plan, self._branches.lateness)
        self._of_events = [figure.name for figure in terms]
        of_narrow = [*self._of_narrow, Figure.count(_STRAYS, self._is_result)]
        self._narrow = ObservedRows(self._judged(narrow), [*terms, *of_narrow])
        self._kept = self._narrow.rows.where(f"{self._is_late} OR {self._is_set_aside}").drop(LATE_US).persist()
        of_results = [*self._of_results, Figure.count(_STRAYS, branches.narrow_rows)]
        self._results = ObservedRows(results, of_results)
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
        rows = self._results.rows.unionByName(self._kept.where(self._is_result))
        self._files = self._data_files.write(self._appended(rows).select(*columns_of(self._columns)))
        of_narrow, of_results = self._narrow.figures, self._results.figures
        if strays := of_narrow[_STRAYS] + of_results[_STRAYS]:
            raise LedgerError(
                f"pipeline `{self._plan.definition.name}`: {strays} rows of a batch came from another of its branches "
                "than expected. Nothing of it was written; the stream has stopped."
            )
        self.events = {name: of_narrow[name] for name in self._of_events}
        self.figures = {**of_narrow, **of_results}
        self.repeated_tasks = max(self._narrow.repeated_tasks, self._results.repeated_tasks)

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


def _hash(kind: str, columns: Sequence[str]) -> str:
    """SQL of a hash of the rows of one branch; null for those of the other."""
    return f"CASE WHEN {kind} THEN xxhash64({', '.join(map(in_spark, columns))}) END"
