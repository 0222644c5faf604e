"""Pipelines whose processor sets timers: one goes by the clock, one by event time."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from spark_jobs.spec import Pipeline, Process, Processor, Sink, Table, Timers, Watermark
from tests.support import lakes

BY_CLOCK = timedelta(seconds=20)
"""Long enough for a driver to read an event and to end its batch before the timer fires."""
BY_TIME = timedelta(minutes=5)


class SilentByClock(Processor):
    """A row when a machine has not been heard of for a while: how often it was before."""

    output: ClassVar = {"heard": "BIGINT"}
    state: ClassVar = {"heard": "BIGINT"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        state["heard"] = (state["heard"] or 0) + 1
        timers.set("silent", event["_ingest_time"] + BY_CLOCK)

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> list[Mapping]:
        return [{"heard": state.pop("heard")}]


class SilentByTime(SilentByClock):
    """The same by the time of its events."""

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        state["heard"] = (state["heard"] or 0) + 1
        timers.set("silent", event["t"] + BY_TIME)


def _reading(name: str, step: Process, watermark: Watermark | None) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name=name,
            source=Table("bronze.readings"),
            event_time="t",
            watermark=watermark,
            steps=(step,),
            sink=Sink(f"gold.{name}"),
        )
    )


by_clock = _reading(
    "by_clock", Process(SilentByClock, by=("machine",), order="arrival", clock="processing_time"), None
).model_copy(update={"trigger_interval": timedelta(milliseconds=500)})
by_time = _reading("by_time", Process(SilentByTime, by=("machine",)), Watermark(delay="1 minute"))
