"""The pass of a small batch: its rows are fetched in the one job that computes them (docs/decisions/0043).

To keep rows in Spark's memory, and to read them again for each table, takes as long as to compute a small batch. What
is asked of its rows is planned once for all batches (docs/decisions/0048).
"""

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from spark_jobs.commits.changes import Append
from spark_jobs.engine.batch_columns import IS_WRITTEN, LATE, SET_ASIDE, BatchColumns
from spark_jobs.engine.passes import BatchPass, KeepingPass
from spark_jobs.plan.columns import LATE_US, REVISED_AT
from spark_jobs.spark.batch_values import BatchNumber, batch_value
from spark_jobs.spark.frames import fetch
from spark_jobs.spark.observed_rows import ObservedRows
from spark_jobs.spark.prepared import PreparedPlan
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.transforms.results import revised_at

FEW_ROWS = 10_000
"""Up to so many rows, read and given, a batch is small."""

FEW_BYTES = 4 * 2**20
"""And up to so many bytes of the files that it reads, which are compressed."""


class FetchedPass(BatchPass):
    """Has the rows of a batch that go to a table in the memory of this process."""

    _fetched: pa.Table

    def close(self) -> None:
        """Nothing: the rows go with the pass."""

    @property
    def results(self) -> pa.Table:
        """The result rows as they are written, without those that a step withholds."""
        return self._fetched.filter(self._fetched[IS_WRITTEN]).select(list(self._asked.written))

    @property
    def late(self) -> pa.Table:
        """The verdict on each late event."""
        return self._verdicts(LATE)

    @property
    def set_aside(self) -> pa.Table:
        """The verdict on each event that a step could not use."""
        return self._verdicts(SET_ASIDE)

    def _verdicts(self, name: str) -> pa.Table:
        verdicts = self._fetched[name]
        return pa.Table.from_struct_array(verdicts.filter(verdicts.is_valid()))

    def append(self, count: int) -> Append:
        """The change that appends the result rows; `count` is how many they are."""
        rows = self.results
        return Append(rows, count, rows.nbytes)


class FetchPlan:
    """What is asked of the rows of small batches, in one plan for all batches of a query.

    Args:
        asked: what is asked.
        batch: one of them, as Spark hands it over.

    Attributes:
        asked: what is asked.
    """

    def __init__(self, asked: BatchColumns, batch: DataFrame) -> None:
        self.asked = asked
        self._late_us, self._at_ms = BatchNumber(batch.sparkSession), BatchNumber(batch.sparkSession)
        self._plan = PreparedPlan(batch, self._asked_of)

    def _asked_of(self, rows: DataFrame) -> DataFrame:
        self._observed = ObservedRows(rows.withColumn(LATE_US, self._late_us.column), self.asked.figures)
        return _fetched(self._observed.rows.where(self.asked.is_kept), self.asked, self._at_ms.column)

    def fetch(self, batch: DataFrame, bounds: BatchBounds) -> tuple[pa.Table, ObservedRows]:
        """The rows of a batch that go to a table, and what was counted; both come of one job of Spark's.

        Args:
            batch: as Spark hands it over.
            bounds: of it.
        """
        self._late_us.set(bounds.late_watermark_us)
        self._at_ms.set(bounds.batch_time_ms)
        self._observed.reset()
        return self._plan.fetch(batch), self._observed


class FetchingPass(FetchedPass):
    """Fetches the rows of a small batch in the job that computes them.

    Args:
        plan: of the query's small batches.
        bounds: of the batch.
        batch: as Spark hands it over.
    """

    def __init__(self, plan: FetchPlan, bounds: BatchBounds, batch: DataFrame) -> None:
        super().__init__(plan.asked, bounds)
        self._plan, self._batch = plan, batch

    def run(self) -> None:
        """Computes, counts and fetches the batch in one job of Spark's."""
        self._fetched, observed = self._plan.fetch(self._batch, self._bounds)
        self._note(observed, observed)


class KeptPass(FetchedPass):
    """Fetches the rows of a batch that Spark has computed and kept, which are few.

    Args:
        kept: the batch.
    """

    def __init__(self, kept: KeepingPass) -> None:
        super().__init__(kept._asked, kept._bounds)
        self.events, self.figures, self.repeated_tasks = kept.events, kept.figures, kept.repeated_tasks
        self._kept = kept

    def run(self) -> None:
        """Fetches what is kept, in one job for all tables."""
        rows = self._judged(self._kept.kept)
        self._fetched = fetch(_fetched(rows, self._asked, batch_value(rows.sparkSession, self._bounds.batch_time_ms)))


def _fetched(rows: DataFrame, asked: BatchColumns, batch_time_ms: Column) -> DataFrame:
    """What the tables have of rows with `LATE_US`."""
    return rows.select(*asked.fetched, revised_at(batch_time_ms).alias(REVISED_AT))
