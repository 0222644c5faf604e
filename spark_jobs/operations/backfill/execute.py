"""Computes the results of a range of event time again, and puts right what differs."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.accounting.repaired import LateEvents, those_of
from spark_jobs.lake.commit_records.basis import SupersededError
from spark_jobs.lake.commit_records.revisions import Revision
from spark_jobs.lake.errors import ConflictError
from spark_jobs.operations.backfill.plan import BackfillPlan, BackfillsPlan, Slice
from spark_jobs.operations.backfill.text import done_text
from spark_jobs.operations.reports import BatchReport
from spark_jobs.operations.shape import Say
from spark_jobs.plan.tables import TableRef
from spark_jobs.recompute.frames import Recompute
from spark_jobs.recompute.ranges import EPOCH, Range
from spark_jobs.recompute.revising import ChangeCount, RevisionOutcome, revise
from spark_jobs.recompute.session_clusters import SessionClusters, starting_in
from spark_jobs.recompute.target import Target
from spark_jobs.spec.durations import duration_ms

_TRIES = 5
"""So often a slice is computed, while other runs revise the same rows."""

OnProgress = Callable[[Slice, "RevisionOutcome | None"], None]


def execute(
    spark: SparkSession, target: Target, plan: BackfillPlan, *, on_progress: OnProgress = lambda *_: None
) -> list[RevisionOutcome]:
    """Executes a plan, slice by slice; each slice changes each table in one commit, or not at all.

    What was committed before an interruption stays; the same backfill, run again, passes over it where nothing of it
    is left to be done.

    Args:
        spark: a session.
        target: the pipeline, as the plan was made for.
        plan: what to do.
        on_progress: called before and after each slice.
    """
    done = []
    for part in plan.slices:
        if part.nothing_to_do:
            continue
        on_progress(part, None)
        done.append(_execute_beside_others(spark, target, plan, part))
        on_progress(part, done[-1])
    return done


def _execute_beside_others(spark: SparkSession, target: Target, plan: BackfillPlan, part: Slice) -> RevisionOutcome:
    """Where another run has revised the results since the plan was made, it is computed from what is there now."""

    def attempt(number: int) -> RevisionOutcome:
        if not number:
            target.refuse_revised()
            return _execute(spark, target, plan, part)
        if plan.kind == "bootstrap":
            target.look()  # it computes from what was there at its cut
            return _execute(spark, target, plan, part)
        now = Target(target.lake, target.pipeline, force=target.force)
        # Of a newer epoch it would close windows, by the plan's watermark, that the stream there gives once more.
        target.basis.refuse_outdated(target.lake)
        late = now.late()  # before the sources: each late event is in them
        versions = {
            "late_version": late.version if late else None,
            "quarantine_version": late.quarantine_version if late else None,
        }
        times = Range(min(each.begin_us for each in plan.slices), max(each.end_us for each in plan.slices))
        before, after = (duration_ms(each) * 1000 for each in now.operator.recomputation.reach)
        reads = now.reads(plan.mode, Range(times.begin_us - before, times.end_us + after))
        return _execute(spark, now, plan.model_copy(update={**versions, "reads": reads}), part)

    return until_not_superseded(attempt, f"{plan.run} of `{target.name}`", target.result)


def until_not_superseded(attempt: Callable[[int], RevisionOutcome], who: str, table: str) -> RevisionOutcome:
    """Tries until no other run revises the same results meanwhile.

    Args:
        attempt: one try; it gets its number, from 0.
        who: tries, for the error.
        table: the result.

    Raises:
        ConflictError: if another run was faster each time.
    """
    other = ""
    for number in range(_TRIES):
        try:
            return attempt(number)
        except SupersededError as error:
            other = error.run
    raise ConflictError(
        f"{who}: other runs revised {table} at the same time, {_TRIES} times in a row, the last one {other}. Nothing "
        "of it was written here. Run the same command again."
    )


def _execute(spark: SparkSession, target: Target, plan: BackfillPlan, part: Slice) -> RevisionOutcome:
    operator = target.operator
    began = time.time()
    clock_ms = round(began * 1000)
    counts_late = plan.mode == "corrected"
    late = target.late_of(plan)
    left_out = None if counts_late else plan.late_version
    # As streamed, an event that was replayed has no key yet.
    replayed = late.replayed if late is not None and counts_late else None
    recompute = Recompute(spark, target, plan.reads, clock_ms, left_out, replayed=replayed)
    clusters = None
    if operator.recomputation.unit.merging:
        clusters = starting_in(recompute, Range(part.begin_us, part.end_us), plan.watermark_ms)
        groups, where = clusters.groups, clusters.where
    else:
        before, after = operator.recomputation.reach
        times = Range(part.begin_us - duration_ms(before) * 1000, part.end_us + duration_ms(after) * 1000)
        again = operator.recomputation
        where = f"{again.placed_in((part.begin_us, part.end_us))} AND {again.closed(plan.watermark_ms)}"
        groups = recompute.groups(recompute.sources([times])).where(where)
    revision = Revision(
        pipeline=target.name,
        epoch=plan.epoch,
        run=plan.run,
        number=part.number,
        role="result",
        mode=plan.mode,
        begin_us=part.begin_us,
        end_us=part.end_us,
        late_version=plan.late_version,
    )
    entry = LedgerEntry(
        kind=plan.kind,
        run=plan.run,
        started_ms=clock_ms,
        watermark_ms=plan.watermark_ms,
        reads={read.table: (0, read.version + 1) for read in plan.reads},
    )
    try:
        if late is not None and late.events.num_rows and not counts_late:
            late = target.take_out()  # others may have marked some since the plan was made
        marked = None if late is None else _marked(recompute, plan, part, late, clusters)
        target.basis.refuse_outdated(target.lake)
        if marked is not None and not counts_late:
            # Before the result: what dies in between leaves events that are open and counted, which the next run of
            # either kind puts right. Events that are marked as repaired and not counted would be lost to it.
            target.mark_repaired(marked, None)
        only, whole = clusters.rows if clusters else None, Range(part.begin_us, part.end_us)
        changed = revise_tables(recompute, groups, where, revision, entry, only=only, whole=whole)
    finally:
        if clusters is not None:
            clusters.release()
    if marked is None:
        return RevisionOutcome(changed, seconds=time.time() - began)
    if counts_late:
        target.mark_repaired(marked, changed.version)
    count, replayed, seconds = marked.num_rows, replayed_of(marked), time.time() - began
    repaired, taken_out = (count, 0) if counts_late else (0, count)
    return RevisionOutcome(changed, repaired, taken_out, replayed, seconds)


def replayed_of(events: pa.Table) -> int:
    """How many of the events were looked up again."""
    return int(events.num_rows - events["replayed_batch"].null_count)


def _marked(
    recompute: Recompute, plan: BackfillPlan, part: Slice, late: LateEvents, clusters: SessionClusters | None
) -> pa.Table:
    """The late events that are counted from now on, or not any more."""
    if not late.events.num_rows:
        return late.events
    if clusters is not None:
        rows = recompute.late(late, repaired=plan.mode == "as-streamed")
        return those_of(late.events, clusters.events(recompute.missed(rows)))
    within = late.within(part.begin_us, part.end_us)
    if plan.mode != "corrected":
        return within.filter(within["repaired"])
    # Only events all of whose windows are in the slice, and that were known when the sources were looked at.
    whole = pc.and_(pc.greater_equal(within["first_us"], part.begin_us), pc.less(within["last_us"], part.end_us))
    return within.filter(pc.and_(whole, pc.invert(within["repaired"])))


def revise_tables(
    recompute: Recompute,
    groups: DataFrame,
    where: str,
    revision: Revision,
    entry: LedgerEntry,
    *,
    only: DataFrame | None = None,
    whole: Range | None = None,
) -> ChangeCount:
    """Puts right the groups of a live ranking, if there are, then the result.

    Args:
        recompute: of the pipeline.
        groups: as they should be.
        where: which rows are compared; SQL.
        revision: what the commits say of themselves.
        entry: of the ledger.
        only: as `TableComparison.difference`.
        whole: as `revise`.
    """
    target, comparison = recompute.target, recompute.comparison
    operator = target.operator
    computed = groups.persist()
    believed = comparison.believing(computed, where, only=only).persist()
    try:

        def put_right(table: TableRef, rows: DataFrame) -> ChangeCount:
            compute = partial(comparison.difference, table.name, rows, where, operator.output.row_keys, only=only)
            return revise(target, table, compute, revision.model_copy(update={"role": table.role}), entry, whole=whole)

        kept = target.logical.table("groups")
        if kept is not None:
            put_right(kept, comparison.groups(believed))
        return put_right(target.logical.result, comparison.results(believed))
    finally:
        believed.unpersist()
        computed.unpersist()


def carry_out(spark: SparkSession, target: Target, plan: BackfillPlan, say: Say) -> BatchReport:
    """Executes a plan, and says what each slice has changed.

    Returns:
        What they have changed together.
    """

    def on_progress(part: Slice, done: RevisionOutcome | None) -> None:
        if done is not None:
            where = f"slice {part.number + 1} of {len(plan.slices)}: " if len(plan.slices) > 1 else ""
            say(where + done_text(plan.table, done))

    return report_of(
        plan.pipeline, plan.table, plan.watermark_ms, execute(spark, target, plan, on_progress=on_progress)
    )


def carry_out_all(spark: SparkSession, plan: BackfillsPlan, say: Say) -> list[BatchReport]:
    """Executes the plans of several pipelines, one after the other; those that have something to do.

    Returns:
        What each has changed.
    """
    return [carry_out(spark, target, each, say) for target, each in plan.planned]


def report_of(pipeline: str, table: str, watermark_ms: int, done: Sequence[RevisionOutcome]) -> BatchReport:
    """What slices, or a repair, have changed together."""
    return BatchReport(
        pipeline=pipeline,
        table=table,
        version=max((each.changed.version for each in done if each.changed.rows), default=None),
        watermark=EPOCH + timedelta(milliseconds=watermark_ms) if watermark_ms > 0 else None,
        inserted=sum(each.changed.inserted for each in done),
        updated=sum(each.changed.updated for each in done),
        deleted=sum(each.changed.deleted for each in done),
        repaired=sum(each.repaired for each in done),
        taken_out=sum(each.taken_out for each in done),
    )
