"""Quarantines as a person reads them, and replays in this process."""

from collections.abc import Iterator, Mapping

from rich.console import Console

from spark_jobs.console.batch import repaired
from spark_jobs.console.running import session
from spark_jobs.console.tasks import showing_tasks
from spark_jobs.control.batch_reports import BatchReport
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.lake.tables.quarantine import described
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay.execute import Done, ReplayRun, begin
from spark_jobs.operations.replay.lookup import LookedUp, execute
from spark_jobs.operations.replay.lookup_plan import LookupPlan
from spark_jobs.operations.replay.plan import ReplayPlan, plan_replay
from spark_jobs.plan.quarantine import NOT_AGAIN
from spark_jobs.recompute.ranges import shown
from spark_jobs.spec import Definition


def replay_text(plan: ReplayPlan) -> str:
    """A plan in lines."""
    return "\n".join(_plan_lines(plan))


def _plan_lines(plan: ReplayPlan) -> Iterator[str]:
    name, selection = plan.ingest.name, plan.selection
    since = f", set aside from {shown(selection.since_us)} UTC on" if selection.since_us is not None else ""
    until = f", before {shown(selection.until_us)} UTC" if selection.until_us is not None else ""
    yield f"replay of {name}: {_rows(plan.found.rows)} of its quarantine, version {plan.found.version}{since}{until}"
    if plan.unfinished is not None:
        one, at = plan.unfinished, f"{plan.unfinished.opened_at:%Y-%m-%d %H:%M:%S}"
        yield f"first    {one.run}, begun by {one.by} at {at} UTC, is carried out to its end"
    yield from (f"reads    {reason}: {_rows(rows)}" for reason, rows in plan.found.reasons.items())
    yield from (
        f"keeps    {reason}: {_rows(rows)}; {NOT_AGAIN[why]}" for (reason, why), rows in plan.found.left.items()
    )


def done_text(done: Done) -> str:
    """What a replay has done, in lines."""
    if done.given_up:
        return f"{done.run}: given up. The ingest was reset meanwhile, which takes its rows away or reads them again."
    lines = [
        f"{done.run}: {_rows(sum(done.replayed.values()))} to bronze and out of the quarantine ({done.seconds:.1f} s)"
    ]
    lines += _listed("replayed", done.replayed)
    lines += _listed("failed again, and stays", done.kept)
    lines += _listed("goes to bronze with a warning", done.warned)
    return "\n".join(lines)


def lookup_text(plan: LookupPlan) -> str:
    """What a replay of a pipeline's quarantine will do, in lines."""
    name, found = plan.target.name, plan.found
    versions = ", ".join(f"{table} version {version}" for table, version in plan.versions.items())
    lines = [
        f"replay of {name}: {_rows(found.rows)} of its quarantine, version {found.version}, looked up in {versions}"
    ]
    lines += [
        f"notice   {table} is at version {version} by now, which no batch of the stream has taken yet: to look events "
        "up in it, replay again after the next batch"
        for table, version in plan.newer.items()
    ]
    if found.unfinished:
        lines.append(f"notice   {_rows(found.unfinished)} of a batch that has not ended are left out")
    if plan.uncounted:
        lines.append(f"counts   {_rows(plan.uncounted)} that a replay before this one has found")
    if plan.nothing_to_do:
        lines.append(f"nothing to look up: {plan.nothing_to_do}")
    return "\n".join(lines)


def looked_up_text(done: LookedUp) -> str:
    """What became of the events, in lines."""
    lines = [f"{done.run}: {_rows(done.replayed)} out of the quarantine, found by now"]
    if done.kept:
        lines.append(f"  the table still has no such key, stays: {_rows(done.kept)}")
    if done.open:
        lines.append(f"  a window of theirs is still open in the stream, stays: {_rows(done.open)}; replay again later")
    return "\n".join(lines)


def _listed(what: str, reasons: Mapping[str, int]) -> list[str]:
    return [f"  {what}: {described(reasons)}"] if reasons else []


def _rows(number: int) -> str:
    return f"{number:,} {'row' if number == 1 else 'rows'}"


def run_replay(
    out: Console, err: Console, lake: Lake, definition: Definition, plan: ReplayPlan, *, by: str, comment: str
) -> BatchReport:
    """Carries out what has begun before, then a plan; tells what each has done."""
    with session(lake, err, about=(definition,)) as spark:
        done = []
        if (unfinished := open_replay(lake, definition.name)) is not None:
            done.append(_executed(out, ReplayRun(spark, lake, plan.ingest, unfinished)))
            # What it has taken out of the quarantine is not there any more.
            plan = plan_replay(lake, definition, plan.selection, after_another=True)
        if plan.found.rows:
            replay = begin(lake, plan, by=by, comment=comment)
            done.append(_executed(out, ReplayRun(spark, lake, plan.ingest, replay)))
    inserted = sum(sum(each.replayed.values()) for each in done)
    version = max((each.version for each in done if each.version is not None), default=None)
    return BatchReport(pipeline=definition.name, table=definition.sink.table, version=version, inserted=inserted)


def run_lookup(out: Console, err: Console, plan: LookupPlan, *, by: str, comment: str) -> BatchReport:
    """Looks events up again, then counts those that were found, and all others that wait for a repair."""
    target = plan.target
    with (
        session(target.lake, err, about=(target.pipeline,)) as spark,
        showing_tasks(spark, err, f"replay of {target.name}"),
    ):
        if not plan.nothing_to_do:
            done = execute(spark, plan, by=by, comment=comment)
            out.print(looked_up_text(done), highlight=False, markup=False, soft_wrap=True)
        target, repair = plan_repair(target.lake, target.pipeline)
        if repair.nothing_to_do:
            return BatchReport(pipeline=target.name, table=target.result, version=None)
        return repaired(out, spark, target, repair)


def _executed(out: Console, run: ReplayRun) -> Done:
    done = run.execute()
    out.print(done_text(done), highlight=False, markup=False, soft_wrap=True)
    return done
