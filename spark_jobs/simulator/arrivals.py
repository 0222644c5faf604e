"""From what happened to what arrives: delay, repetition, faults, and the order of arrival."""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from spark_jobs.simulator.disorder import Disorder
from spark_jobs.simulator.durations import whole_ms
from spark_jobs.simulator.malformed import MalformedKind
from spark_jobs.simulator.streams import FORMATS, Event, StreamName, Value

ArrivalClass = Literal["ordered", "disordered", "late"]
_DAY_MS = 86_400_000


@dataclass(slots=True)
class Arrival:
    """An event on its way into the lake.

    Attributes:
        event: what really happened.
        arrival_ms: when it arrives, in event time; never before it happened.
        arrival: ordered (at once), disordered (up to `max_disorder` later) or late.
        stated_time_ms: the event time that the row states; differs from the true one if `future`.
        malformed: the row's fault, if any, and in [0, 1) the variant of it.
        original: for a second copy the first one.
        index: place in the order of arrival within its stream, from 0; set on arrival.
        behind_ms: newest true event time of the stream that had arrived before, less this one's; 0 if this
            one is newest; set on arrival.
        after_end: arrives after the last event of a run that is limited in rows.
    """

    event: Event
    arrival_ms: int
    arrival: ArrivalClass
    stated_time_ms: int
    malformed: MalformedKind | None
    variation: float
    original: "Arrival | None" = None
    index: int = -1
    behind_ms: int = 0
    after_end: bool = False

    @property
    def future(self) -> bool:
        """Whether the stated event time lies days ahead."""
        return self.stated_time_ms != self.event.event_time_ms

    @property
    def stated_values(self) -> dict[str, Value]:
        """The row's values, before any fault."""
        if not self.future:
            return self.event.values
        return {**self.event.values, FORMATS[self.event.stream].event_time: self.stated_time_ms}


def arrivals(
    events: Iterator[Event],
    disorder: Disorder,
    *,
    dice: Mapping[StreamName, Random],
    kinds: Mapping[StreamName, tuple[MalformedKind, ...]],
    rows: int | None = None,
) -> Iterator[Arrival]:
    """Orders events by their arrival, with everything that `disorder` does to them.

    Args:
        events: in order of event time; may be endless.
        disorder: shares and bounds.
        dice: random numbers per stream, used for nothing else: one stream's fate does not depend on the
            others.
        kinds: the faults that a stream's rows can have.
        rows: stop reading events once this many rows, second copies included, are on their way; all of them
            then arrive. None: never stop.

    Yields:
        One value per emitted row, in order of arrival; ties in the order of the events.
    """
    fates = {
        stream: _Fates(disorder, random, kinds[stream], FORMATS[stream].late_copies) for stream, random in dice.items()
    }
    on_the_way: list[tuple[int, int, Arrival]] = []
    counts = dict.fromkeys(fates, 0)
    newest_ms: dict[StreamName, int] = {}
    sent = 0

    def arrived() -> Arrival:
        arrival = heapq.heappop(on_the_way)[2]
        stream, time_ms = arrival.event.stream, arrival.event.event_time_ms
        arrival.index = counts[stream]
        counts[stream] += 1
        newest_ms[stream] = max(newest_ms.get(stream, time_ms), time_ms)
        arrival.behind_ms = newest_ms[stream] - time_ms
        return arrival

    if rows is None or rows > 0:
        for event in events:
            while on_the_way and on_the_way[0][0] <= event.event_time_ms:
                yield arrived()
            for arrival in fates[event.stream].of(event):
                if rows is None or sent < rows:
                    heapq.heappush(on_the_way, (arrival.arrival_ms, sent, arrival))
                    sent += 1
            if sent == rows:
                break
    while on_the_way:
        arrival = arrived()
        arrival.after_end = True
        yield arrival


class _Fates:
    """Draws what happens to the events of one stream; the same number of draws for each."""

    def __init__(
        self, disorder: Disorder, random: Random, kinds: tuple[MalformedKind, ...], late_copies: float
    ) -> None:
        self._shares = disorder
        self._late_copies = late_copies
        self._max_disorder_ms = whole_ms(disorder.max_disorder)
        self._late_after_ms = whole_ms(disorder.late_after)
        self._late_by_ms = whole_ms(disorder.late_by)
        self._random = random.random
        self._kinds = kinds

    def of(self, event: Event) -> Iterator[Arrival]:
        """The event's arrival, and that of its copy if it has one."""
        draw, shares = self._random, self._shares
        late, disordered, duplicated = (
            draw() < shares.late,
            draw() < shares.disorder,
            draw() < shares.duplicates,
        )
        malformed, future = draw() < shares.malformed, draw() < shares.future
        delay, copy_delay, kind, variation, days = draw(), draw(), draw(), draw(), draw()
        arrival_class: ArrivalClass = "late" if late else "disordered" if disordered else "ordered"
        shortest_ms, longest_ms = self._bounds_ms(arrival_class)
        delay_ms = longest_ms - int(delay * (longest_ms - shortest_ms))
        arrival_ms = event.event_time_ms + delay_ms
        first = Arrival(
            event=event,
            arrival_ms=arrival_ms,
            arrival=arrival_class,
            stated_time_ms=arrival_ms + int((2 + 28 * days) * _DAY_MS) if future else event.event_time_ms,
            malformed=self._kinds[int(kind * len(self._kinds))] if malformed else None,
            variation=variation,
        )
        yield first
        if duplicated:
            copy_class, copy_delay_ms = self._copy(copy_delay, late=late, first_ms=delay_ms)
            yield Arrival(
                event=event,
                arrival_ms=event.event_time_ms + copy_delay_ms,
                arrival=copy_class,
                stated_time_ms=first.stated_time_ms,
                malformed=first.malformed,
                variation=variation,
                original=first,
            )

    def _copy(self, fraction: float, *, late: bool, first_ms: int) -> tuple[ArrivalClass, int]:
        """The class of a second copy, and its delay: not less than that of the first."""
        if not late and fraction < self._late_copies:
            shortest_ms, longest_ms = self._bounds_ms("late")
            return "late", longest_ms - int(fraction / self._late_copies * (longest_ms - shortest_ms))
        copy_class: ArrivalClass = "late" if late else "disordered"
        soon = fraction if late else (fraction - self._late_copies) / (1 - self._late_copies)
        return copy_class, first_ms + int(soon * (self._bounds_ms(copy_class)[1] - first_ms))

    def _bounds_ms(self, arrival: ArrivalClass) -> tuple[int, int]:
        """The delay is more than the first (for `ordered`: equal to) and at most the second."""
        match arrival:
            case "ordered":
                return 0, 0
            case "disordered":
                return 0, self._max_disorder_ms
            case "late":
                return self._late_after_ms, self._late_by_ms
