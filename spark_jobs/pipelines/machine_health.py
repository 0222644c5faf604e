"""Incidents of machines: readings far above what each machine's own readings have been so far.

A reading's score is by how many standard deviations its most unusual sensor is off that sensor's mean so far. Three
readings in a row above 4 open an incident, three that are not end it. `machine_spikes` is the rule without a state.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any, ClassVar

from tidemark import (
    Between,
    Conservation,
    NotNull,
    OneOf,
    Pipeline,
    Process,
    Processor,
    Row,
    Sink,
    State,
    Table,
    Timers,
    Watermark,
)

SENSORS = ("temperature", "vibration", "pressure")
LIMIT = 4.0
IN_A_ROW = 3
# Before so many readings of a sensor its mean and its variance say little.
LEARNED = 30


class Health(Processor):
    """Keeps count, mean and sum of squared deviations of each sensor, and how many readings in a row are off.

    What is above the limit is not learned from: else a machine that is worn for long would be normal.
    """

    output: ClassVar = {
        "change": "STRING",
        "since": "TIMESTAMP",
        "sensor": "STRING",
        "score": "DOUBLE",
        "value": "DOUBLE",
        "mean": "DOUBLE",
        "deviation": "DOUBLE",
        "readings": "BIGINT",
    }
    state: ClassVar = {
        "sensors": "MAP<STRING, STRUCT<readings: BIGINT, mean: DOUBLE, squares: DOUBLE>>",
        "off_since": "TIMESTAMP",
        "off": "INT",
        "usual": "INT",
        "open_since": "TIMESTAMP",
    }

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> Iterator[Row]:
        sensors = state["sensors"] or {}
        scores = dict(self._scores(event, sensors))
        worst = max(scores, key=lambda name: scores[name], default=None)
        self._learn(event, sensors, scores)
        state["sensors"] = sensors
        if worst is None:
            return
        if scores[worst] > LIMIT:
            state.update(off=(state["off"] or 0) + 1, off_since=state["off_since"] or event["read_at"], usual=0)
        else:
            state.update(off=0, off_since=None, usual=(state["usual"] or 0) + 1)
        change = None
        if state["open_since"] is None and state["off"] == IN_A_ROW:
            change, state["open_since"] = "opened", state["off_since"]
        since = state["open_since"]
        if since is not None and state["usual"] == IN_A_ROW:
            change, state["open_since"] = "closed", None
        if change is None:
            return
        known = sensors[worst]
        yield {
            "change": change,
            "since": since,
            "sensor": worst,
            "score": scores[worst],
            "value": event[worst],
            "mean": known["mean"],
            "deviation": sqrt(known["squares"] / (known["readings"] - 1)),
            "readings": known["readings"],
        }

    def _scores(self, event: Row, sensors: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """By how many standard deviations each sensor is off, of those that are known by now."""
        for name in SENSORS:
            known = sensors.get(name)
            if event[name] is None or known is None or known["readings"] < LEARNED or known["squares"] == 0:
                continue
            yield name, abs(event[name] - known["mean"]) / sqrt(known["squares"] / (known["readings"] - 1))

    def _learn(self, event: Row, sensors: dict[str, Any], scores: Mapping[str, float]) -> None:
        """Takes the values that are not off into the mean and the squared deviations, after Welford."""
        for name in SENSORS:
            if event[name] is None or scores.get(name, 0.0) > LIMIT:
                continue
            known = sensors.setdefault(name, {"readings": 0, "mean": 0.0, "squares": 0.0})
            known["readings"] += 1
            distance = event[name] - known["mean"]
            known["mean"] += distance / known["readings"]
            known["squares"] += distance * (event[name] - known["mean"])


machine_health = Pipeline(
    name="machine_health",
    source=Table("bronze.readings"),
    event_time="read_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(Process(Health, by=("machine_id",)),),
    sink=Sink("gold.machine_health"),
    expectations=(
        NotNull("machine_id"),
        OneOf("change", ("opened", "closed")),
        Between("score", min=0),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="Incidents of machines: one row when readings are off for the third time in a row, one when no more.",
    owner="plant",
    column_descriptions={
        "machine_id": "The machine.",
        "read_at": "The reading that opened or closed the incident, UTC.",
        "change": "opened or closed.",
        "since": "The first of the readings that opened it, UTC.",
        "sensor": "The most unusual sensor of this reading.",
        "score": "By how many standard deviations it is off.",
        "value": "What it read.",
        "mean": "Of its readings so far, without those that were off.",
        "deviation": "Standard deviation of these.",
        "readings": "How many these are.",
    },
)
