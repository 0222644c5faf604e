"""Waits for what was ordered, and says what went wrong instead."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.orders import OrderOutcome
from spark_jobs.control.supervision import pulse, status, terms
from spark_jobs.control.supervision.lease import GONE, LEASE_S, active_supervisor
from spark_jobs.control.supervision.pulse import PipelinePulse, Pulse
from spark_jobs.control.supervision.status import Status
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import TidemarkError

_LOOK_EVERY_S = 0.5


class DeployError(TidemarkError):
    """What was ordered does not run, or did not in time."""


class NoSupervisorError(DeployError):
    """Nobody starts drivers: nothing that was ordered has been tried."""


@dataclass(frozen=True)
class JobNow:
    """A job as its control objects show it.

    Attributes:
        pulse: of the newest term; None where it has not spoken.
        status: by the supervisor; None where none has looked yet.
    """

    pulse: Pulse | None
    status: Status | None

    def pipeline(self, name: str) -> PipelinePulse | None:
        """One pipeline in the driver, if it is there."""
        return self.pulse.pipelines.get(name) if self.pulse else None


def job_now(lake: Lake, job: str) -> JobNow:
    """Reads a job's newest pulse and status."""
    term = terms.records(lake, job).newest_number()
    return JobNow(
        pulse=pulse.pulse_of(lake, job, term) if term else None,
        status=status.records(lake, job).newest()[1],
    )


def failed_generations(lake: Lake) -> dict[str, int]:
    """Pipeline -> generation, of those that have failed for good: deploying them again means another try."""
    found = {}
    for job, desired in orders.all_desired(lake).items():
        now = job_now(lake, job)
        given_up = now.status is not None and now.status.state == "failed"
        for name, order in desired.running.items():
            seen = now.pipeline(name)
            if given_up or (seen is not None and seen.state == "failed" and seen.generation == order.generation):
                found[name] = order.generation
    return found


def given_up(lake: Lake) -> tuple[str, ...]:
    """The jobs that are to run and whose drivers are not started again."""
    found = {job: job_now(lake, job).status for job, desired in orders.all_desired(lake).items() if desired.running}
    return tuple(job for job, status_ in found.items() if status_ is not None and status_.state == "failed")


def await_running(
    lake: Lake,
    ordered: Sequence[OrderOutcome],
    *,
    timeout: timedelta,
    on_progress: Callable[[str], None] = print,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until each pipeline has made its first progress in the generation that was ordered.

    Args:
        lake: where.
        ordered: what a deploy gave.
        timeout: how long, all together.
        on_progress: takes each piece of news.
        sleep: waits so many seconds.

    Raises:
        DeployError: if one fails, its driver does, or time runs out; with the pipeline's error, or else the last lines
            of the driver.
        NoSupervisorError: if there is none that would start a driver.
    """
    deadline = datetime.now(UTC) + timeout
    waiting = {each.pipeline: each for each in ordered}
    since = datetime.now(UTC)
    while waiting:
        for job in dict.fromkeys(each.job for each in waiting.values()):
            now = job_now(lake, job)
            _refuse_failed_driver(lake, job, now, ordered)
            for each in [one for one in waiting.values() if one.job == job]:
                pulse = now.pipeline(each.pipeline)
                if pulse is None or pulse.generation < each.generation:
                    continue
                _refuse_failed(lake, each, pulse)
                if pulse.state == "running" and pulse.progressed_at is not None:
                    on_progress(f"{each.pipeline}: runs (generation {pulse.generation}, driver of job {job})")
                    waiting.pop(each.pipeline)
        if not waiting:
            return
        _refuse_absent_supervisor(lake, since)
        if datetime.now(UTC) > deadline:
            raise DeployError(_overdue(lake, waiting.values(), timeout))
        sleep(_LOOK_EVERY_S)


def await_stopped(
    lake: Lake, ordered: Sequence[OrderOutcome], *, timeout: timedelta, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Waits until no driver runs any of the pipelines.

    Raises:
        DeployError: if time runs out.
    """
    deadline = datetime.now(UTC) + timeout
    while running := [each for each in ordered if _still_runs(lake, each)]:
        if datetime.now(UTC) > deadline:
            names = ", ".join(each.pipeline for each in running)
            raise DeployError(
                f"{names}: still running {_span(timeout)} after the order to stop. The order remains. See "
                f"`{command('status')}`. If no supervisor is active, start one: `{command('supervise')}`."
            )
        sleep(_LOOK_EVERY_S)


def _still_runs(lake: Lake, ordered: OrderOutcome) -> bool:
    now = job_now(lake, ordered.job)
    if now.status is None or now.status.state in ("stopped", "failed") or now.pulse is None or now.pulse.ending:
        return False
    seen = now.pipeline(ordered.pipeline)
    return seen is not None and seen.state not in ("stopped", "failed", "halted")


def _refuse_failed(lake: Lake, each: OrderOutcome, seen: PipelinePulse) -> None:
    # Of a halt about which somebody has decided the driver hears within seconds.
    if seen.state == "failed" or (seen.state == "halted" and halts.standing(lake, each.pipeline) is not None):
        raise DeployError(f"{each.pipeline}: {seen.state}: {seen.error}")


def _refuse_failed_driver(lake: Lake, job: str, now: JobNow, ordered: Iterable[OrderOutcome]) -> None:
    found = now.status
    order = orders.records(lake, job).newest_number()
    if found is not None and found.state == "failed" and found.order == order:
        names = ", ".join(each.pipeline for each in ordered if each.job == job)
        said = "\n".join(f"    {line}" for line in found.last_lines)
        raise DeployError(
            f"{names}: the driver of job {job} has ended {len(found.ends)} times, the last time with "
            f"{found.last_end.cause_in_words if found.last_end else f'exit code {found.exit_code}'}, and is not "
            f"started again. It said last:\n{said}\nFix that, then deploy again."
        )


def _refuse_absent_supervisor(lake: Lake, since: datetime) -> None:
    now = datetime.now(UTC)
    if now - since < timedelta(seconds=2 * LEASE_S):
        return
    active = active_supervisor(lake)
    if active is None or now - active[1] > GONE:
        raise NoSupervisorError(
            f"no supervisor watches {lake.uri}: nothing starts drivers there. The order remains and is followed as "
            f"soon as one does. Start it: `make up`, or `{command('supervise')}`."
        )


def _overdue(lake: Lake, waiting: Iterable[OrderOutcome], timeout: timedelta) -> str:
    lines = []
    for each in waiting:
        now = job_now(lake, each.job)
        seen = now.pipeline(each.pipeline)
        if seen is not None and seen.generation >= each.generation:
            lines.append(f"{each.pipeline}: {seen.state}" + (f": {seen.error}" if seen.error else ""))
        else:
            state = now.status.state if now.status else "not seen by any supervisor"
            said = "".join(f"\n    {line}" for line in now.status.last_lines) if now.status else ""
            lines.append(f"{each.pipeline}: its driver is {state}{said}")
    return f"no progress within {_span(timeout)}; the order remains. " + "\n".join(lines)


def _span(timeout: timedelta) -> str:
    return f"{timeout.total_seconds():.0f} s"


def refuse_deployed(lake: Lake, names: Iterable[str]) -> None:
    """Refuses to run by hand what a living driver runs: the two would take each other's batches.

    Raises:
        DeployError: if a driver runs one of the pipelines.
    """
    wanted = set(names)
    for job in orders.jobs(lake):
        now = job_now(lake, job)
        beat = now.pulse
        if beat is None or beat.ending or datetime.now(UTC) - beat.at > _FRESH:
            continue
        both = sorted(name for name, seen in beat.pipelines.items() if name in wanted and seen.state in _BUSY)
        if both:
            raise DeployError(
                f"pipeline `{both[0]}` is deployed: job {job}'s driver on {beat.host} (process {beat.pid}) runs it. "
                f"Nothing was started. Stop it first: {command('stop', *both)}"
            )


_FRESH = timedelta(seconds=30)
_BUSY = ("starting", "running", "retrying", "stopping")
