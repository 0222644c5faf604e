"""Backfills and repairs in this process: the plan as a person reads it, progress, and what has changed."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.console.running import session
from spark_jobs.console.tasks import showing_tasks
from spark_jobs.control.batch_reports import BatchReport
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.execute import Done
from spark_jobs.operations.backfill.plan import BackfillPlan, Slice
from spark_jobs.operations.repair import execute as repair
from spark_jobs.operations.repair.plan import RepairPlan
from spark_jobs.recompute.ranges import EPOCH, shown
from spark_jobs.recompute.target import Read, Target

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def backfill_text(plan: BackfillPlan) -> str:
    """A plan in lines."""
    return "\n".join(_backfill_lines(plan))


def _backfill_lines(plan: BackfillPlan) -> Iterator[str]:
    yield f"backfill of {plan.pipeline}, {plan.mode}: {shown(plan.begin_us)} to {shown(plan.end_us)} UTC"
    for notice in plan.notices:
        yield f"notice   {notice}"
    if not plan.slices:
        yield f"nothing to do: {plan.nothing_to_do}"
        return
    for conflict in plan.conflicts:
        yield f"conflict {conflict}; another program did that: --force replaces its rows by what the events give"
    yield from reads_text(plan.reads)
    yield f"late     {counted(plan.late, 'late event')} in the range, {plan.unsettled:,} not counted in a result yet"
    for part in plan.slices:
        what = f"nothing to do: {part.nothing_to_do}" if part.nothing_to_do else f"computes and compares {plan.table}"
        yield f"slice {part.number:<3}{shown(part.begin_us)} to {shown(part.end_us)}: {what}"


def compared_text(plan: BackfillPlan, rows: int, windows: int | None) -> str:
    """How much of the result may be replaced, in a line."""
    of = "" if windows is None else f" of {counted(windows, 'window')}"
    return f"replaces among {counted(rows, 'row')}{of} in {plan.table} those that differ; missing ones are added"


def repair_text(plan: RepairPlan) -> str:
    """A plan in lines."""
    lines = [f"repair of {plan.pipeline}: {counted(plan.late, 'late or replayed event')} not counted in a result yet"]
    if plan.nothing_to_do:
        lines.append(f"nothing to do: {plan.nothing_to_do}")
        return "\n".join(lines)
    lines += [f"events   {shown(begin)} to {shown(end)}" for begin, end in plan.times[:10]]
    lines += [f"         and {len(plan.times) - 10:,} more ranges"] if len(plan.times) > 10 else []
    return "\n".join([*lines, *reads_text(plan.reads)])


def reads_text(reads: Sequence[Read]) -> Iterator[str]:
    """What is read, a line for each table."""
    for read in reads:
        rows = "an unknown number of rows" if read.rows is None else counted(read.rows, "row")
        yield f"reads    {read.table}, version {read.version}: at most {rows}, {_size(read.bytes)}"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(size: float) -> str:
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError


def done_text(table: str, done: Done) -> str:
    """What has changed, in a line."""
    changed = done.changed
    if changed.rows:
        what = (
            f"{table}: {counted(changed.inserted, 'row')} added, {changed.updated:,} revised, "
            f"{changed.deleted:,} deleted in version {changed.version}"
        )
    else:
        what = f"{table}: every row is as it should be, nothing was written"
    for number, outcome in ((done.settled, "settled"), (done.unsettled, "not counted any more")):
        if number > done.replayed:
            what += f"; {counted(number - done.replayed, 'late event')} {outcome}"
        if number and done.replayed:
            what += f"; {counted(done.replayed, 'replayed event')} {outcome}"
    return f"{what} ({done.seconds:.1f} s)"


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
