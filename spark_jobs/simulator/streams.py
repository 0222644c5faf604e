"""The streams of the shop: their columns, and one event of theirs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

StreamName = Literal[
    "sales",
    "products",
    "clicks",
    "visits",
    "payments",
    "customers",
    "orders",
    "order_payments",
    "readings",
    "statuses",
    "ticks",
    "shipments",
    "ride_requests",
    "driver_positions",
    "transfers",
    "card_payments",
    "request_logs",
]
ColumnKind = Literal["string", "int", "decimal", "double", "timestamp"]
Value = str | int | Decimal | float | None
"""A column's value; a timestamp is a whole number of milliseconds since 1970-01-01 UTC."""


@dataclass(frozen=True)
class StreamFormat:
    """What a row of a stream looks like.

    Attributes:
        columns: name to kind, in the order of the columns.
        event_time: the timestamp column that says when it happened.
        key: the column with the entity that the event belongs to; also the Kafka key. Required.
        late_copies: share of the second copies that come as late as late events, although the first did not: their
            sender had no answer, and tried again long after.
    """

    columns: Mapping[str, ColumnKind]
    event_time: str
    key: str
    late_copies: float = 0.0


LATE_COPIES = 0.3
"""Of the streams that say so; with the usual lateness more than half of these come beyond an hour."""


FORMATS: Mapping[StreamName, StreamFormat] = {
    "sales": StreamFormat(
        columns={
            "sale_id": "string",
            "product_id": "string",
            "quantity": "int",
            "unit_price": "decimal",
            "sold_at": "timestamp",
        },
        event_time="sold_at",
        key="product_id",
    ),
    "products": StreamFormat(
        columns={
            "product_id": "string",
            "name": "string",
            "category": "string",
            "unit_price": "decimal",
            "changed_at": "timestamp",
        },
        event_time="changed_at",
        key="product_id",
        late_copies=LATE_COPIES,
    ),
    "clicks": StreamFormat(
        columns={"click_id": "string", "user_id": "string", "page": "string", "clicked_at": "timestamp"},
        event_time="clicked_at",
        key="user_id",
    ),
    "visits": StreamFormat(
        columns={
            "visit_id": "string",
            "guest_id": "string",
            "seated_at": "timestamp",
            "ordered_at": "timestamp",
            "served_at": "timestamp",
            "paid_at": "timestamp",
            "drink": "string",
        },
        event_time="seated_at",
        key="guest_id",
    ),
    "payments": StreamFormat(
        columns={
            "payment_id": "string",
            "guest_id": "string",
            "visit_id": "string",
            "amount": "decimal",
            "paid_at": "timestamp",
        },
        event_time="paid_at",
        key="guest_id",
    ),
    "customers": StreamFormat(
        columns={
            "customer_id": "string",
            "name": "string",
            "country": "string",
            "segment": "string",
            "changed_at": "timestamp",
        },
        event_time="changed_at",
        key="customer_id",
        late_copies=LATE_COPIES,
    ),
    "orders": StreamFormat(
        columns={
            "order_id": "string",
            "customer_id": "string",
            "product_id": "string",
            "amount": "decimal",
            "ordered_at": "timestamp",
        },
        event_time="ordered_at",
        key="order_id",
        late_copies=LATE_COPIES,
    ),
    "order_payments": StreamFormat(
        columns={
            "payment_id": "string",
            "order_id": "string",
            "amount": "decimal",
            "method": "string",
            "paid_at": "timestamp",
        },
        event_time="paid_at",
        key="order_id",
        late_copies=LATE_COPIES,
    ),
    "readings": StreamFormat(
        columns={
            "machine_id": "string",
            "temperature": "double",
            "vibration": "double",
            "pressure": "double",
            "read_at": "timestamp",
        },
        event_time="read_at",
        key="machine_id",
        late_copies=LATE_COPIES,
    ),
    "statuses": StreamFormat(
        columns={"machine_id": "string", "status": "string", "changed_at": "timestamp"},
        event_time="changed_at",
        key="machine_id",
        late_copies=LATE_COPIES,
    ),
    "ticks": StreamFormat(
        columns={"symbol": "string", "price": "decimal", "volume": "int", "traded_at": "timestamp"},
        event_time="traded_at",
        key="symbol",
    ),
    "shipments": StreamFormat(
        columns={"shipment_id": "string", "order_id": "string", "carrier": "string", "shipped_at": "timestamp"},
        event_time="shipped_at",
        key="order_id",
        late_copies=LATE_COPIES,
    ),
    "ride_requests": StreamFormat(
        columns={
            "request_id": "string",
            "rider_id": "string",
            "latitude": "double",
            "longitude": "double",
            "requested_at": "timestamp",
        },
        event_time="requested_at",
        key="rider_id",
    ),
    "driver_positions": StreamFormat(
        columns={"driver_id": "string", "latitude": "double", "longitude": "double", "seen_at": "timestamp"},
        event_time="seen_at",
        key="driver_id",
    ),
    "transfers": StreamFormat(
        columns={"transfer_id": "string", "account": "string", "amount": "decimal", "booked_at": "timestamp"},
        event_time="booked_at",
        key="account",
        late_copies=LATE_COPIES,
    ),
    "card_payments": StreamFormat(
        columns={
            "payment_id": "string",
            "card": "string",
            "country": "string",
            "amount": "decimal",
            "paid_at": "timestamp",
        },
        event_time="paid_at",
        key="card",
        late_copies=LATE_COPIES,
    ),
    "request_logs": StreamFormat(
        columns={
            "request_id": "string",
            "service": "string",
            "status_code": "int",
            "latency_ms": "int",
            "requested_at": "timestamp",
        },
        event_time="requested_at",
        key="service",
    ),
}
STREAM_NAMES: tuple[StreamName, ...] = get_args(StreamName)
DEFAULT_STREAMS: tuple[StreamName, ...] = ("sales", "products", "clicks", "visits", "payments")
"""What a shop emits where nothing is said; the others are named."""


class Event(NamedTuple):
    """Something that happened in the shop, before anything happens to it on its way.

    `event_id` is unique within a run: the row's own id; where it has none (`products`, `customers`, `readings`,
    `statuses`, `ticks`, `driver_positions`, visits told step by step) the entity and the version.
    """

    stream: StreamName
    event_time_ms: int
    event_id: str
    key: str
    values: dict[str, Value]


def iso_ms(time_ms: int) -> str:
    """An instant as ISO 8601 in UTC with milliseconds: `2024-05-01T12:00:00.000Z`."""
    seconds, millis = divmod(time_ms, 1000)
    return f"{_iso_seconds(seconds)}.{millis:03d}Z"


def instant(time_ms: int) -> datetime:
    """Milliseconds since 1970-01-01 as a time in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC)


@lru_cache(maxsize=8192)
def _iso_seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
