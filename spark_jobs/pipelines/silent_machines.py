"""Machines that have sent nothing for ten minutes by the clock on the wall, and that they are back.

It goes by when readings reach the lake, not by when they were read: late news from a machine is a sign of life, too.
Spark runs no batch after a start until something comes; the heartbeats of a silent ingest see to that.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from tidemark import Conservation, NotNull, Pipeline, Process, Processor, Row, Sink, State, Table, Timers

SILENCE = timedelta(minutes=10)


class Silence(Processor):
    """Sets a timer ten minutes after each arrival; one that fires tells of silence."""

    output: ClassVar = {"silent": "BOOLEAN", "heard_at": "TIMESTAMP", "noticed_at": "TIMESTAMP"}
    state: ClassVar = {"heard_at": "TIMESTAMP", "silent": "BOOLEAN"}

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> Iterator[Row]:
        arrived_at = event["_ingest_time"]
        if state["silent"]:
            yield {"silent": False, "heard_at": state["heard_at"], "noticed_at": arrived_at}
        state.update(heard_at=arrived_at, silent=False)
        timers.set("silence", arrived_at + SILENCE)

    def on_timer(self, key: Row, name: str, at: datetime, state: State, timers: Timers) -> Iterator[Row]:
        yield {"silent": True, "heard_at": state["heard_at"], "noticed_at": at}
        state["silent"] = True


silent_machines = Pipeline(
    name="silent_machines",
    source=Table("bronze.readings"),
    event_time="read_at",
    steps=(Process(Silence, by=("machine_id",), order="arrival", clock="processing_time"),),
    sink=Sink("gold.silent_machines"),
    expectations=(NotNull("machine_id"), NotNull("silent"), Conservation()),
    trigger_interval="10 seconds",
    description="Machines that have sent nothing for ten minutes by the clock: a row then, and one when they are back.",
    owner="plant",
    column_descriptions={
        "machine_id": "The machine.",
        "read_at": "Of the reading that is news again, or when the silence was full, UTC.",
        "silent": "Whether it has fallen silent; false: it is back.",
        "heard_at": "When the last reading before that reached the lake, UTC.",
        "noticed_at": "Ten minutes after it, or when the machine was back, UTC.",
    },
)
