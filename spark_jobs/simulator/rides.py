"""The streams `ride_requests` and `driver_positions`: who wants to be driven from where, and where the drivers are."""

import heapq
import random
from collections.abc import Iterator
from itertools import count

from spark_jobs.simulator.durations import whole_ms
from spark_jobs.simulator.shop import Shop, id_tag
from spark_jobs.simulator.streams import Event, Value

REQUESTS_SHARE = 0.1
"""Requests per sale."""

CENTRE = (52.52, 13.405)
"""Latitude and longitude around which all happens."""

REACH = (0.09, 0.14)
"""How far from it, in degrees; about 10 km each."""

OFF_DUTY = 0.1
"""Share of the time for which a driver is silent, half an hour at a time on average."""

_STEP = 0.002
"""How far a driver gets between two positions, in degrees at most."""


def request_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `ride_requests`, in order of event time, for ever."""
    dice = shop.dice("ride_requests")
    tag = id_tag(shop.seed, start_ms)
    elapsed_ms = 0.0
    for number in count(1):
        elapsed_ms += dice.expovariate(shop.events_per_event_s * REQUESTS_SHARE) * 1000
        requested_at_ms = start_ms + int(elapsed_ms)
        rider, latitude, longitude = f"r-{int(dice.random() * shop.riders) + 1:04d}", *_somewhere(dice)
        request_id = f"rq-{tag}-{number:08d}"
        values: dict[str, Value] = {
            "request_id": request_id,
            "rider_id": rider,
            "latitude": round(latitude, 5),
            "longitude": round(longitude, 5),
            "requested_at": requested_at_ms,
        }
        yield Event("ride_requests", requested_at_ms, request_id, rider, values)


def position_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `driver_positions`, in order of event time, for ever; each driver at a steady pace while on duty."""
    drivers = [_positions_of(f"d-{number + 1:03d}", shop, start_ms) for number in range(shop.drivers)]
    return heapq.merge(*drivers, key=lambda event: event.event_time_ms)


def _positions_of(driver: str, shop: Shop, start_ms: int) -> Iterator[Event]:
    dice = shop.dice(f"driver_positions/{driver}")
    every_ms = max(1, whole_ms(shop.position_every))
    place, target = _somewhere(dice), _somewhere(dice)
    seen_at_ms = start_ms + int(dice.random() * every_ms)
    rests = every_ms / 1_800_000 * OFF_DUTY / (1 - OFF_DUTY)
    for number in count():
        values: dict[str, Value] = {
            "driver_id": driver,
            "latitude": round(place[0], 5),
            "longitude": round(place[1], 5),
            "seen_at": seen_at_ms,
        }
        yield Event("driver_positions", seen_at_ms, f"{driver}@{number}", driver, values)
        place = _towards(place, target)
        if place == target:
            target = _somewhere(dice)
        off, silence = dice.random() < rests, dice.expovariate(1 / 1_800_000)
        seen_at_ms += every_ms + (int(silence) if off else 0)


def _somewhere(dice: random.Random) -> tuple[float, float]:
    latitude, longitude = (middle + (2 * dice.random() - 1) * far for middle, far in zip(CENTRE, REACH, strict=True))
    return latitude, longitude


def _towards(place: tuple[float, float], target: tuple[float, float]) -> tuple[float, float]:
    latitude, longitude = (
        here + max(-_STEP, min(_STEP, there - here)) for here, there in zip(place, target, strict=True)
    )
    return latitude, longitude
