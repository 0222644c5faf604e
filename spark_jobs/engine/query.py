"""What every query of Tidemark has in common: its checkpoint's epoch, its start, its batches, its errors."""

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Generic, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.commits.writer import TableWriter
from spark_jobs.engine.halting import Halts
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING, LedgerEntry
from spark_jobs.lake.checkpoints.claims import refuse_ended
from spark_jobs.lake.checkpoints.continuity import refuse_lost_batches, refuse_torn_commits
from spark_jobs.lake.checkpoints.epochs import Epoch, open_epoch, refuse_changed_definition
from spark_jobs.lake.checkpoints.moving import name_state_here, refuse_moved
from spark_jobs.lake.checkpoints.ownership import own, refuse_lost, refuse_others
from spark_jobs.lake.checkpoints.reset import refuse_tables_of_others
from spark_jobs.lake.checkpoints.restoring import finish_for
from spark_jobs.lake.commit_records.stamps import Role, Stamp, digest
from spark_jobs.lake.errors import CheckpointError, first_line
from spark_jobs.spark.progress import BatchBounds, batch_bounds
from spark_jobs.spark.session import only_batches_with_input
from spark_jobs.spec import Ingest, Pipeline
from spark_jobs.spec.durations import duration_ms

D = TypeVar("D", bound=Ingest | Pipeline)

Failpoint = Callable[[str, int], None]
"""Told of each point of a batch that has been reached, with the batch's number; tests make it fail there."""


class PlanOutdatedError(Exception):
    """The running plan is to be made again: no fault, the query starts again."""


class DrainSignal(Exception):
    """A query was asked to end after its batch, and has."""


def unobserved(point: str, batch_id: int) -> None:
    """A `Failpoint` that does nothing: what a query has where no test watches it."""


def _of(query: "Query[D]") -> Callable[[DataFrame, int], None]:
    """What Spark calls for each batch of a query.

    Spark keeps it as long as its own side of the query lives, which the query holds in turn: nothing of a query that
    has ended would ever be freed, and a driver that starts queries again would run out of memory.
    """
    held = weakref.ref(query)

    def run(batch: DataFrame, batch_id: int) -> None:
        found = held()
        if found is None:
            raise DrainSignal("nobody holds the query any more")
        found._run_batch(batch, batch_id)

    return run


class Query(ABC, Generic[D]):
    """One pipeline as a running Structured Streaming query.

    Args:
        spark: the driver's session.
        lake: where everything lies.
        definition: what to run.
        failpoint: told of each point of a batch.
    """

    output_mode = "append"

    def __init__(self, spark: SparkSession, lake: Lake, definition: D, *, failpoint: Failpoint = unobserved) -> None:
        self.spark = spark
        self.lake = lake
        self.definition: D = definition
        self.error: BaseException | None = None
        self.failed_batch_id: int | None = None
        self.halts: Halts[D] = Halts(lake, definition)
        self.latest: LedgerEntry | None = None
        self.latest_batch_id = -1
        self.batch_seconds = 0.0
        self.total_read = self.total_late = self.total_quarantined = self.total_batches = 0
        self.total_batch_seconds = 0.0
        self.set_aside: Counter[str] = Counter()
        self._draining = threading.Event()
        self._busy = threading.Event()
        self._has_looked = False
        self._failpoint = failpoint
        self._started = threading.Event()
        self._writers: dict[Role, TableWriter] = {}
        self.until_caught_up = False
        self._query: StreamingQuery | None = None
        self._epoch: Epoch | None = None
        self._bounds: BatchBounds | None = None

    @property
    def name(self) -> str:
        """The name of the pipeline or ingest, by which tables, checkpoints and logs know the query."""
        return self.definition.name

    @property
    def query(self) -> StreamingQuery:
        """Spark's handle of the query, once it has started."""
        if self._query is None:
            raise RuntimeError(f"pipeline `{self.name}` has not been started")
        return self._query

    @property
    def epoch(self) -> Epoch:
        """The life of the checkpoint on which it runs."""
        if self._epoch is None:
            raise RuntimeError(f"pipeline `{self.name}` has not been started")
        return self._epoch

    def start(self, *, until_caught_up: bool = False) -> StreamingQuery:
        """Starts the query on its checkpoint, which it makes if there is none.

        Args:
            until_caught_up: process what is there now, then end.

        Raises:
            HaltedError: if it waits for a person's decision about a batch.
            CheckpointError: if the checkpoint was made with another definition, a table is another pipeline's, or the
                checkpoint and the tables do not hold the same batches.
            SchemaMismatchError: if a table has other columns than the definition gives, or the source lacks some.
        """
        self.halts.start()
        self.until_caught_up = until_caught_up
        self.error = self.failed_batch_id = None
        self._started.clear()
        finish_for(self.lake, self.name)
        if refuse_changed_definition(self.lake, self.definition) is None:
            refuse_tables_of_others(self.lake, self.definition)
        refuse_others(self.lake, self.definition)
        try:
            self.create_tables()
            plan = self.plan()
        except AnalysisException as error:
            raise SchemaMismatchError(
                f"pipeline `{self.name}` does not fit its source: {first_line(error)} Nothing was started."
            ) from error
        # Only now: a definition that cannot start must leave no checkpoint that refuses the fixed one.
        own(self.lake, self.definition)
        self._epoch = open_epoch(self.lake, self.definition)
        refuse_lost(self.lake, self.definition)
        refuse_ended(self.lake, self.epoch, self.definition.sink.table)
        refuse_moved(self.lake, self.definition, self.epoch)
        name_state_here(self.lake, self.epoch)
        refuse_torn_commits(self.lake, self.definition, self._epoch)
        refuse_lost_batches(self.lake, self.definition, self._epoch)
        if self.fix_starts():
            plan = self.plan()
        # What is there now, and no more: then its history is due.
        to_an_end = until_caught_up or self.reads_history
        interval = f"{duration_ms(self.definition.trigger_interval)} milliseconds"
        writer = (
            plan.writeStream.foreachBatch(_of(self))
            .outputMode(self.output_mode)
            .queryName(self.name)
            .option("checkpointLocation", self.lake.path(self.epoch.folder))
        )
        writer = writer.trigger(availableNow=True) if to_an_end else writer.trigger(processingTime=interval)
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
        # What goes by the clock has a batch at each trigger, and would never come to the end of what is there.
        with only_batches_with_input(self.spark) if to_an_end and self.by_clock else nullcontext():
            self._query = writer.start()
        # Who holds Spark's handle holds the query.
        vars(self._query)["tidemark"] = self
        try:
            # Only now the checkpoint has its id: who ended the epoch before did not know it.
            refuse_ended(self.lake, self.epoch, self.definition.sink.table)
        except CheckpointError:
            self.drain()
            self._started.set()
            self._query.stop()
            raise
        self._started.set()
        return self._query

    @abstractmethod
    def create_tables(self) -> None:
        """Makes the tables that the query writes, unless they exist."""

    @abstractmethod
    def plan(self) -> DataFrame:
        """The streaming rows that Spark hands to `foreachBatch`, as the query's plan gives them."""

    def before_batch(self, batch_id: int) -> None:
        """Called before anything of a batch is done; what it raises ends the query, and the batch runs again."""

    @property
    def looked_up(self) -> dict[str, int]:
        """Table -> the version in which the running plan looks columns up."""
        return {}

    @property
    def looked_up_ids(self) -> dict[str, str]:
        """Table -> the id of the Delta table of that version."""
        return {}

    @property
    def by_clock(self) -> bool:
        """Whether its batches come by the clock, with or without input."""
        return False

    @property
    def reads_history(self) -> bool:
        """Whether it passes over results that are computed in batch once it has read what is there."""
        return False

    def fix_starts(self) -> bool:
        """Notes where a new checkpoint begins in its source; whether the plan has to be made again for it."""
        return False

    @abstractmethod
    def process(self, batch: DataFrame, batch_id: int, bounds: BatchBounds) -> LedgerEntry:
        """Commits one batch: side tables first, the result with the ledger row last."""

    def writer(self, role: Role, table: str) -> TableWriter:
        """The writer of one of the query's tables."""
        if role not in self._writers:
            self._writers[role] = TableWriter(
                lake=self.lake,
                table=table,
                role=role,
                pipeline=self.name,
                query_id=str(self.query.id),
                epoch=self.epoch.number,
            )
        return self._writers[role]

    def stamp(self, role: Role, batch_id: int, rows: int, **more: object) -> Stamp:
        """What a commit of this query says of itself."""
        fields: dict[str, object] = {
            "pipeline": self.name,
            "epoch": self.epoch.number,
            "batch_id": batch_id,
            "role": role,
            "rows": rows,
            "query_id": str(self.query.id),
            "lookups": self.looked_up,
            "lookup_ids": self.looked_up_ids,
        }
        if self._bounds is not None:
            fields |= {"clock_ms": self._bounds.batch_time_ms, "offsets": digest(self._bounds.sources)}
        return Stamp.model_validate({**fields, **more})

    def drain(self) -> None:
        """Asks the query to end after the batch that it is in."""
        self._draining.set()

    @property
    def draining(self) -> bool:
        """Whether it has been asked to end."""
        return self._draining.is_set()

    @property
    def idle(self) -> bool:
        """Whether no batch runs, because the source has nothing new."""
        return not self.query.status["isTriggerActive"]

    @property
    def waits(self) -> bool:
        """Whether it has done all there was to do, and waits for input or for its next trigger."""
        return not self._busy.is_set() and str(self.query.status["message"]).startswith("Waiting")

    @property
    def waits_for_input(self) -> bool:
        """Whether it has looked for input since it started, and runs no batch."""
        if not self._has_looked:
            self._has_looked = str(self.query.status["message"]).startswith("Waiting")
        return self._has_looked and not self._busy.is_set()

    def failpoint(self, point: str, batch_id: int) -> None:
        """Tells whoever watches that a point of the batch has been reached."""
        self._failpoint(point, batch_id)

    def _run_batch(self, batch: DataFrame, batch_id: int) -> None:
        self._started.wait()
        if self._draining.is_set():
            # Planned, not begun: the next start runs it. Raising is the one way to end a query between two batches.
            raise DrainSignal(self.name)
        self._busy.set()
        try:
            started = time.time()
            self.failpoint("planned", batch_id)
            self.before_batch(batch_id)
            self._bounds = batch_bounds(self.spark, self.query)
            row = self.process(batch, batch_id, self._bounds)
            self.latest, self.latest_batch_id = row, batch_id
            self.total_read += row["read"]
            self.total_late += row.late_events
            self.total_quarantined += row["quarantined"]
            self.set_aside.update({why: rows for why, rows in row.reasons.items() if not why.startswith(WARNING)})
            self.batch_seconds = time.time() - started
            self.total_batches += 1
            self.total_batch_seconds += self.batch_seconds
            self.failpoint("processed", batch_id)
        except BaseException as error:
            # Spark would hand over only the text; the driver tells the user what happened and with which exit code.
            self.error, self.failed_batch_id = error, batch_id
            raise
        finally:
            self._busy.clear()
