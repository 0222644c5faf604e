"""Whether guests of the café have their drink within five minutes, and at that mark those who have none.

It follows a visit as it is told, step by step. A guest without a drink after five minutes has a row then, and a second
one when the drink comes after all. The time of a row of bronze is its newest step, up to the drink: a row that tells of
the payment says nothing new, and is late by that time. A visit that is told as a whole has one row.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from tidemark import Conservation, NotNull, Pipeline, Process, Processor, Row, Sink, State, Table, Timers, Watermark

PROMISE = timedelta(minutes=5)

VISITS = Table(
    "bronze.visits",
    select={
        "visit_id": "visit_id",
        "guest_id": "guest_id",
        "drink": "drink",
        "seated_at": "seated_at",
        "served_at": "served_at",
        "told_at": "coalesce(served_at, ordered_at, seated_at)",
    },
)


class Service(Processor):
    """Waits for the drink of a visit, with a timer at the five-minute mark."""

    output: ClassVar = {
        "guest_id": "STRING",
        "seated_at": "TIMESTAMP",
        "drink": "STRING",
        "minutes": "DOUBLE",
        "in_time": "BOOLEAN",
        "is_complete": "BOOLEAN",
    }
    state: ClassVar = {"guest_id": "STRING", "seated_at": "TIMESTAMP", "drink": "STRING", "is_served": "BOOLEAN"}

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> Iterator[Row]:
        if state["is_served"]:
            return
        seated_at, served_at = event["seated_at"], event["served_at"]
        is_new = state["seated_at"] is None
        state.update(guest_id=event["guest_id"], seated_at=seated_at, drink=event["drink"] or state["drink"])
        if served_at is not None:
            waited = served_at - seated_at
            timers.cancel("promise")
            state["is_served"] = True
            yield self._row(state, minutes=waited / timedelta(minutes=1), in_time=waited <= PROMISE, is_complete=True)
        elif is_new:
            timers.set("promise", seated_at + PROMISE)

    def on_timer(self, key: Row, name: str, at: datetime, state: State, timers: Timers) -> Iterator[Row]:
        yield self._row(state, minutes=None, in_time=False, is_complete=False)

    def _row(self, state: State, **more: object) -> Row:
        return {**{name: state[name] for name in ("guest_id", "seated_at", "drink")}, **more}


cafe_service = Pipeline(
    name="cafe_service",
    source=VISITS,
    event_time="told_at",
    # A visit that is told as a whole is ahead of one that has just begun by as long as a drink takes, 15 minutes.
    watermark=Watermark(delay="20 minutes"),
    # For so long a copy of a visit is known, and a drink that comes after all completes it.
    steps=(Process(Service, by=("visit_id",), ttl="1 day"),),
    sink=Sink("gold.cafe_service"),
    expectations=(NotNull("seated_at"), NotNull("in_time"), Conservation()),
    trigger_interval="10 seconds",
    description="Whether guests have their drink within five minutes; at that mark a row for those who have none.",
    owner="café",
    column_descriptions={
        "visit_id": "Number of the visit.",
        "told_at": "When the drink was served, or the five minutes were over, UTC.",
        "guest_id": "Who came.",
        "seated_at": "When the guest was seated, UTC.",
        "drink": "What was ordered; null: nothing yet.",
        "minutes": "From seating to the drink; null: it has not come.",
        "in_time": "Whether it came within five minutes.",
        "is_complete": "Whether it has come; a row without it is followed by one with it when it does.",
    },
)
