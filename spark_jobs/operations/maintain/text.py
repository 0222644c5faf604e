"""Maintenance as a person reads it."""

from collections.abc import Sequence

from spark_jobs.lake.commands import command
from spark_jobs.operations.maintain.plan import MaintenanceOutcome, TablePlan
from spark_jobs.operations.words import counted


def plan_text(plan: TablePlan) -> str:
    """What is to be done to a table, in a line or two."""
    if plan.left_alone:
        return f"{plan.table}: {plan.left_alone}"
    if plan.missing:
        return f"{plan.table}: {plan.missing:,} data files are gone: nothing is done to it"
    parts = []
    if plan.abandoned:
        parts.append("built by a rebuild that is over, removed as a whole")
    if plan.to_ledger:
        parts.append(f"{counted(plan.to_ledger, 'commit')} to ops.ledger")
    if plan.groups:
        parts.append(
            f"{sum(plan.groups):,} of {counted(plan.files, 'file')} ({_size(plan.compacted_bytes)}) into "
            f"{len(plan.groups):,}"
        )
    if plan.expired:
        parts.append(f"{counted(plan.expired, 'row')} too old")
    if plan.cut:
        parts.append(f"{plan.cut:,} of {counted(plan.commits, 'commit')} off its log")
    return _lines(plan.table, parts or ["nothing to do"], plan.held_by)


def done_text(done: MaintenanceOutcome) -> str:
    """What was done to a table, in a line or two."""
    parts = []
    if done.abandoned:
        parts.append(f"built by a rebuild that is over, removed ({_size(done.removed_bytes)})")
    if done.to_ledger:
        parts.append(f"{counted(done.to_ledger, 'commit')} in ops.ledger")
    if done.files_before != done.files_after:
        parts.append(f"{done.files_before:,} files are {done.files_after:,}")
    if done.expired:
        parts.append(f"{counted(done.expired, 'old row')} deleted")
    if done.cut:
        parts.append(f"{counted(done.cut, 'object')} of its log removed")
    if done.removed:
        parts.append(f"{counted(done.removed, 'data file')} removed ({_size(done.removed_bytes)})")
    if done.busy:
        parts.append(
            f"{counted(done.busy, 'file')} left for the next time: other writers changed some of them each time"
        )
    if done.problem:
        parts.append(done.problem)
    return _lines(done.table, parts or ["nothing to do"], done.held_by)


def _lines(table: str, parts: Sequence[str], held_by: tuple[str, int] | None) -> str:
    line = f"{table}: {'; '.join(parts)}"
    if held_by is None:
        return line
    reader, version = held_by
    return (
        f"{line}\n  `{reader}` has not read its versions from {version:,} on, so these are kept: run it, or end its "
        f"epoch ({command('reset', reader, '--keep-tables')}, or --empty-tables)"
    )


def _size(number: int) -> str:
    return f"{number / 1e6:,.1f} MB" if number >= 100_000 else f"{number / 1e3:,.1f} kB"
