"""Replays as a person reads them: their plans, and what became of the rows."""

from collections.abc import Iterator, Mapping

from spark_jobs.lake.tables.quarantine import described
from spark_jobs.operations.replay.lookup_plan import LookupPlan
from spark_jobs.operations.replay.outcome import LookupOutcome, ReplayOutcome
from spark_jobs.operations.replay.plan import ReplayPlan
from spark_jobs.operations.words import counted
from spark_jobs.plan.quarantine import NOT_AGAIN
from spark_jobs.recompute.ranges import shown


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


def done_text(done: ReplayOutcome) -> str:
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
    of_skipped = f", {_rows(found.skipped)} of skipped batches" if found.skipped else ""
    looked_up = f", looked up in {versions}" if versions else ""
    lines = [f"replay of {name}: {_rows(found.rows)} of its quarantine, version {found.version}{of_skipped}{looked_up}"]
    lines += [f"notice   {each}" for each in plan.notices]
    if plan.uncounted:
        lines.append(f"counts   {_rows(plan.uncounted)} that a replay before this one has found")
    if plan.nothing_to_do:
        lines.append(f"nothing to replay: {plan.nothing_to_do}")
    return "\n".join(lines)


def looked_up_text(done: LookupOutcome) -> str:
    """What became of the events, in lines."""
    lines = [f"{done.run}: {_rows(done.replayed)} out of the quarantine"]
    if done.kept:
        lines.append(f"  the table still has no such key, stays: {_rows(done.kept)}")
    if done.open:
        lines.append(f"  a window of theirs is still open in the stream, stays: {_rows(done.open)}; replay again later")
    return "\n".join(lines)


def _listed(what: str, reasons: Mapping[str, int]) -> list[str]:
    return [f"  {what}: {described(reasons)}"] if reasons else []


def _rows(number: int) -> str:
    return counted(number, "row")
