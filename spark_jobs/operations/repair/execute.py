"""Counts late events after all, and replayed ones: computes again only the results that they can change."""

import time

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.accounting.repaired import those_of
from spark_jobs.lake.commit_records.history import latest_version
from spark_jobs.lake.commit_records.revisions import Revision
from spark_jobs.operations.backfill.execute import replayed_of, report_of, revise_tables, until_not_superseded
from spark_jobs.operations.backfill.text import done_text
from spark_jobs.operations.repair.plan import RepairPlan, plan_repair, ready_of, times_of
from spark_jobs.operations.reports import BatchReport
from spark_jobs.operations.shape import Say
from spark_jobs.plan.columns import WINDOW_END
from spark_jobs.recompute.frames import Recompute
from spark_jobs.recompute.ranges import Range
from spark_jobs.recompute.revising import ChangeCount, RevisionOutcome
from spark_jobs.recompute.session_clusters import holding
from spark_jobs.recompute.target import Target
from spark_jobs.spec.names import first_of, in_spark


def execute(spark: SparkSession, target: Target, plan: RepairPlan) -> RevisionOutcome:
    """Executes a repair: the results change in one commit, then the late events are marked.

    Where another run has revised the results since the plan was made, it is planned again.
    """

    def attempt(number: int) -> RevisionOutcome:
        if not number:
            return _execute(spark, target, plan)
        now, again = plan_repair(target.lake, target.pipeline, force=target.force)
        if again.nothing_to_do:
            return RevisionOutcome(ChangeCount(0, 0, 0, 0, latest_version(now.lake, now.result)))
        return _execute(spark, now, again)

    return until_not_superseded(attempt, f"{plan.run} of `{target.name}`", target.result)


def _execute(spark: SparkSession, target: Target, plan: RepairPlan) -> RevisionOutcome:
    operator = target.operator
    began = time.time()
    clock_ms = round(began * 1000)
    known = target.late_of(plan)
    if known is None:
        raise TypeError(f"{plan.run}: expected a plan with late events")
    recompute = Recompute(spark, target, plan.reads, clock_ms, replayed=known.replayed)
    late = recompute.late(known, repaired=False)
    times = [Range(begin, end) for begin, end in plan.times]
    if operator.recomputation.unit.merging:
        missed = recompute.missed(late)
        clusters = holding(recompute, missed, times, plan.watermark_ms)
        near, groups, where = clusters.rows, clusters.groups, clusters.where
        ready = those_of(known.unrepaired, clusters.events(missed))
    else:
        near = recompute.changed_by(late, keyed=operator.recomputation.by_key).persist()
        ready = ready_of(target, known)
        where = _where(target, near, ready)
        groups = recompute.groups(recompute.sources(times), only=near).where(where)
    try:
        revision = Revision(
            pipeline=target.name,
            epoch=plan.epoch,
            run=plan.run,
            role="result",
            begin_us=times[0].begin_us,
            end_us=times[-1].end_us,
            late_version=plan.late_version,
        )
        entry = LedgerEntry(
            kind="repair",
            run=plan.run,
            started_ms=clock_ms,
            watermark_ms=plan.watermark_ms,
            reads={read.table: (0, read.version + 1) for read in plan.reads},
        )
        changed = revise_tables(recompute, groups, where, revision, entry, only=near)
    finally:
        near.unpersist()
    target.mark_repaired(ready, changed.version)
    return RevisionOutcome(changed, repaired=ready.num_rows, replayed=replayed_of(ready), seconds=time.time() - began)


def _where(target: Target, near: DataFrame, ready: pa.Table) -> str:
    """Which rows of the result are compared; SQL."""
    if target.operator.lateness.in_windows:
        ends = near.agg(F.min(F.unix_micros(WINDOW_END)), F.max(F.unix_micros(WINDOW_END))).collect()[0]
        return f"{WINDOW_END} BETWEEN timestamp_micros({ends[0]}L) AND timestamp_micros({ends[1]}L)"
    placed = f"unix_micros({first_of(target.operator.recomputation.placed_by, in_spark)})"
    ranges = (f"({placed} >= {begin}L AND {placed} < {end}L)" for begin, end in times_of(target, ready, None))
    return " OR ".join(ranges)


def carry_out(spark: SparkSession, target: Target, plan: RepairPlan, say: Say) -> BatchReport:
    """Executes a plan, and says what it has changed."""
    done = execute(spark, target, plan)
    say(f"{plan.pipeline}: {done_text(plan.table, done)}")
    return report_of(plan.pipeline, plan.table, plan.watermark_ms, [done])
