"""Decides how a halted pipeline goes on, and waits until a driver that runs it has carried that out."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import DeployError, job_now
from spark_jobs.control.desired.orders import Order
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING, LedgerEntry
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.halts import Halt
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import newest_ledger_rows
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.operations.resume.plan import ResumePlan
from spark_jobs.operations.shape import Say

_LOOK_EVERY_S = 0.5


def carry_out(lake: Lake, plan: ResumePlan, say: Say, *, by: str, comment: str, timeout: timedelta) -> None:
    """Decides as a plan says, and waits until it is carried out where the pipeline is deployed.

    Args:
        lake: where.
        plan: the halt that a person has seen, and what becomes of it.
        say: is told what was decided, and each piece of news.
        by: the person.
        comment: why.
        timeout: how long to wait.

    Raises:
        NotHaltedError: if the pipeline is halted at something else by now.
        HaltedError: if the batch breaks a rule again.
        DeployError: if the pipeline fails, or time runs out; the decision remains.
    """
    decided = halts.decide(lake, plan.pipeline, plan.choice, by=by, comment=comment, expected=plan.halt)
    say(f"{plan.pipeline}: `{plan.choice}` for {decided.subject} is decided, by {decided.decided_by}")
    await_carried_out(lake, decided, timeout=timeout, on_progress=say)


def await_carried_out(
    lake: Lake,
    decided: Halt,
    *,
    timeout: timedelta,
    on_progress: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until the batch is committed; where nobody has deployed the pipeline, says that the next run does it.

    Args:
        lake: where.
        decided: the decision.
        timeout: how long.
        on_progress: takes each piece of news.
        sleep: waits so many seconds.

    Raises:
        HaltedError: if the batch breaks a rule again.
        DeployError: if the pipeline fails, or time runs out; the decision remains.
    """
    name = decided.pipeline
    deployed = _deployed(lake, name)
    if deployed is None:
        on_progress(
            f"{name} is not deployed: the next run carries it out (`{command('run', name)}`, or "
            f"`{command('deploy', name)}`)"
        )
        return
    if not timeout:
        on_progress(f"{name}: its driver carries it out within seconds; see `{command('status')}`")
        return
    job, order = deployed
    deadline = datetime.now(UTC) + timeout
    while (entry := _entry(lake, decided, order)) is None:
        if (again := halts.standing(lake, name)) is not None:
            raise again.error()
        pulse = job_now(lake, job).pipeline(name)
        if pulse is not None and pulse.state == "failed":
            raise DeployError(f"{name}: failed: {pulse.error}. The decision remains.")
        if datetime.now(UTC) > deadline:
            raise DeployError(
                f"{name}: {decided.subject} is not committed {timeout.total_seconds():.0f} s after the decision, which "
                f"remains. See `{command('status')}`. If no supervisor is active, start one: `{command('supervise')}`."
            )
        sleep(_LOOK_EVERY_S)
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in entry.reasons.items() if not reason.startswith(WARNING))
    aside = f", {entry['quarantined']:,} set aside ({reasons})" if reasons else ""
    on_progress(f"{name}: {decided.subject} is committed: {entry['read']:,} read, {entry['rows']:,} written{aside}")


def _deployed(lake: Lake, name: str) -> tuple[str, Order] | None:
    running = ((job, desired.running) for job, desired in orders.all_desired(lake).items())
    return next(((job, wanted[name]) for job, wanted in running if name in wanted), None)


def _entry(lake: Lake, decided: Halt, order: Order) -> LedgerEntry | None:
    """The ledger's row of the batch; None: it is not committed yet."""
    try:
        rows = newest_ledger_rows(lake, order.parsed().sink.table, decided.pipeline, decided.epoch, 20)
    except MissingTableError:
        return None
    return next((row for batch_id, row in rows if batch_id >= decided.batch_id), None)
