"""What a supervisor does about one job: a function of what it sees. No clock, no process, no lake."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from spark_jobs.control.supervision.status import End, Status
from spark_jobs.lake.errors import LakeUnavailableError

HUNG_S = 60.0
"""A driver that gives no sign of life for so long, or in which Spark gives none, is killed."""

DRAIN = timedelta(minutes=2)
"""How long a driver may take for its last batches before it is killed."""

BUDGET = 5
"""A driver that ends so often within `WINDOW` is not started again until somebody orders something, or another
supervisor, which may have more memory or a fixed environment, is the active one."""

WINDOW = timedelta(minutes=10)

_REMEMBERED = timedelta(hours=1)
_LONGEST_PAUSE_S = 60.0

Action = Literal["start", "kill"]


@dataclass(frozen=True)
class JobState:
    """What a supervisor sees of a job.

    Attributes:
        now: the time.
        order: number of the newest desired state.
        wanted: whether a pipeline of the job is to run.
        alive: whether a driver of the newest term lives.
        spoke: whether that driver has given a sign of life.
        silent_s: for how long the driver has given no sign of life, at most as long as it has been watched; or Spark in
            it.
        term: the newest term.
        drained: whether the driver said that it ended as it was asked to.
        exit_code: of the driver, where it has ended and this supervisor saw it.
        last_lines: of its log, where it has ended.
        cause: why it has.
        host: on which it ran.
        log: its file; None on another host.
        supervisor: who sees this.
    """

    now: datetime
    order: int
    wanted: bool
    alive: bool
    spoke: bool = False
    silent_s: float = 0.0
    term: int = 0
    drained: bool = False
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    cause: str = ""
    host: str = ""
    log: str | None = None
    supervisor: str = ""


def decide(seen: JobState, before: Status) -> tuple[Action | None, Status]:
    """What to do, and the job's status from then on.

    Args:
        seen: the job now.
        before: its status so far.
    """
    return _about_a_driver(seen, before) if seen.alive else _without_a_driver(seen, before)


def _about_a_driver(seen: JobState, before: Status) -> tuple[Action | None, Status]:
    if not seen.wanted:
        after = _become(before, "draining", seen)
        return ("kill" if seen.now - after.since > DRAIN else None), after
    after = _become(before, "running" if seen.spoke else "starting", seen)
    return ("kill" if seen.silent_s > HUNG_S else None), after


def _without_a_driver(seen: JobState, before: Status) -> tuple[Action | None, Status]:
    before = _with_end(seen, before)
    if not seen.wanted:
        return None, _become(before, "stopped", seen)
    given_up = before.state == "failed"
    if seen.order != before.order or (given_up and seen.supervisor != before.supervisor):
        before = before.model_copy(update={"ends": (), "next_start_at": None})
    elif given_up:
        return None, before
    # One that lies ahead was noted by a clock that goes wrong: it would put off the next start by as much.
    recent = [end for end in before.ends if timedelta(0) <= seen.now - end < WINDOW]
    # A lake that is unreachable comes back, however long it takes.
    if len(recent) >= BUDGET and before.exit_code != LakeUnavailableError.exit_code:
        return None, _become(before, "failed", seen)
    if recent:
        pause_s = min(2.0 ** (len(recent) - 1), _LONGEST_PAUSE_S)
        start_at = recent[-1] + timedelta(seconds=pause_s)
        if seen.now < start_at:
            return None, _become(before, "backing_off", seen, next_start_at=start_at)
    return "start", _become(before, "starting", seen)


def _with_end(seen: JobState, before: Status) -> Status:
    """Remembers that a driver has ended, once: an unplanned end counts against the budget."""
    if before.state not in ("starting", "running", "draining"):
        return before
    asked_for = seen.drained or before.state == "draining"
    ends, last = before.ends, before.last_end
    if not asked_for:
        ends = (*ends, seen.now)
        last = End(
            at=seen.now, term=seen.term, host=seen.host, exit_code=seen.exit_code, cause=seen.cause, log=seen.log
        )
    return before.model_copy(
        update={
            "ends": tuple(end for end in ends if seen.now - end < _REMEMBERED),
            "last_end": last,
            "exit_code": seen.exit_code,
            "last_lines": seen.last_lines,
            "state": "stopped",
        }
    )


def _become(
    before: Status,
    state: Literal["starting", "running", "draining", "backing_off", "failed", "stopped"],
    seen: JobState,
    *,
    next_start_at: datetime | None = None,
) -> Status:
    changes: dict[str, object] = {
        "state": state,
        "order": seen.order,
        "term": seen.term,
        "next_start_at": next_start_at,
    }
    if state != before.state:
        changes["since"] = seen.now
    return before.model_copy(update=changes)
