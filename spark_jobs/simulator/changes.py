"""Slowly changing tables, told as a stream of changes."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import TypeVar

from spark_jobs.simulator.durations import whole_ms
from spark_jobs.simulator.streams import FORMATS, Event, StreamName, Value

Version = TypeVar("Version")
_UNLISTED_MS = (10 * 60_000, 6 * 3_600_000)


def history(
    new: Callable[[int], Version],
    changed: Callable[[Version, int], Version],
    *,
    size: int,
    change_every: timedelta,
    dice: random.Random,
    start_ms: int,
) -> Iterator[Version]:
    """All entities as they are at the start, then one change after the other for ever, in order of time.

    Args:
        new: the first version of the n-th entity, from 0.
        changed: the next version of an entity, from an instant on.
        size: how many entities.
        change_every: time between two changes, on average.
        dice: when, and of which entity.
        start_ms: first instant.
    """
    current = [new(number) for number in range(size)]
    yield from current
    change_every_ms = max(1, whole_ms(change_every))
    time_ms = start_ms
    while True:
        time_ms += max(1, int(dice.expovariate(1.0) * change_every_ms))
        number = int(dice.random() * size)
        current[number] = changed(current[number], time_ms)
        yield current[number]


def listing_times(ids: Sequence[str], share: float, dice: random.Random, start_ms: int) -> dict[str, int | None]:
    """Which entities a stream leaves out at the start, and the instant from which it tells of them; None: never."""
    shortest_ms, longest_ms = _UNLISTED_MS
    unlisted = dice.sample(ids, round(len(ids) * share))
    return {
        entity: None if place % 2 == 0 else start_ms + shortest_ms + int(dice.random() * (longest_ms - shortest_ms))
        for place, entity in enumerate(unlisted)
    }


def told(
    stream: StreamName, versions: Iterable[dict[str, Value]], unlisted: Mapping[str, int | None]
) -> Iterator[Event]:
    """The stream of a table's changes.

    Args:
        stream: whose event time is that of the change, and whose key is the entity.
        versions: rows in order of time, of all entities.
        unlisted: see `listing_times`. An entity that is listed later begins then, as it is at that moment.
    """
    key, event_time = FORMATS[stream].key, FORMATS[stream].event_time
    numbers = count()
    waiting = sorted((at_ms, entity) for entity, at_ms in unlisted.items() if at_ms is not None)
    unseen: dict[str, dict[str, Value]] = {}

    def event(entity: str, time_ms: int, values: dict[str, Value]) -> Event:
        return Event(stream, time_ms, f"{entity}@{next(numbers)}", entity, {**values, event_time: time_ms})

    for values in versions:
        entity, time_ms = str(values[key]), _ms(values[event_time])
        while waiting and waiting[0][0] < time_ms:
            at_ms, listed = waiting.pop(0)
            yield event(listed, at_ms, unseen.pop(listed))
        if entity in unlisted and not _is_listed(unlisted[entity], time_ms):
            unseen[entity] = values
        else:
            yield event(entity, time_ms, values)


def _is_listed(listed_ms: int | None, time_ms: int) -> bool:
    return listed_ms is not None and listed_ms < time_ms


def _ms(value: Value) -> int:
    assert isinstance(value, int)
    return value
