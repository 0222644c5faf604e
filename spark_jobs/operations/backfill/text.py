"""A backfill as a person reads it: its plan, and what it has changed."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spark_jobs.operations.backfill.plan import BackfillPlan, BackfillsPlan
from spark_jobs.operations.reports import BatchReport
from spark_jobs.operations.words import counted, reads_text
from spark_jobs.recompute.ranges import shown

if TYPE_CHECKING:
    from spark_jobs.recompute.revising import RevisionOutcome


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
    yield f"late     {counted(plan.late, 'late event')} in the range, {plan.unrepaired:,} not counted in a result yet"
    for part in plan.slices:
        what = f"nothing to do: {part.nothing_to_do}" if part.nothing_to_do else f"computes and compares {plan.table}"
        yield f"slice {part.number:<3}{shown(part.begin_us)} to {shown(part.end_us)}: {what}"


def compared_text(plan: BackfillPlan, rows: int, windows: int | None) -> str:
    """How much of the result may be replaced, in a line."""
    of = "" if windows is None else f" of {counted(windows, 'window')}"
    return f"replaces among {counted(rows, 'row')}{of} in {plan.table} those that differ; missing ones are added"


def done_text(table: str, done: "RevisionOutcome") -> str:
    """What has changed, in a line."""
    changed = done.changed
    if changed.rows:
        what = (
            f"{table}: {counted(changed.inserted, 'row')} added, {changed.updated:,} revised, "
            f"{changed.deleted:,} deleted in version {changed.version}"
        )
    else:
        what = f"{table}: every row is as it should be, nothing was written"
    for number, outcome in ((done.repaired, "repaired"), (done.taken_out, "not counted any more")):
        if number > done.replayed:
            what += f"; {counted(number - done.replayed, 'late event')} {outcome}"
        if number and done.replayed:
            what += f"; {counted(done.replayed, 'replayed event')} {outcome}"
    return f"{what} ({done.seconds:.1f} s)"


def summary(plan: BackfillsPlan, reports: Sequence[BatchReport]) -> str:
    """What backfills of several pipelines have come to, a line for each."""
    changed = {each.pipeline: each for each in reports}
    lines = [f"backfill of {counted(len(plan.backfills), 'pipeline')}:"]
    lines += [f"  {each.pipeline}: {_came_to(each, changed.get(each.pipeline))}" for _, each in plan.backfills]
    return "\n".join(lines)


def _came_to(plan: BackfillPlan, report: BatchReport | None) -> str:
    if report is None:
        return f"nothing to do: {plan.nothing_to_do}"
    if not report.rows:
        return f"every row of {report.table} is as it should be"
    told = f"{counted(report.rows, 'row')} of {report.table} put right"
    return f"{told}, {counted(report.repaired, 'late event')} repaired" if report.repaired else told
