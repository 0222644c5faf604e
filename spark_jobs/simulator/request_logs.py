"""The stream `request_logs`: how services answer, and how they fail for minutes now and then."""

import heapq
import random
from collections.abc import Iterator
from itertools import count

from spark_jobs.simulator.shop import Shop, id_tag
from spark_jobs.simulator.streams import Event, Value

SERVICES = ("shop", "checkout", "search", "accounts", "images", "mail")

REQUESTS_SHARE = 1.0
"""Requests to all services together, per sale."""

ERRORS = 0.01
"""Share of the requests that fail on a good day; in an incident 30 to 80 %."""

_FAILURES = (500, 502, 503, 504)
_MINUTE_MS = 60_000


def request_log_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `request_logs`, in order of event time, for ever."""
    services = [_requests_of(place, shop, start_ms) for place in range(len(SERVICES))]
    return heapq.merge(*services, key=lambda event: event.event_time_ms)


def _requests_of(place: int, shop: Shop, start_ms: int) -> Iterator[Event]:
    service = SERVICES[place]
    dice, tag = shop.dice(f"request_logs/{service}"), id_tag(shop.seed, start_ms)
    incidents = _Incidents(shop.dice(f"request_logs/{service}/incidents"), start_ms)
    usual_ms = 15 + dice.random() * 120
    per_s = shop.events_per_event_s * REQUESTS_SHARE / len(SERVICES)
    elapsed_ms = 0.0
    for number in count(1):
        elapsed_ms += dice.expovariate(per_s) * 1000
        requested_at_ms = start_ms + int(elapsed_ms)
        failing = incidents.share_at(requested_at_ms)
        fate, which, spread = dice.random(), dice.random(), dice.lognormvariate(0.0, 0.6)
        fails = fate < max(ERRORS, failing)
        missing = not fails and which < 0.02
        values: dict[str, Value] = {
            "request_id": (request_id := f"rl-{tag}-{place}{number:08d}"),
            "service": service,
            "status_code": _FAILURES[int(which * len(_FAILURES))] if fails else 404 if missing else 200,
            "latency_ms": 1 + int(usual_ms * spread * (8 if failing else 1)),
            "requested_at": requested_at_ms,
        }
        yield Event("request_logs", requested_at_ms, request_id, service, values)


class _Incidents:
    """When a service fails: for 4 to 20 minutes, every few hours."""

    def __init__(self, dice: random.Random, start_ms: int) -> None:
        self._dice = dice
        self._ends_ms = start_ms
        self._next()

    def share_at(self, time_ms: int) -> float:
        """The share of requests that fail at an instant by an incident; ask in order of time."""
        while time_ms >= self._ends_ms:
            self._next()
        return self._share if time_ms >= self._begins_ms else 0.0

    def _next(self) -> None:
        self._begins_ms = self._ends_ms + int((20 + self._dice.expovariate(1 / 180)) * _MINUTE_MS)
        self._ends_ms = self._begins_ms + int((4 + 16 * self._dice.random()) * _MINUTE_MS)
        self._share = 0.3 + 0.5 * self._dice.random()
