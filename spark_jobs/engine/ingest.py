"""Ingest: from files, Kafka or results to bronze and its quarantine."""

from collections.abc import Iterable
from itertools import chain

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.commits.changes import Append
from spark_jobs.commits.tables import create_table
from spark_jobs.commits.writer import OvertakenError
from spark_jobs.engine import heartbeats, ingested
from spark_jobs.engine.halting import IngestHalts
from spark_jobs.engine.heartbeats import Front, Heartbeats
from spark_jobs.engine.query import Failpoint, Query, unobserved
from spark_jobs.engine.sources import source_of
from spark_jobs.engine.sources.base import Batch, PlannedBatch
from spark_jobs.engine.sources.judging import Decision
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING, LedgerEntry
from spark_jobs.lake.commit_records.history import newest_numbered
from spark_jobs.lake.commit_records.replay_commits import ReplayCommit
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.tables import opening as tables
from spark_jobs.plan import logical as plan
from spark_jobs.plan.meanings import column_comments
from spark_jobs.plan.quarantine import UNREADABLE
from spark_jobs.plan.tables import beside
from spark_jobs.spark.data_files import DataFiles
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spark.schemas import schema_of
from spark_jobs.spark.session import lenient_session
from spark_jobs.spec import Ingest, Pipeline
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.spec.names import in_spark
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.rows import RAW, broken, parse, parsing, rules_with

_TRIES = 20
"""So often a batch is given other numbers, while replays take them."""


class IngestQuery(Query[Ingest]):
    """Appends every good row to bronze and every other one, with the reason and its text, to the quarantine."""

    def __init__(
        self, spark: SparkSession, lake: Lake, definition: Ingest, *, failpoint: Failpoint = unobserved
    ) -> None:
        super().__init__(lenient_session(spark), lake, definition, failpoint=failpoint)
        self._source = source_of(self.spark, lake, definition)
        self.halts: IngestHalts = IngestHalts(lake, definition)
        self._next_seq = 0
        self._kept_before: frozenset[str] = frozenset()
        self._txn: int | None = None
        self._data_files = DataFiles(lake, definition.sink.table)

    def create_tables(self) -> None:
        """Makes the bronze table and its quarantine unless they exist; columns that are new are added.

        Raises:
            pyspark.errors.AnalysisException: if Spark refuses the SQL of a rule.
        """
        schemas = ingested.schemas(self.definition)
        # Else Spark would refuse them in the first batch, when the fixed rules are a changed definition.
        rules = (broken(rule) for rule in self.definition.all_rules)
        empty_frame(self.spark, schemas["result"]).select(*rules).schema  # noqa: B018
        if not self.definition.source.is_parquet:
            # So does Java a pattern of times that is none.
            parse(
                empty_frame(self.spark, schema_of(f"{RAW} STRING, {NAME} STRING")), parsing(self.spark, self.definition)
            )
        for ref in reversed(plan.build(self.definition).tables):
            comments = column_comments(self.definition, ref.role)
            present = create_table(
                self.lake, ref.name, schemas[ref.role], statistics=ref.statistics, comments=comments, grows=True
            )
            if ref.role == "result":
                self._kept_before = present & {UNKNOWN_FIELDS} - self.definition.payload.keys()
        self._fronts: tuple[int, dict[str, Front]] | None = None
        self._heartbeats = Heartbeats(self.spark, self.lake)

    def beat(self, idle_ms: int, readers: Iterable[Pipeline]) -> None:
        """Moves the watermark on to the newest event's time plus the time without input; never back.

        Args:
            idle_ms: for how long there was no input.
            readers: every pipeline that is known: those of this table may go by times of their own.
        """
        table, latest = self.definition.sink.table, self.latest_batch_id
        if self._fronts is None or self._fronts[0] != latest:
            times = heartbeats.event_times(table, (self.definition,), readers)
            # The columns, not the readers' expressions over them: so none is moved further than any other.
            read = sorted({*chain(*self._heartbeats.clocks(table, times).values())})
            max_future = heartbeats.most_ahead(table, (self.definition,), readers)
            found = self._heartbeats.fronts(table, [in_spark(name) for name in read], max_future)
            self._fronts = latest, {name: found[in_spark(name)] for name in read}
        fronts = self._fronts[1]
        at_ms = {column: front.event_ms + idle_ms for column, front in fronts.items() if front.event_ms is not None}
        at_ms = {column: ms for column, ms in at_ms.items() if ms > (fronts[column].heartbeat_ms or ms - 1)}
        if at_ms and latest == self.latest_batch_id:
            self._heartbeats.beat(table, at_ms)
            beaten = {
                name: Front(front.event_ms, at_ms.get(name, front.heartbeat_ms)) for name, front in fronts.items()
            }
            self._fronts = latest, beaten

    def plan(self) -> DataFrame:
        """What is new in the source; with the batch's clock, which a retry repeats."""
        return self._source.stream().withColumn("_ingest_time", F.current_timestamp())

    def process(self, batch: DataFrame, batch_id: int, bounds: BatchBounds) -> LedgerEntry:
        """Parses and judges the batch in one pass, then commits the quarantine, then bronze with the ledger row."""
        if self.latest is None:
            # Only the first batch can be a retry. What bronze has is not read again: its files may be gone by now.
            # Only now: until this batch was planned, another driver may have committed.
            known = self._take_numbers(batch_id)
            if known is not None:
                self.failpoint("result_committed", batch_id)
                return known
        self._source.before_batch(self.epoch)
        decision = self.halts.decision(self.epoch.number, batch_id)
        read = self._source.read(
            PlannedBatch(
                frame=batch,
                bounds=bounds,
                epoch=self.epoch,
                decision=decision,
                known_unreadable=lambda: self._known_unreadable(batch_id) if self.latest is None else {},
                first_seq=self._next_seq,
                kept_before=self._kept_before,
                data_files=self._data_files,
            )
        )
        try:
            self.failpoint("materialised", batch_id)
            self.halts.refuse_broken(read, decision, self.epoch.number, batch_id)
            return self._commit(read, self._ledger(read, bounds, decision), batch_id)
        finally:
            read.close()

    def fix_starts(self) -> bool:
        """Notes what must hold of the source of a new checkpoint, and refuses another one in its place."""
        return self._source.begin(self.epoch)

    def _committed(self, batch_id: int) -> LedgerEntry | None:
        """The ledger row of a batch that bronze has already."""
        found = self.writer("result", self.definition.sink.table).find(self.stamp("result", batch_id, 0))
        return found.ledger if found is not None else None

    def _take_numbers(self, batch_id: int) -> LedgerEntry | None:
        """Finds out which numbers come next in bronze; the ledger row of the batch if it is there already.

        In this order: whoever commits after the first look takes the next transaction number too, and this batch
        conflicts with that, or is skipped; whoever committed before it is found.
        """
        writer = self.writer("result", self.definition.sink.table)
        newest = newest_numbered(self.lake, self.definition.sink.table)
        self._next_seq = newest.next_seq or 0 if newest is not None else 0
        self._txn = None
        if isinstance(newest, ReplayCommit):
            self._txn = newest.txn if newest.writer == writer.txn_app_id else None
        elif newest is not None and (newest.epoch, newest.query_id) == (self.epoch.number, str(self.query.id)):
            # A batch before the newest is given no new number: the table skips it.
            self._txn = newest.txn if newest.batch_id <= batch_id else None
        return self._committed(batch_id)

    def _known_unreadable(self, batch_id: int) -> dict[str, str]:
        """The files that an interrupted attempt at this batch has set aside; they stay where they are."""
        table = beside(self.definition.sink.table, "quarantine")
        if self.writer("quarantine", table).find(self.stamp("quarantine", batch_id, 0)) is None:
            return {}
        mine = (pc.field("_epoch") == self.epoch.number) & (pc.field("_batch_id") == batch_id)
        rows = tables.open_table(self.lake, table).to_pyarrow_dataset()
        found = rows.to_table(columns=["raw", "detail"], filter=mine & (pc.field("reason") == UNREADABLE))
        return {row["raw"]: row["detail"] for row in found.to_pylist()}

    def _ledger(self, batch: Batch, bounds: BatchBounds, decision: Decision) -> LedgerEntry:
        census, shape, unreadable = batch.census, batch.shape(), len(batch.unreadable)
        reasons = dict(sorted(census.reasons.items()))
        for index, rule in enumerate(rules_with(self.definition, "warn")):
            count = census.broken(index)
            if count:
                reasons[f"{WARNING}{rule.name}"] = count
        if unreadable:
            reasons[UNREADABLE] = unreadable
        reasons |= {f"{WARNING}{why}": count for why, count in batch.left_out.items()}
        return LedgerEntry(
            started_ms=bounds.batch_time_ms,
            run=str(self.query.runId),
            terms={
                "read": census.good + census.quarantined + unreadable,
                "on_time": census.good,
                "quarantined": census.quarantined + unreadable,
                "rows": census.good,
                **shape.counts,
            },
            reasons=reasons,
            unknown_fields=shape.unknown_fields,
            nulls=shape.nulls,
            sources=bounds.sources,
            decision_id=decision.decision_id,
        )

    def _commit(self, batch: Batch, ledger: LedgerEntry, batch_id: int) -> LedgerEntry:
        """Commits the quarantine, then bronze; what bronze has of the batch."""
        table, census, size = self.definition.sink.table, batch.census, batch.size
        if ledger["quarantined"]:
            self._commit_quarantine(batch, ledger, batch_id, size)
        for _ in range(_TRIES):
            self.failpoint("numbered", batch_id)
            next_seq = self._next_seq + batch.places.rows
            stamp = self.stamp(
                "result",
                batch_id,
                ledger["rows"],
                ledger=ledger,
                next_seq=next_seq,
                content=census.good_content,
                # Replays count on from the number of the batch before.
                txn=None if self._txn is None or self._txn < batch_id else self._txn + 1,
            )
            change = batch.written(self._next_seq) or Append(
                ingested.for_bronze(batch, self._next_seq, self._kept_before), ledger["rows"], size
            )
            try:
                written = self.writer("result", table).commit(change, stamp)
            except OvertakenError:
                if (known := self._take_numbers(batch_id)) is not None:
                    return known
                continue
            self._next_seq, self._txn = written.next_seq or 0, written.txn
            self.failpoint("result_committed", batch_id)
            return ledger
        raise LedgerError(
            f"pipeline `{self.name}`: replays of its quarantine took the numbers of batch {batch_id} {_TRIES} times in "
            "a row. The batch is not in bronze; it runs again at the next start."
        )

    def _commit_quarantine(self, batch: Batch, ledger: LedgerEntry, batch_id: int, size: int) -> None:
        rows, epoch = ledger["quarantined"], self.epoch.number
        reasons = {reason: count for reason, count in ledger.reasons.items() if not reason.startswith(WARNING)}
        content = batch.census.bad_content(path for path, _ in batch.unreadable)
        stamp = self.stamp("quarantine", batch_id, rows, content=content, reasons=reasons)
        found = ingested.for_quarantine(self.spark, batch, at_ms=ledger.started_ms, epoch=epoch, batch_id=batch_id)
        table = beside(self.definition.sink.table, "quarantine")
        self.writer("quarantine", table).commit(Append(found, rows, size), stamp)
        self.failpoint("quarantine_committed", batch_id)
