"""Each ride that is asked for with the nearest driver whose position is at most a minute old.

Requests and positions meet by zone: one degree of latitude and of longitude, in which a city lies as a rule. Drivers of
a neighbouring zone are not seen, however near. One who has left the zone is seen for up to a minute where it was last.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import asin, cos, radians, sin, sqrt
from typing import ClassVar

from tidemark import (
    Between,
    Conservation,
    NotNull,
    Pipeline,
    Process,
    Processor,
    Row,
    Sink,
    State,
    Table,
    Timers,
    Union,
    Watermark,
)

FRESH = timedelta(minutes=1)
EARTH_KM = 6371.0
ZONE = "concat(CAST(floor(latitude) AS STRING), '/', CAST(floor(longitude) AS STRING))"
PLACE = {"zone": ZONE, "latitude": "latitude", "longitude": "longitude"}

STREET = Union(
    Table(
        "bronze.ride_requests",
        select={
            **PLACE,
            "asked_at": "requested_at",
            "request_id": "request_id",
            "rider_id": "rider_id",
            "driver_id": "CAST(NULL AS STRING)",
        },
    ),
    Table(
        "bronze.driver_positions",
        select={
            **PLACE,
            "asked_at": "seen_at",
            "request_id": "CAST(NULL AS STRING)",
            "rider_id": "CAST(NULL AS STRING)",
            "driver_id": "driver_id",
        },
    ),
)


def distance_km(one: Row, other: Row) -> float:
    """How far two places are apart on the globe."""
    north, west = radians(one["latitude"]), radians(one["longitude"])
    other_north, other_west = radians(other["latitude"]), radians(other["longitude"])
    half = sin((other_north - north) / 2) ** 2 + cos(north) * cos(other_north) * sin((other_west - west) / 2) ** 2
    return 2 * EARTH_KM * asin(sqrt(half))


class Matching(Processor):
    """Keeps where each driver of the zone was last. A request waits for the end of its instant.

    So a position of the same instant counts whichever of them arrived first.
    """

    output: ClassVar = {
        "request_id": "STRING",
        "rider_id": "STRING",
        "driver_id": "STRING",
        "km": "DOUBLE",
        "seen_at": "TIMESTAMP",
    }
    state: ClassVar = {
        "drivers": "MAP<STRING, STRUCT<latitude: DOUBLE, longitude: DOUBLE, seen_at: TIMESTAMP>>",
        "asked": "ARRAY<STRUCT<request_id: STRING, rider_id: STRING, latitude: DOUBLE, longitude: DOUBLE>>",
    }

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> None:
        if event["driver_id"] is None:
            asked = {name: event[name] for name in ("request_id", "rider_id", "latitude", "longitude")}
            state["asked"] = [*(state["asked"] or ()), asked]
            timers.set("match", event["asked_at"])
            return
        seen = {"latitude": event["latitude"], "longitude": event["longitude"], "seen_at": event["asked_at"]}
        state["drivers"] = {**(state["drivers"] or {}), event["driver_id"]: seen}

    def on_timer(self, key: Row, name: str, at: datetime, state: State, timers: Timers) -> Iterator[Row]:
        drivers = {name: seen for name, seen in (state["drivers"] or {}).items() if seen["seen_at"] >= at - FRESH}
        for asked in state["asked"]:
            far = {name: distance_km(asked, seen) for name, seen in drivers.items()}
            nearest = min(far, key=lambda name: (far[name], name), default=None)
            yield {
                "request_id": asked["request_id"],
                "rider_id": asked["rider_id"],
                "driver_id": nearest,
                "km": far.get(nearest),
                "seen_at": drivers[nearest]["seen_at"] if nearest is not None else None,
            }
        state.update(drivers=drivers or None, asked=None)


ride_matching = Pipeline(
    name="ride_matching",
    source=STREET,
    event_time="asked_at",
    watermark=Watermark(delay="2 minutes"),
    # A zone in which nothing happens for an hour is forgotten.
    steps=(Process(Matching, by=("zone",), ttl="1 hour"),),
    sink=Sink("gold.ride_matching"),
    expectations=(NotNull("request_id"), Between("km", min=0), Conservation()),
    trigger_interval="10 seconds",
    description="Rides that are asked for, each with the nearest driver of its zone; null where none was there.",
    owner="rides",
    column_descriptions={
        "zone": "The degrees of latitude and longitude in which both are.",
        "asked_at": "When the ride was asked for, UTC.",
        "request_id": "Number of the request; a request that is told twice has two rows.",
        "rider_id": "Who asks.",
        "driver_id": "The nearest driver; null: none was seen in the zone within the minute.",
        "km": "How far the driver is away, as the crow flies.",
        "seen_at": "When the driver was there, UTC.",
    },
)
