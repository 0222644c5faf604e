"""What a driver does about its pipelines: functions of what is wanted and what runs. No clock, no Spark, no lake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from spark_jobs.control.desired.orders import Order
from spark_jobs.control.supervision.pulse import State
from spark_jobs.engine.failures import StoppedError
from spark_jobs.lake.errors import (
    ConcurrentDriverError,
    LakeUnavailableError,
    MissingTableError,
    TidemarkError,
)

WINDOW = timedelta(minutes=10)

_LONGEST_PAUSE_S = 60.0

# Whose error may pass by itself, and how often it may come within the window before a person has to look.
_TRIES: tuple[tuple[type[TidemarkError], int], ...] = (
    (ConcurrentDriverError, 5),
    (MissingTableError, 3),
)
_TRIES_OF_THE_UNKNOWN = 5
_TRIES_BEFORE_THE_FIRST_PROGRESS = 2


@dataclass(frozen=True)
class Slot:
    """One pipeline in a driver.

    Attributes:
        generation: that it follows.
        state: what it does.
        next_try_at: `retrying`: when it starts again.
        decided: `halted`: whether somebody has decided how it goes on.
    """

    generation: int
    state: State
    next_try_at: datetime | None = None
    decided: bool = False


@dataclass(frozen=True)
class Step:
    """Something to do about one pipeline; `forget` takes note that one which does not run is not wanted any more."""

    action: Literal["start", "stop", "forget"]
    pipeline: str


def steps(orders: Mapping[str, Order], slots: Mapping[str, Slot], *, now: datetime, ending: bool) -> tuple[Step, ...]:
    """What is to be done, in order: what ends first, then ingests before their readers as they were ordered.

    Args:
        orders: what is wanted of each pipeline.
        slots: what each does.
        now: the time.
        ending: whether the driver is to end: then nothing starts any more.
    """
    wanted = {} if ending else {name: order for name, order in orders.items() if order.state == "running"}
    due = []
    for name, slot in slots.items():
        order = wanted.get(name)
        outdated = order is None or order.generation != slot.generation
        if outdated and slot.state in ("starting", "running"):
            due.append(Step("stop", name))
        elif order is None and slot.state in ("retrying", "failed", "halted") and not ending:
            due.append(Step("forget", name))
    return (*due, *(Step("start", name) for name, order in wanted.items() if _starts(order, slots.get(name), now)))


def _starts(order: Order, slot: Slot | None, now: datetime) -> bool:
    if slot is None or slot.state == "stopped":
        return True
    # One that is halted refuses to start, but what it is to run once somebody has decided is the new generation.
    if slot.state in ("retrying", "failed", "halted") and slot.generation != order.generation:
        return True
    if slot.state == "halted":
        return slot.decided
    if slot.state != "retrying" or slot.next_try_at is None:
        return False
    # A try that lies further ahead than any pause does: the clock was put back.
    return not timedelta(0) < slot.next_try_at - now <= timedelta(seconds=_LONGEST_PAUSE_S)


def after_failure(
    error: TidemarkError, failures: Sequence[datetime], *, now: datetime, progressed: bool
) -> datetime | None:
    """When a pipeline that failed starts again; None: not before somebody deploys it again.

    Args:
        error: what stopped it.
        failures: when it failed before and now, in order.
        now: the time.
        progressed: whether it has ever made progress since it was deployed, or on its checkpoint before.
    """
    recent = sum(now - failure < WINDOW for failure in failures)
    pause = timedelta(seconds=min(2.0 ** max(0, recent - 1), _LONGEST_PAUSE_S))
    # A lake that is unreachable comes back, and so do workers, however long it takes; the monitor reports it meanwhile.
    if error.exit_code == LakeUnavailableError.exit_code:
        return now + pause
    tries = next((count for kind, count in _TRIES if isinstance(error, kind)), None)
    if tries is None and not isinstance(error, StoppedError):
        return None  # it says what a person has to fix
    if tries is None:
        tries = _TRIES_OF_THE_UNKNOWN if progressed else _TRIES_BEFORE_THE_FIRST_PROGRESS
    return now + pause if recent < tries else None
