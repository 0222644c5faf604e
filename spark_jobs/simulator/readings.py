"""The stream `readings`: what the sensors of the machines say, and what is wrong with it."""

import heapq
import random
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from spark_jobs.simulator.durations import whole_ms
from spark_jobs.simulator.shop import Shop
from spark_jobs.simulator.streams import Event, Value

SENTINEL = -9999.0
"""What a sensor says that has nothing to say."""

SENTINELS = 0.002
"""Share of the readings in which one sensor says `SENTINEL`."""

NULLS = 0.002
"""Share of the readings in which one sensor says nothing."""

SPIKES = 0.001
"""Share of the readings in which one sensor is far off, once."""

_MINUTE_MS = 60_000


class Sensor(NamedTuple):
    """A sensor of every machine.

    Each machine has a level of its own, around which its readings scatter by `noise` (one standard deviation, never
    more than 3.5). As the machine wears, those of some sensors drift up by up to 18 standard deviations. Up to `usual`
    all that is no spike; spikes lie within `spike`.
    """

    name: str
    level: tuple[float, float]
    noise: float
    wears: bool
    usual: float
    spike: tuple[float, float]


SENSORS = (
    Sensor("temperature", level=(55.0, 75.0), noise=0.7, wears=True, usual=92.0, spike=(105.0, 140.0)),
    Sensor("vibration", level=(2.0, 4.0), noise=0.12, wears=True, usual=8.0, spike=(12.0, 20.0)),
    Sensor("pressure", level=(5.0, 7.0), noise=0.1, wears=False, usual=8.0, spike=(11.0, 16.0)),
)


def machine_id(number: int) -> str:
    """The id of the n-th machine, from 0: "m-01"."""
    return f"m-{number + 1:02d}"


def reading_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `readings`, in order of event time; each machine at a steady pace, for ever."""
    machines = [_readings_of(machine_id(number), shop, start_ms) for number in range(shop.machines)]
    return heapq.merge(*machines, key=lambda event: event.event_time_ms)


def _readings_of(machine: str, shop: Shop, start_ms: int) -> Iterator[Event]:
    dice = shop.dice(f"readings/{machine}")
    wear = _Wear(shop.dice(f"readings/{machine}/wear"), start_ms)
    every_ms = max(1, whole_ms(shop.reading_every))
    begins_ms = start_ms + int(dice.random() * every_ms)
    levels = [_between(sensor.level, dice.random()) for sensor in SENSORS]
    for number in count():
        read_at_ms = begins_ms + number * every_ms + int(dice.random() * every_ms * 0.2)
        drift = wear.at(read_at_ms)
        values: dict[str, Value] = {"machine_id": machine}
        for sensor, level in zip(SENSORS, levels, strict=True):
            deviations = max(-3.5, min(3.5, dice.gauss(0.0, 1.0))) + (drift if sensor.wears else 0.0)
            values[sensor.name] = round(level + deviations * sensor.noise, 3)
        struck, fate, height = SENSORS[int(dice.random() * len(SENSORS))], dice.random(), dice.random()
        if fate < SPIKES:
            values[struck.name] = round(_between(struck.spike, height), 3)
        elif fate < SPIKES + SENTINELS:
            values[struck.name] = SENTINEL
        elif fate < SPIKES + SENTINELS + NULLS:
            values[struck.name] = None
        values["read_at"] = read_at_ms
        yield Event("readings", read_at_ms, f"{machine}@{number}", machine, values)


class _Wear:
    """By how many standard deviations a machine is off: none for hours, then more and more, until it is fixed."""

    def __init__(self, dice: random.Random, start_ms: int) -> None:
        self._dice = dice
        self._fixed_ms = start_ms
        self._next()

    def at(self, time_ms: int) -> float:
        """The drift at an instant; ask in order of time."""
        while time_ms >= self._fixed_ms:
            self._next()
        if time_ms < self._begins_ms:
            return 0.0
        return self._most * min(1.0, (time_ms - self._begins_ms) / self._rises_ms)

    def _next(self) -> None:
        draw = self._dice.random
        self._begins_ms = self._fixed_ms + 30 * _MINUTE_MS + int(self._dice.expovariate(1 / (6 * 60)) * _MINUTE_MS)
        self._rises_ms = (4 + 8 * draw()) * _MINUTE_MS
        self._most = 12 + 6 * draw()
        self._fixed_ms = self._begins_ms + int(self._rises_ms + (5 + 10 * draw()) * _MINUTE_MS)


def _between(bounds: tuple[float, float], place: float) -> float:
    low, high = bounds
    return low + place * (high - low)
