"""What a driver does about its pipelines."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.control.desired.orders import Order
from spark_jobs.engine.failures import StoppedError
from spark_jobs.job.steps import Slot, Step, after_failure, steps
from spark_jobs.lake.errors import (
    CheckpointError,
    ConcurrentDriverError,
    LakeUnavailableError,
    LedgerError,
    MissingTableError,
    RepeatedTasksError,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def order(state="running", generation=1):
    return Order(
        state=state, generation=generation, definition="{}", fingerprint="", ordered_at=NOW, ordered_by="a test"
    )


def due(orders, slots, *, ending=False):
    return steps(orders, slots, now=NOW, ending=ending)


def test_what_is_wanted_starts_in_the_order_of_the_orders():
    assert due({"ingest": order(), "reader": order()}, {}) == (Step("start", "ingest"), Step("start", "reader"))


def test_what_runs_as_ordered_is_left_alone():
    assert due({"reader": order()}, {"reader": Slot(1, "running")}) == ()
    assert due({"reader": order()}, {"reader": Slot(1, "stopping")}) == ()


def test_what_is_not_wanted_any_more_stops_and_the_others_go_on():
    slots = {"reader": Slot(1, "running"), "other": Slot(1, "running")}
    assert due({"reader": order("stopped"), "other": order()}, slots) == (Step("stop", "reader"),)


def test_a_new_generation_stops_the_old_one_first_and_then_starts():
    orders = {"reader": order(generation=2)}
    assert due(orders, {"reader": Slot(1, "running")}) == (Step("stop", "reader"),)
    assert due(orders, {"reader": Slot(1, "stopping")}) == ()
    assert due(orders, {"reader": Slot(1, "stopped")}) == (Step("start", "reader"),)


def test_what_has_failed_starts_again_only_in_a_new_generation():
    assert due({"reader": order()}, {"reader": Slot(1, "failed")}) == ()
    assert due({"reader": order(generation=2)}, {"reader": Slot(1, "failed")}) == (Step("start", "reader"),)


# The last one: the clock was put back meanwhile; no pause is so long.
@pytest.mark.parametrize(
    ("seconds", "expected"), [(-1, (Step("start", "reader"),)), (1, ()), (60, ()), (3600, (Step("start", "reader"),))]
)
def test_what_is_tried_again_starts_when_its_pause_is_over(seconds, expected):
    slot = Slot(1, "retrying", NOW + timedelta(seconds=seconds))
    assert due({"reader": order()}, {"reader": slot}) == expected


def test_what_is_halted_starts_again_only_once_somebody_has_decided():
    halted = Slot(1, "halted")
    assert due({"reader": order()}, {"reader": halted}) == ()
    assert due({"reader": order()}, {"reader": replace(halted, decided=True)}) == (Step("start", "reader"),)
    # It takes note of another definition, and halts again at once.
    assert due({"reader": order(generation=2)}, {"reader": halted}) == (Step("start", "reader"),)


def test_a_failed_pipeline_that_is_stopped_is_forgotten():
    for state in ("failed", "retrying", "halted"):
        assert due({"reader": order("stopped")}, {"reader": Slot(1, state)}) == (Step("forget", "reader"),)


def test_a_driver_that_ends_stops_all_and_starts_nothing():
    orders = {"reader": order(), "other": order()}
    assert due(orders, {"reader": Slot(1, "running")}, ending=True) == (Step("stop", "reader"),)


def pauses(error, *, progressed, most=12):
    """How long each try waits, until it is given up."""
    failures, found, at = [], [], NOW
    for _ in range(most):
        failures.append(at)
        again = after_failure(error, failures, now=at, progressed=progressed)
        if again is None:
            return found, "given up"
        found.append((again - at).total_seconds())
        at = again
    return found, "goes on"


@pytest.mark.parametrize("error", [CheckpointError("changed"), LedgerError("unbalanced")])
def test_what_a_person_has_to_mend_is_not_tried_again(error):
    assert pauses(error, progressed=True) == ([], "given up")


@pytest.mark.parametrize("error", [LakeUnavailableError("gone"), RepeatedTasksError("a worker was lost")])
def test_an_unreachable_lake_and_lost_workers_are_awaited_for_ever(error):
    waits, end = pauses(error, progressed=True)
    assert end == "goes on"
    assert waits[:7] == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize(
    ("error", "progressed", "tries"),
    [
        (StoppedError("Spark says no"), True, 5),
        (StoppedError("Spark says no"), False, 2),
        (ConcurrentDriverError("another"), True, 5),
        (MissingTableError("bronze"), False, 3),
    ],
)
def test_what_may_pass_is_tried_a_few_times(error, progressed, tries):
    waits, end = pauses(error, progressed=progressed)
    assert (len(waits), end) == (tries - 1, "given up")


def test_failures_of_long_ago_are_forgotten():
    old = [NOW - timedelta(minutes=11 + minute) for minute in range(9)]
    assert after_failure(StoppedError("no"), [*old, NOW], now=NOW, progressed=True) == NOW + timedelta(seconds=1)
