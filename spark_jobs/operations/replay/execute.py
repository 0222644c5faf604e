"""Reads rows of an ingest's quarantine again: those that pass by now go to bronze, once, and leave the quarantine.

What is to be read is noted before anything is written. Bronze gets its rows first, then the quarantine gives them up.
Which those are is taken from bronze itself: so a replay that was interrupted in between is carried out to its end by
the next one, whatever the rules are by then (docs/decisions/0024).
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_jobs.commits.changes import Remove
from spark_jobs.commits.large import LargeCommits
from spark_jobs.commits.merging import CommitId
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING, LedgerEntry
from spark_jobs.lake.accounting.ledger_compaction import compact_ledger_now_and_then
from spark_jobs.lake.accounting.replays import Replay, commits_of, open_replay, records
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.checkpoints.lineage import lineage
from spark_jobs.lake.checkpoints.spark_log import query_id
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.basis import LAST_TXN_VERSION
from spark_jobs.lake.commit_records.conflicts import cannot_commit, is_of_others
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.commit_records.history import actions_at, info_of, latest_version, newest_numbered
from spark_jobs.lake.commit_records.replay_commits import ReplayCommit, decode_replay
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.store.records import RecordTakenError
from spark_jobs.lake.tables.appends import append
from spark_jobs.lake.tables.decisions import decisions_of, note
from spark_jobs.lake.tables.opening import open_table, prune_log_checkpoints
from spark_jobs.lake.tables.quarantine import (
    table_of,
    why_not,
)
from spark_jobs.operations.replay.outcome import ReplayOutcome
from spark_jobs.operations.replay.plan import ReplayPlan, ReplayRefusedError, plan_replay
from spark_jobs.operations.replay.skipped import fault_of
from spark_jobs.operations.replay.text import done_text
from spark_jobs.operations.reports import BatchReport
from spark_jobs.operations.shape import Say
from spark_jobs.spark.frames import fetch
from spark_jobs.spark.session import lenient_session
from spark_jobs.spec import Definition, Ingest
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.transforms.again import INDEX, PASSES, for_bronze, read_again
from spark_jobs.transforms.rows import broken, rules_with

SLICE_ROWS = 100_000
"""So many rows of the quarantine go to bronze in one commit, which is held in memory."""

_TRIES = 20
_KEYS = ("reason", "_ingest_time", "_source", "_epoch", "_batch_id")
_SLICE = "__slice"

Failpoint = Callable[[str, int], None]
"""Told of each point that was reached, with the number of the slice; tests make it fail there."""


def begin(lake: Lake, plan: ReplayPlan, *, by: str, comment: str = "", slice_rows: int = SLICE_ROWS) -> Replay:
    """Notes what a plan will do, and who decided it, before it is done.

    Raises:
        ReplayRefusedError: if another replay has begun at the same moment.
    """
    replay = Replay(
        pipeline=plan.ingest.name,
        run=f"replay-{uuid.uuid4().hex[:12]}",
        epoch=plan.epoch.number,
        version=plan.found.version,
        table_id=plan.table_id,
        selection=plan.selection,
        rows=plan.found.rows,
        slice_rows=slice_rows,
        by=by,
        comment=comment,
        opened_at=datetime.now(UTC),
    )
    kept = records(lake, plan.ingest.name)
    number, newest = kept.newest()
    try:
        if newest is not None and newest.state == "open":
            raise RecordTakenError
        kept.append(number + 1, replay)
    except RecordTakenError:
        raise ReplayRefusedError(
            f"ingest `{plan.ingest.name}`: another replay of its quarantine has begun meanwhile. Nothing was replayed "
            "here. Run the same command again: it carries the other one out to its end, if need be, and then its own."
        ) from None
    return replay


class ReplayRun:
    """Carries out a replay, or the rest of one.

    Args:
        spark: the session.
        lake: where.
        ingest: as it is now.
        replay: what was noted.
        failpoint: told of each point.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, ingest: Ingest, replay: Replay, failpoint: Failpoint = lambda *_: None
    ) -> None:
        # As the stream: what a rule cannot compute is null.
        self._spark = lenient_session(spark)
        self._lake = lake
        self._ingest = ingest
        self._replay = replay
        self._failpoint = failpoint
        self._bronze, self._quarantine = ingest.sink.table, table_of(lake, ingest)
        self._began = time.time()

    def execute(self) -> ReplayOutcome:
        """Does what is left to do. It may be repeated, also by two processes at once."""
        replay = self._replay
        self._note_decision()
        self._failpoint("opened", 0)
        epoch = current_epoch(self._lake, replay.pipeline)
        is_current = epoch is not None and epoch.number == replay.epoch
        quarantine = str(open_table(self._lake, self._quarantine).metadata().id)
        if replay.table_id not in (None, quarantine):
            # Another one of its name: its versions are others.
            self._end("given up")
            return ReplayOutcome(replay.run, replay.rows, {}, {}, {}, None, time.time() - self._began, given_up=True)
        if not is_current and (epoch is None or epoch.tables_emptied or not self._committed()):
            # What it was about is gone, or is read again.
            self._end("given up")
            return ReplayOutcome(replay.run, replay.rows, {}, {}, {}, None, time.time() - self._began, given_up=True)
        rows = self._selected().persist()
        try:
            if (found := rows.count()) != replay.rows:
                raise LedgerError(
                    f"{replay.run} of `{replay.pipeline}`: version {replay.version} of {self._quarantine} had "
                    f"{replay.rows:,} rows of this kind when they were counted, and has {found:,} now. Nothing was "
                    "written here."
                )
            warned = self._passed_on(rows, epoch) if is_current and epoch is not None else {}
            out = self._out_of_quarantine(rows)
            read = self._by_reason(rows)
        finally:
            rows.unpersist()
        self._end("ended")
        kept = {reason: count - out.get(reason, 0) for reason, count in read.items()}
        return ReplayOutcome(
            run=replay.run,
            rows=replay.rows,
            replayed=out,
            kept={reason: count for reason, count in kept.items() if count},
            warned=warned,
            version=self._newest_version(),
            seconds=time.time() - self._began,
        )

    def _note_decision(self) -> None:
        replay = self._replay
        if any(row["decision_id"] == replay.run for row in decisions_of(self._lake, replay.pipeline)):
            return
        reasons = f", {' or '.join(replay.selection.reasons)}" if replay.selection.reasons else ""
        note(
            self._lake,
            pipeline=replay.pipeline,
            action="replay",
            decided_by=replay.by,
            subject=f"{replay.rows:,} rows of {self._quarantine}, version {replay.version}{reasons}",
            decision_id=replay.run,
            comment=replay.comment,
        )

    def _end(self, state: Literal["ended", "given up"]) -> None:
        kept = records(self._lake, self._replay.pipeline)
        number, newest = kept.newest()
        if newest is None or newest.run != self._replay.run or newest.state != "open":
            return
        try:
            kept.append(number + 1, newest.model_copy(update={"state": state}))
        except RecordTakenError:
            return  # another process has carried it out, too

    def _selected(self) -> DataFrame:
        """The rows that are read again, each with its place among them: the same at each repetition."""
        selection, path = self._replay.selection, self._lake.table_path(self._quarantine)
        whole = self._spark.read.format("delta").option("versionAsOf", self._replay.version).load(path)
        epochs = lineage(self._lake, self._replay.pipeline, self._replay.epoch)
        why = why_not(self._ingest, None if selection.earlier_epochs else epochs)
        rows = whole.where(F.expr(f"({why}) IS NULL AND {selection.sql('unix_micros')}"))
        if selection.reasons:
            rows = rows.where(F.col("reason").isin(list(selection.reasons)))
        place = ("_epoch", "_batch_id", "_source.name", "_source.partition", "_source.position", "reason", "raw")
        return rows.withColumn(INDEX, F.row_number().over(Window.orderBy(*place)).cast("bigint") - 1)

    def _by_reason(self, rows: DataFrame) -> dict[str, int]:
        return {row["reason"]: row["count"] for row in rows.groupBy("reason").count().collect()}

    def _passed_on(self, rows: DataFrame, epoch: Epoch) -> Mapping[str, int]:
        """As `_to_bronze`; rows at which a rule still fails are a refusal."""
        try:
            return self._to_bronze(rows, epoch)
        except Exception as error:
            words = fault_of(self._ingest, error)
            if words is None:
                raise
            raise ReplayRefusedError(
                f"ingest `{self._replay.pipeline}`: rows of its quarantine still cannot be computed: {words}. They "
                f"stay where they are, and {self._replay.run} stays open: mend the rule, then run the same command "
                "again, which carries it out to its end."
            ) from error

    def _to_bronze(self, rows: DataFrame, epoch: Epoch) -> Mapping[str, int]:
        """Appends the rows that pass, slice by slice; rule -> rows that break one that only warns."""
        size, warn = self._replay.slice_rows, rules_with(self._ingest, "warn")
        again = read_again(rows, self._ingest).withColumn(_SLICE, F.expr(f"{INDEX} div {size}")).persist()
        try:
            warns = [F.count(F.when(F.col(PASSES) & broken(rule), 1)).alias(str(i)) for i, rule in enumerate(warn)]
            counts = again.groupBy(_SLICE).agg(
                F.count(F.lit(1)).alias("rows"), F.count(F.when(F.col(PASSES), 1)).alias("passed"), *warns
            )
            warned: Counter[str] = Counter()
            for row in sorted(counts.collect(), key=lambda each: int(each[_SLICE])):
                number, passed = int(row[_SLICE]), int(row["passed"])
                found = {rule.name: int(row[str(i)]) for i, rule in enumerate(warn) if row[str(i)]}
                warned.update(found)
                entry = LedgerEntry(
                    kind="replay",
                    run=self._replay.run,
                    started_ms=round(self._began * 1000),
                    reads={self._quarantine: (0, self._replay.version + 1)},
                    terms={"selected": int(row["rows"]), "replayed": passed, "kept": int(row["rows"]) - passed},
                    reasons={f"{WARNING}{name}": count for name, count in found.items()},
                )
                good = again.where(F.col(PASSES) & (F.col(_SLICE) == number)) if passed else again.limit(0)
                self._append(good, number, entry, epoch)
            return warned
        finally:
            again.unpersist()

    def _append(self, good: DataFrame, number: int, entry: LedgerEntry, epoch: Epoch) -> None:
        """One slice, with the numbers that come next in bronze.

        A batch of the stream that has taken the same numbers must not be committed after it, nor this after such a
        batch. So both count on the stream's own transaction id: who comes second conflicts, or is skipped, and takes
        other numbers.
        """
        replay, lake, table = self._replay, self._lake, self._bronze
        writer = f"{replay.pipeline}/{table}/{query_id(lake, epoch.folder)}/{epoch.number}"
        base = number * replay.slice_rows
        content: pa.Table | None = None
        for _ in range(_TRIES):
            opened = open_table(lake, table)
            before = opened.version()
            if (known := opened.transaction_version(replay.run)) is not None and known >= number:
                return
            self._refuse_new_columns(pa.schema(opened.schema().to_arrow()).names)
            content = self._content(good, base) if content is None else content
            last = opened.transaction_version(writer)
            if last == LAST_TXN_VERSION:
                raise ReplayRefusedError(
                    f"{replay.run} of `{replay.pipeline}`: the ingest was reset meanwhile. Rows that are not in "
                    "bronze yet are not replayed. Run the same command again to close this replay."
                )
            newest = newest_numbered(lake, table)
            first = newest.next_seq or 0 if newest is not None else 0
            txn = 0 if last is None else last + 1
            stamp = ReplayCommit(
                pipeline=replay.pipeline,
                epoch=replay.epoch,
                run=replay.run,
                number=number,
                role="result",
                rows=entry["replayed"],
                first_index=base,
                writer=writer,
                txn=txn,
                first_seq=first,
                next_seq=first + entry["selected"],
                ledger=entry,
            )
            self._failpoint("numbered", number)
            properties = CommitProperties(
                custom_metadata={"userMetadata": stamp.encode()},
                app_transactions=[Transaction(replay.run, number), Transaction(writer, txn)],
            )
            schema = pa.schema(opened.schema().to_arrow())
            try:
                append(lake, table, opened, _fitted(_numbered(content, first), schema), properties)
            except CommitFailedError as error:
                if not is_of_others(error):
                    raise cannot_commit(table, error, f"Nothing of part {number} was written to it.") from error
                continue  # a batch, or another process that carries out the same replay, was first
            self._verify(table, before, "result", number, "num_added_rows", entry["replayed"])
            self._failpoint("result_committed", number)
            return
        raise ReplayRefusedError(
            f"{replay.run} of `{replay.pipeline}`: other commits to {table} were first, {_TRIES} times in a row. Run "
            "the same command again: it goes on where this one has ended."
        )

    def _refuse_new_columns(self, present: Sequence[str]) -> None:
        """Values of columns that bronze does not have yet would be lost."""
        if lacking := sorted(self._ingest.payload.keys() - set(present)):
            name = self._ingest.name
            raise ReplayRefusedError(
                f"ingest `{name}`: {self._bronze} does not have {', '.join(lacking)} of its definition yet. The replay "
                f"waits. Start the ingest once, `{command('run', name)}` or `{command('deploy', name)}`, then run the "
                "same command again."
            )

    def _content(self, good: DataFrame, base: int) -> pa.Table:
        clock: Column = F.timestamp_millis(F.lit(round(self._began * 1000)))
        return fetch(for_bronze(good, self._ingest, clock, F.col(INDEX) - F.lit(base)).coalesce(1))

    def _verify(self, table: str, before: int, role: str, number: int, metric: str, rows: int) -> None:
        """Looks for a commit in the table's own log, and forces it to the disk."""
        for version in range(before + 1, latest_version(self._lake, table) + 1):
            info = info_of(actions_at(self._lake, table, version) or [])
            stamp = decode_replay(info)
            if stamp is None or (stamp.run, stamp.role, stamp.number) != (self._replay.run, role, number):
                continue
            force_commit(self._lake, table, version)
            prune_log_checkpoints(self._lake, table, version)
            compact_ledger_now_and_then(self._lake, table, version)
            written = int(info.get("operationMetrics", {}).get(metric, 0))
            if written != rows:
                raise LedgerError(
                    f"table {table}: {self._replay.run} expected {rows:,} rows written or removed, found "
                    f"{written:,} in version {version}. Run: {command('ledger', self._replay.pipeline)}"
                )
            return
        raise LedgerError(f"table {table}: {self._replay.run} was committed, but no version has it.")

    def _committed(self) -> list[ReplayCommit]:
        """What bronze has of this replay."""
        return [
            each
            for _, each in commits_of(self._lake, self._bronze, self._replay.pipeline)
            if each.run == self._replay.run
        ]

    def _newest_version(self) -> int | None:
        """The version of bronze that had the last of this replay's rows, or a later one; None: none went there."""
        return latest_version(self._lake, self._bronze) if any(each.rows for each in self._committed()) else None

    def _out_of_quarantine(self, rows: DataFrame) -> dict[str, int]:
        """Takes away the rows that bronze has by this replay; reason -> how many these are."""
        parts = [each for each in self._committed() if each.rows and each.first_seq is not None]
        if not parts:
            return {}
        seq, index = F.col("_ingest_seq"), F.lit(None).cast("bigint")
        for each in parts:
            within = seq.between(F.lit(each.first_seq), F.lit((each.next_seq or 0) - 1))
            index = F.when(within, seq - F.lit(each.first_seq) + F.lit(each.first_index)).otherwise(index)
        bronze = self._spark.read.format("delta").load(self._lake.table_path(self._bronze))
        low, high = min(each.first_seq or 0 for each in parts), max(each.next_seq or 0 for each in parts)
        there = bronze.where((seq >= low) & (seq < high)).select(index.alias(INDEX)).where(F.col(INDEX).isNotNull())
        gone = rows.join(there, INDEX, "left_semi").select(*_KEYS).persist()
        try:
            counts = gone.groupBy("_epoch", "reason").count().collect()
            expected, released, reasons = sum(each.rows for each in parts), Counter[int](), Counter[str]()
            for row in counts:
                released[row["_epoch"]] += row["count"]
                reasons[row["reason"]] += row["count"]
            if reasons.total() != expected:
                raise LedgerError(
                    f"{self._replay.run} of `{self._replay.pipeline}`: {expected:,} rows went to {self._bronze}, and "
                    f"{reasons.total():,} of those that were read are there. Nothing was taken out of "
                    f"{self._quarantine}. Run: {command('ledger', self._replay.pipeline)}"
                )
            self._remove(gone, expected, released)
        finally:
            gone.unpersist()
        return dict(reasons)

    def _remove(self, gone: DataFrame, rows: int, released: Mapping[int, int]) -> None:
        if open_table(self._lake, self._quarantine).transaction_version(self._replay.run) is not None:
            return
        stamp = ReplayCommit(
            pipeline=self._replay.pipeline,
            epoch=self._replay.epoch,
            run=self._replay.run,
            role="quarantine",
            rows=rows,
            released=released,
        )
        before = latest_version(self._lake, self._quarantine)
        self._failpoint("releasing", 0)
        change, commit_id = Remove(gone, rows, _KEYS), CommitId(self._replay.run, 0)
        LargeCommits(self._lake, self._quarantine).commit(change, commit_id, stamp.encode())
        self._verify(self._quarantine, before, "quarantine", 0, "numTargetRowsDeleted", rows)
        self._failpoint("quarantine_committed", 0)


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of bronze; fields that the ingest does not keep any more are null."""
    for field in schema:
        if field.name == UNKNOWN_FIELDS and field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    return rows.select(schema.names).cast(schema)


def _numbered(content: pa.Table, first: int) -> pa.Table:
    """The rows with the numbers of the table instead of those of the slice."""
    import pyarrow.compute as pc

    place = content.schema.get_field_index("_ingest_seq")
    return content.set_column(place, "_ingest_seq", pc.add(content.column(place), pa.scalar(first, pa.int64())))


def carry_out(
    spark: SparkSession, lake: Lake, definition: Definition, plan: ReplayPlan, say: Say, *, by: str, comment: str
) -> BatchReport:
    """Carries out what has begun before, then a plan; says what each has done."""
    done = []
    if (unfinished := open_replay(lake, definition.name)) is not None:
        done.append(ReplayRun(spark, lake, plan.ingest, unfinished).execute())
        say(done_text(done[-1]))
        # What it has taken out of the quarantine is not there any more.
        plan = plan_replay(lake, definition, plan.selection, after_another=True)
    if plan.found.rows:
        replay = begin(lake, plan, by=by, comment=comment)
        done.append(ReplayRun(spark, lake, plan.ingest, replay).execute())
        say(done_text(done[-1]))
    inserted = sum(sum(each.replayed.values()) for each in done)
    version = max((each.version for each in done if each.version is not None), default=None)
    return BatchReport(pipeline=definition.name, table=definition.sink.table, version=version, inserted=inserted)
