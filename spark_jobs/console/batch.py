"""Backfills and repairs in this process: the plan as a person reads it, progress, and what has changed."""

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.console.running import session
from spark_jobs.console.tasks import showing_tasks
from spark_jobs.control.batch_reports import BatchReport
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.execute import Done
from spark_jobs.operations.backfill.plan import BackfillPlan, Slice
from spark_jobs.operations.backfill.text import done_text
from spark_jobs.operations.repair import execute as repair
from spark_jobs.operations.repair.plan import RepairPlan
from spark_jobs.recompute.ranges import EPOCH
from spark_jobs.recompute.target import Target


def run_backfill(out: Console, err: Console, target: Target, plan: BackfillPlan) -> BatchReport:
    """Executes a plan and says what each slice has changed; what they have changed together."""

    def tell(part: Slice, done: Done | None) -> None:
        if done is not None:
            where = f"slice {part.number + 1} of {len(plan.slices)}: " if len(plan.slices) > 1 else ""
            out.print(where + done_text(plan.table, done), highlight=False, soft_wrap=True)

    about = (target.pipeline,)
    with (
        session(target.lake, err, about=about) as spark,
        showing_tasks(spark, err, f"{plan.kind} of {plan.pipeline}"),
    ):
        return _report(plan, backfill.execute(spark, target, plan, tell=tell))


def run_repairs(out: Console, err: Console, planned: list[tuple[Target, RepairPlan]]) -> list[BatchReport]:
    """Executes plans, one after the other, and says what each has changed."""
    reports = []
    with session(planned[0][0].lake, err, about=[target.pipeline for target, _ in planned]) as spark:
        for target, plan in planned:
            with showing_tasks(spark, err, f"repair of {plan.pipeline}"):
                reports.append(repaired(out, spark, target, plan))
    return reports


def repaired(out: Console, spark: SparkSession, target: Target, plan: RepairPlan) -> BatchReport:
    """Executes a plan, and says what it has changed."""
    done = repair.execute(spark, target, plan)
    out.print(f"{plan.pipeline}: {done_text(plan.table, done)}", highlight=False, soft_wrap=True)
    return _report(plan, [done])


def _report(plan: BackfillPlan | RepairPlan, done: Sequence[Done]) -> BatchReport:
    return BatchReport(
        pipeline=plan.pipeline,
        table=plan.table,
        version=max((each.changed.version for each in done if each.changed.rows), default=None),
        watermark=EPOCH + timedelta(milliseconds=plan.watermark_ms) if plan.watermark_ms > 0 else None,
        inserted=sum(each.changed.inserted for each in done),
        updated=sum(each.changed.updated for each in done),
        deleted=sum(each.changed.deleted for each in done),
        settled=sum(each.settled for each in done),
        unsettled=sum(each.unsettled for each in done),
    )
