"""The streams of the shop: their columns, and one event of theirs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

StreamName = Literal["sales", "products", "clicks", "visits", "payments"]
ColumnKind = Literal["string", "int", "decimal", "timestamp"]
Value = str | int | Decimal | None
"""A column's value; a timestamp is a whole number of milliseconds since 1970-01-01 UTC."""


@dataclass(frozen=True)
class StreamFormat:
    """What a row of a stream looks like.

    Attributes:
        columns: name to kind, in the order of the columns.
        event_time: the timestamp column that says when it happened.
        key: the column with the entity that the event belongs to; also the Kafka key. Required.
    """

    columns: Mapping[str, ColumnKind]
    event_time: str
    key: str


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
            "list_price": "decimal",
            "updated_at": "timestamp",
        },
        event_time="updated_at",
        key="product_id",
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
}
STREAM_NAMES: tuple[StreamName, ...] = get_args(StreamName)


class Event(NamedTuple):
    """Something that happened in the shop, before anything happens to it on its way.

    `event_id` is unique within a run: the row's own id, for `products` and for visits told step by step the
    entity and the version.
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
