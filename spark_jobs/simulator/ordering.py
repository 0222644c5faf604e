"""Events in order of time, where one thing has several."""

import heapq
from collections.abc import Iterable, Iterator

from spark_jobs.simulator.streams import Event


def in_order(groups: Iterable[tuple[int, list[Event]]]) -> Iterator[Event]:
    """Orders events by time, given groups in order of a time that none of their events precedes."""
    pending: list[tuple[int, int, Event]] = []
    planned = 0
    for begins_ms, events in groups:
        while pending and pending[0][0] < begins_ms:
            yield heapq.heappop(pending)[2]
        for event in events:
            planned += 1
            heapq.heappush(pending, (event.event_time_ms, planned, event))
