"""Results of a pipeline from its events, by the same transforms as in the stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.lake.accounting.repaired import LateEvents
from spark_jobs.lake.checkpoints.epochs import bootstrapped
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import commits_between
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.plan.columns import (
    CLOSED,
    COUNTED_UPTO,
    EVENT_COLUMNS,
    FATE,
    GAP,
    HEARTBEAT,
    IN_RESULT,
    INGEST_SEQ,
    JUDGED,
    LOOKED_UP,
    REPLAYED,
    SIDE,
    SOURCE_TABLE,
    TIME,
    VERSION_RANGE,
    WINDOW_END,
    WINDOW_START,
)
from spark_jobs.plan.identity import IDENTITY, OF_OLDER
from spark_jobs.plan.lateness import MISSED
from spark_jobs.plan.operators import Side
from spark_jobs.plan.quarantine import SKIPPED
from spark_jobs.recompute.differences import TableComparison, near
from spark_jobs.recompute.lookup_frames import lookup_frames, with_range_of_batch, with_version_range
from spark_jobs.recompute.lookup_versions import (
    Span,
    VersionRange,
    range_of_batch,
    refuse_lost_versions,
    refuse_made_anew,
    span_of,
    span_of_batches,
    version_ranges,
)
from spark_jobs.recompute.ranges import Range
from spark_jobs.recompute.recorded_batches import NEVER_US, Batches, batches_of
from spark_jobs.recompute.set_aside import as_read_now
from spark_jobs.recompute.target import SourceVersion, Target, numbers_within
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spec import Table
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.branches import Branches
from spark_jobs.transforms.events import project, with_row_steps
from spark_jobs.transforms.identity import matched, with_identity, with_source
from spark_jobs.transforms.late import WHY_SET_ASIDE

_NEVER_US = f"{2**53 * 1000}L"
"""Microseconds since 1970, later than every window; SQL."""


@dataclass(frozen=True)
class Recompute:
    """Computes results of one pipeline over ranges of events.

    Attributes:
        spark: a session.
        target: the pipeline.
        reads: its source tables, as they are read.
        clock_ms: `revised_at` of the rows that are new or differ.
        late_version: of the table of late events, whose rows are left out; None: all events count.
        counts_repaired: whether late events that are repaired count as well.
        replayed: events that are looked up as of other batches than their own, as `LateEvents.replayed`; None: none.
    """

    spark: SparkSession
    target: Target
    reads: Sequence[SourceVersion]
    clock_ms: int
    late_version: int | None = None
    counts_repaired: bool = False
    replayed: pa.Table | None = None
    _spans: list[Span] = field(default_factory=list, init=False, repr=False, compare=False)
    _further: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    @cached_property
    def _eras(self) -> tuple[VersionRange, ...]:
        """Which versions of lookup tables the stream has taken."""
        return version_ranges(self.target)

    @property
    def _lookups(self) -> dict[str, DataFrame]:
        if not self._eras:
            return {}
        # No other versions of lookup tables are read than those that what was asked for needs.
        which = {*self._span.numbers, *self._further}
        # Maintenance cuts a log from below: where the oldest is there, so are the others.
        later = (
            f"Its results stay. A later range can be computed: "
            f"`{command('backfill', self.target.name, '--from', 'BEGIN', '--to', 'END')}`."
        )
        refuse_lost_versions(self.target, self._eras, [min(which)], later)
        refuse_made_anew(self.target, self._eras, which, later)
        return lookup_frames(self.spark, self.target, self._eras, which)

    @property
    def _span(self) -> Span:
        """The version ranges in which the stream has read all that was asked for."""
        return reduce(Span.with_, self._spans)

    def _span_of(self, side: Side, table: Table, read: SourceVersion, times: Sequence[Range]) -> Span:
        whole = Range(min(each.begin_us for each in times), max(each.end_us for each in times))
        opened = open_table(self.target.lake, table.name, version=read.version)
        numbers = numbers_within(opened, side.time_column(table), whole)
        if numbers is None:
            return Span(0, len(self._eras) - 1)
        return span_of(self.target, table.name, self._eras, *numbers)

    def sources(self, times: Sequence[Range]) -> list[DataFrame]:
        """The events of each source table whose time is in one of the ranges; heartbeats are none."""
        sides = [(side, table) for side in self.target.logical.sides for table in side.tables]
        if self._eras:
            self._spans.extend(self._span_of(*of, read, times) for of, read in zip(sides, self.reads, strict=True))
        also = self._decide_about(sides, times) if self.target.operator.recomputation.follows_result else {}
        return [
            self._events(side, table, read, times, also.get(table.name))
            for (side, table), read in zip(sides, self.reads, strict=True)
        ]

    def _decide_about(self, sides: Sequence[tuple[Side, Table]], times: Sequence[Range]) -> dict[str, Column]:
        """Which events beside those of the ranges the stream may have remembered when it read these, table by table.

        They came before them, or in the same batch, and were not so old that the watermark had made them forgotten.
        Their own times may lie anywhere after that.
        """
        whole = Range(min(each.begin_us for each in times), max(each.end_us for each in times))
        known = self._batches
        read_in = []
        for (side, table), read in zip(sides, self.reads, strict=True):
            opened = open_table(self.target.lake, table.name, version=read.version)
            read_in.append(known[table.name].of(numbers_within(opened, side.time_column(table), whole)))
        remembered_us = duration_ms(self.target.operator.recomputation.reach[0]) * 1000
        oldest_us = min(closed_us for closed_us, _ in read_in) - remembered_us
        last_batch = max(batch for _, batch in read_in)
        return {
            table.name: (column(str(side.event_time)) > F.timestamp_micros(F.lit(oldest_us)))
            & (F.col(INGEST_SEQ) < known[table.name].end_of(last_batch))
            for side, table in sides
        }

    @cached_property
    def _batches(self) -> dict[str, Batches]:
        """In which batch the stream has read each event of its source tables."""
        return {table.name: batches_of(self.target, table.name) for table in self.target.logical.reads}

    def _events(
        self, side: Side, table: Table, read: SourceVersion, times: Sequence[Range], also: Column | None = None
    ) -> DataFrame:
        lake = self.target.lake
        bronze = self.spark.read.format("delta").option("versionAsOf", read.version).load(lake.table_path(table.name))
        if read.upto is not None:
            # The stream stands in the middle of a version: it has not seen the files after this one.
            commits = commits_between(lake, table.name, read.version, read.version)
            files = [action["add"]["path"] for _, actions in commits for action in actions if "add" in action]
            if unseen := files[read.upto + 1 :]:
                bronze = bronze.where(~F.col("_metadata.file_name").isin([path.rsplit("/", 1)[-1] for path in unseen]))
        bronze = self._unskipped(bronze, side, table)
        events = project(bronze, table, (*EVENT_COLUMNS, HEARTBEAT)).where(~F.col(HEARTBEAT))
        events = with_source(events, side, table.name)
        if side.event_time is not None:
            inside = _in_ranges(column(side.event_time), times)
            events = events.where(inside if also is None else inside | also)
        if self._eras:
            events = with_version_range(events, self.target, table.name, self._eras, self._span)
        if self.target.logical.table("quarantine") is not None:
            events = self._looked_up_again(events, side, table.name, times)
        if self.target.operator.recomputation.follows_result:
            events = self._in_result(self._with_batch(events, table.name), side, table.name)
        return events if self.late_version is None else self._as_streamed(events, side, table.name)

    def _looked_up_again(self, events: DataFrame, side: Side, table: str, times: Sequence[Range]) -> DataFrame:
        """Events that were replayed, in the version range of the batch as which they were looked up again."""
        replayed = self._replayed_within(times)
        if not replayed.num_rows:
            return events
        eras_of = {
            batch: range_of_batch(self._eras, batch) for batch in pc.unique(replayed["replayed_batch"]).to_pylist()
        }
        self._further.update(eras_of.values() if self._eras else ())
        numbers = pa.array([eras_of[batch] for batch in replayed["replayed_batch"].to_pylist()], pa.int32())
        event = {name: replayed[name] for name in (INGEST_SEQ, SOURCE_TABLE, SIDE, *OF_OLDER)}
        marks = self.spark.createDataFrame(pa.table({**event, "__that_era": numbers}))
        found = matched(events, F.broadcast(marks), side, table)
        if self.target.operator.recomputation.follows_result:
            found = found.withColumn(REPLAYED, F.col("__that_era").isNotNull())
        if self._eras:
            found = found.withColumn(VERSION_RANGE, F.coalesce("__that_era", VERSION_RANGE))
        return found.drop("__that_era")

    def _unskipped(self, bronze: DataFrame, side: Side, table: Table) -> DataFrame:
        """A source table without the events whose batch was skipped, unless a replay has brought them back.

        Before anything is computed of them, which may fail.
        """
        if self._skipped is None:
            return bronze
        return matched(with_source(bronze, side, table.name), self._skipped, side, table.name, how="left_anti")

    @cached_property
    def _skipped(self) -> DataFrame | None:
        """Events that no result may count, as their batch was skipped; None: no batch was."""
        target = self.target
        if target.logical.table("quarantine") is None:
            return None
        aside = self.spark.read.format("delta").load(self._path(target.operator.output.quarantine.name))
        aside = with_identity(aside.where(F.col("reason") == SKIPPED).where(target.epochs.rows))
        if self.replayed is not None and self.replayed.num_rows:
            back = self.spark.createDataFrame(self.replayed.select(list(IDENTITY)))
            same = reduce(lambda left, right: left & right, (aside[n].eqNullSafe(back[n]) for n in IDENTITY))
            aside = aside.join(F.broadcast(back), same, "left_anti")
        return aside.select(INGEST_SEQ, SOURCE_TABLE, SIDE, *OF_OLDER)

    def _replayed_within(self, times: Sequence[Range]) -> pa.Table:
        """Those that may lie in ranges of event time."""
        known = self.replayed
        if known is None or not known.num_rows:
            return pa.table({"replayed_batch": []})
        beyond_us = duration_ms(max(self.target.operator.recomputation.reach)) * 1000
        begin_us, end_us = min(each.begin_us for each in times), max(each.end_us for each in times)
        ends_later = pc.greater_equal(pc.add(known["last_us"], beyond_us), begin_us)
        return known.filter(pc.and_(pc.less(known["first_us"], end_us), ends_later))

    def _with_batch(self, events: DataFrame, table: str) -> DataFrame:
        """The events with `BATCH` and `CLOSED`; one that was replayed came after all that its batch compared."""
        found = self._batches[table].added_to(events)
        if REPLAYED not in events.columns:
            return found
        closed = F.when(F.col(REPLAYED), F.lit(NEVER_US)).otherwise(F.col(CLOSED))
        return found.withColumn(CLOSED, closed).drop(REPLAYED)

    def _in_result(self, events: DataFrame, side: Side, table: str) -> DataFrame:
        """The events with `IN_RESULT`."""
        held = self.comparison.held(self.target.result, "true", [INGEST_SEQ, SOURCE_TABLE, *OF_OLDER])
        found = matched(events, held.withColumn(IN_RESULT, F.lit(True)), side, table)
        return found.withColumn(IN_RESULT, F.coalesce(IN_RESULT, F.lit(False)))

    def _as_streamed(self, events: DataFrame, side: Side, table: str) -> DataFrame:
        """Leaves out what the stream has not counted; an event that is late for some windows gets `JUDGED`."""
        target, lateness = self.target, self.target.operator.lateness
        late = (
            self.spark.read.format("delta")
            .option("versionAsOf", self.late_version)
            .load(self._path(target.operator.output.late.name))
            .where(target.epochs.rows)
            .where(F.col("settled_version").isNull() if self.counts_repaired else F.lit(True))
        )
        why = [F.col("engine_watermark").alias(JUDGED), self._history_upto.alias(COUNTED_UPTO)]
        late = with_identity(late).select(INGEST_SEQ, SOURCE_TABLE, SIDE, *OF_OLDER, *why)
        if target.operator.recomputation.unit.merging:
            return self._with_batch(matched(events, late, side, table, how="left_anti"), table)
        if not lateness.in_windows:
            return matched(events, late, side, table, how="left_anti")
        return matched(events, late, side, table)

    @property
    def _history_upto(self) -> Column:
        """Of a late event, up to where the history has counted it: it has what the stream had read by then."""
        epoch = self.target.epoch
        if epoch.cut_us is None:
            return F.lit(None).cast("timestamp")
        noted = bootstrapped(self.target.lake, epoch)
        cut = F.timestamp_micros(F.lit(epoch.cut_us))
        return cut if noted is None else F.when(F.col("_batch_id") <= noted.last_batch, cut)

    def groups(
        self, events: Sequence[DataFrame], *, only: DataFrame | None = None, to_compare: bool = True
    ) -> DataFrame:
        """What the step gives for events: rows as the table has them, and `FATE` where a `Where` withholds one.

        Args:
            events: of each source table.
            only: windows, or windows and keys, beside which nothing is computed; None: all.
            to_compare: whether they also say which values their measures may have, for `TableComparison.believing`.
        """
        branches = Branches(self.target.logical, self._lookups, to_compare=to_compare)
        found = branches.results(events)
        fate = F.col(FATE) if FATE in found.columns else F.lit(None).cast("tinyint").alias(FATE)
        rows = found.select(*columns_of(branches.transform.written(found).columns), fate)
        return rows if only is None else near(rows, only)

    @cached_property
    def comparison(self) -> TableComparison:
        """What compares its rows with those of a table."""
        return TableComparison(self.spark, self.target, self.clock_ms)

    def _path(self, table: str) -> str:
        return self.target.lake.table_path(table)

    def late(self, known: LateEvents, *, repaired: bool) -> DataFrame:
        """The late events, and those that were replayed, that results count by now or that nothing counts yet.

        Each has `LOOKED_UP`.
        """
        operator, parts = self.target.operator, []
        counted = F.col("settled_version").isNotNull() == repaired
        if known.version is not None:
            late = self._of_epoch(operator.output.late.name, known.version)
            if (last_batch := self.target.last_batch) is not None:
                late = late.where(F.col("_batch_id") <= last_batch)
            parts.append(late.where(counted).withColumn(LOOKED_UP, F.col("_batch_id")))
        if known.replayed.num_rows and known.quarantine_version is not None:
            replayed = self._of_epoch(operator.output.quarantine.name, known.quarantine_version)
            replayed = as_read_now(
                self.spark, self.target, replayed.where(counted & F.col("replayed_batch").isNotNull())
            )
            replayed = replayed.withColumn(LOOKED_UP, F.col("replayed_batch")).drop(*WHY_SET_ASIDE)
            if operator.lateness.in_windows:
                replayed = replayed.withColumn("missed_windows", F.expr(f"CAST(NULL AS {MISSED})"))
            parts.append(replayed)
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)

    def _of_epoch(self, table: str, version: int) -> DataFrame:
        rows = self.spark.read.format("delta").option("versionAsOf", version).load(self._path(table))
        return with_identity(rows).where(self.target.epochs.rows)

    def windows(self, events: DataFrame, name: str) -> DataFrame:
        """Adds all windows that events belong to, after the row steps: a gap may be of a column that these add."""
        operator = self.target.operator
        timed = events.withColumn(TIME, column(str(self.target.pipeline.event_time)))
        if operator.state.gap_of_event is not None:
            timed = timed.withColumn(GAP, F.expr(operator.state.gap_of_event))
        # By a watermark that no window reaches, all of them have passed.
        all_windows = F.expr(operator.lateness.missed(_NEVER_US))
        return timed.withColumn(name, all_windows).drop(TIME, GAP)

    def missed(self, late: DataFrame) -> DataFrame:
        """Late events with what the row steps add; once for each window that they missed, with its bounds."""
        if self._eras:
            first, last = late.agg(F.min(LOOKED_UP), F.max(LOOKED_UP)).collect()[0]
            self._spans.append(span_of_batches(self._eras, first or 0, last or 0))
            late = with_range_of_batch(late, self._eras, self._span)
        steps = with_row_steps(late, self.target.pipeline.row_steps, lookups=self._lookups)
        if not self.target.operator.lateness.in_windows:
            return steps
        steps = self.windows(steps, "__windows")
        # An event that was replayed has missed all of its windows.
        each = steps.select("*", F.explode(F.coalesce("missed_windows", "__windows")).alias("__missed"))
        return each.select("*", *(F.col(f"__missed.{name}").alias(name) for name in (WINDOW_START, WINDOW_END)))

    def changed_by(self, late: DataFrame, *, keyed: bool) -> DataFrame:
        """What the rows have that late events can change: the windows that they missed, and with `keyed` their keys."""
        operator = self.target.operator
        keys = list(operator.recomputation.repair_keys) if keyed else []
        windows = [WINDOW_START, WINDOW_END] if operator.lateness.in_windows else []
        return self.missed(late).select(*columns_of((*windows, *keys))).distinct()


def _in_ranges(time: Column, times: Sequence[Range]) -> Column:
    """Whether a time is in one of the ranges; compared as times, so that files are left out by their statistics."""
    conditions = [
        (time >= F.timestamp_micros(F.lit(each.begin_us))) & (time < F.timestamp_micros(F.lit(each.end_us)))
        for each in times
    ]
    return reduce(lambda left, right: left | right, conditions, F.lit(False))
