"""The pass of a small batch: its rows are fetched in the one job that computes them (docs/decisions/0043).

To keep rows in Spark's memory, and to read them again for each table, takes as long as to compute a small batch.
"""

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_jobs.commits.changes import Append
from spark_jobs.engine.batch_columns import IS_WRITTEN, LATE, SET_ASIDE, BatchColumns
from spark_jobs.engine.passes import BatchPass, KeepingPass
from spark_jobs.plan.columns import REVISED_AT
from spark_jobs.spark.frames import fetch
from spark_jobs.spark.observed_rows import ObservedRows
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.transforms.results import revised_at

FEW_ROWS = 10_000
"""Up to so many rows, read and given, a batch is small."""

FEW_BYTES = 4 * 2**20
"""And up to so many bytes of the files that it reads, which are compressed."""


class FetchedPass(BatchPass):
    """Has the rows of a batch that go to a table in the memory of this process."""

    _fetched: pa.Table

    def _fetch(self, rows: DataFrame) -> pa.Table:
        """What the tables have of rows with `LATE_US`."""
        at = revised_at(rows.sparkSession, self._bounds.batch_time_ms).alias(REVISED_AT)
        return fetch(rows.select(*self._asked.fetched, at))

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


class FetchingPass(FetchedPass):
    """Fetches the rows of a small batch in the job that computes them.

    Args:
        asked: what is asked of its rows.
        bounds: of the batch.
        batch: as Spark hands it over.
    """

    def __init__(self, asked: BatchColumns, bounds: BatchBounds, batch: DataFrame) -> None:
        super().__init__(asked, bounds)
        self._observed = ObservedRows(self._judged(batch), asked.figures)

    def run(self) -> None:
        """Computes, counts and fetches the batch in one job of Spark's."""
        self._fetched = self._fetch(self._observed.rows.where(self._asked.is_kept))
        self._note(self._observed, self._observed)


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
        self._fetched = self._fetch(self._judged(self._kept.kept))
