"""How many rows a batch gives at most, as its pipeline's plan says before it runs."""

from __future__ import annotations

import pytest

from spark_jobs.plan.logical import build
from spark_jobs.spec import (
    Aggregate,
    Calendar,
    Counting,
    Deduplicate,
    Hopping,
    Pipeline,
    Session,
    Sink,
    Table,
    Tumbling,
    Watermark,
    Where,
    Window,
)
from spark_jobs.spec.steps import StepSpec

READ, IN_STATE = 10, 100


def most_rows(*steps: StepSpec, mode: str = "append") -> int | None:
    update = {"late": "update", "grace": "5 minutes"} if mode == "update" else {}
    watermark = Watermark(delay="1 minute", **update)
    definition = Pipeline(
        name="p",
        source=Table("bronze.clicks"),
        event_time="t",
        watermark=watermark if any(not isinstance(step, Where) for step in steps) else None,
        steps=steps,
        sink=Sink("gold.p", mode=mode),
    )
    return build(definition).operator.output.most_rows(READ, IN_STATE)


def a_count(window: Window) -> Aggregate:
    return Aggregate(window=window, by=("k",), measures={"n": "count(*)"})


@pytest.mark.parametrize(
    ("window", "windows_of_an_event"),
    [
        (Tumbling("1 hour"), 1),
        (Hopping("1 hour", "15 minutes"), 4),
        # An event at 0:59 is in those that begin at 0:07, 0:14, … 0:56, one at 1:03 in one more.
        (Hopping("1 hour", "7 minutes"), 9),
        (Session("1 hour"), 1),
        (Calendar("day", tz="Europe/Berlin"), 1),
    ],
)
def test_groups_that_close_may_be_of_each_event_read_or_remembered(window: Window, windows_of_an_event: int) -> None:
    assert most_rows(a_count(window)) == (READ + IN_STATE) * windows_of_an_event


def test_groups_of_first_events_are_those_of_events() -> None:
    assert most_rows(Deduplicate("k", within="1 hour"), a_count(Hopping("1 hour", "30 minutes"))) == 220


def test_groups_that_are_updated_are_those_of_the_events_that_are_read() -> None:
    assert most_rows(a_count(Hopping("1 hour", "7 minutes")), mode="update") == READ * 9


def test_an_event_gives_one_row_whatever_is_remembered() -> None:
    assert most_rows(Where("k > 0")) == READ
    assert most_rows(Deduplicate("k", within="1 hour")) == READ


def test_nothing_tells_of_steps_whose_state_has_many_events_in_a_row() -> None:
    assert most_rows(Counting(3, by=("k",), measures={"n": "count(*)"})) is None
