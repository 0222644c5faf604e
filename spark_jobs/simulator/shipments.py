"""The stream `shipments`: parcels of the orders, some of them weeks after the order."""

import random
from collections.abc import Iterator

from spark_jobs.simulator.ordering import in_order
from spark_jobs.simulator.orders import Order, orders
from spark_jobs.simulator.shop import Shop, id_tag
from spark_jobs.simulator.streams import Event

NEVER = 0.04
"""Share of the orders that are never sent; those that are sent back, or have no amount, are not sent either."""

LONG_AFTER = 0.06
"""Share of them that are sent 3 to 29 days after the order."""

NEXT_DAYS = 0.2
"""Share of them that are sent 6 to 48 hours after the order; the others within 6 hours."""

IN_TWO_PARCELS = 0.06
"""Share of those that are sent of which a second parcel follows, up to two days after the first."""

WITHOUT_ORDER = 0.01
"""Shipments that belong to no order, per order."""

_CARRIERS = ("post", "courier", "bike", "pick-up")
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def shipment_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `shipments`, in order of event time. No shipment comes before its order."""
    dice = shop.dice("shipments")
    tag = id_tag(shop.seed, start_ms)
    return in_order((order.ordered_at_ms, list(_shipments(order, tag, dice))) for order in orders(shop, start_ms))


def _shipments(order: Order, tag: str, dice: random.Random) -> Iterator[Event]:
    # All numbers are drawn whatever happens, so that one order's fate does not change the next one's.
    plan, delay, parcels, more, pick, stray = (dice.random() for _ in range(6))
    carrier, shipment_id = _CARRIERS[int(pick * len(_CARRIERS))], f"sh-{tag}-{order.number:08d}"
    if order.amount is not None and order.amount >= 0 and plan >= NEVER:
        shipped_at_ms = order.ordered_at_ms + _waiting_ms(plan - NEVER, delay)
        yield _shipment(f"{shipment_id}-1", order.order_id, carrier, shipped_at_ms)
        if parcels < IN_TWO_PARCELS:
            second_ms = shipped_at_ms + _HOUR_MS + int(more * 47 * _HOUR_MS)
            yield _shipment(f"{shipment_id}-2", order.order_id, carrier, second_ms)
    if stray < WITHOUT_ORDER:
        nobodys = f"o-{tag}-x{order.number:07d}"
        yield _shipment(f"{shipment_id}-0", nobodys, carrier, order.ordered_at_ms + int(more * _HOUR_MS))


def _waiting_ms(plan: float, delay: float) -> int:
    if plan < LONG_AFTER:
        return 3 * _DAY_MS + int(delay * 26 * _DAY_MS)
    if plan < LONG_AFTER + NEXT_DAYS:
        return 6 * _HOUR_MS + int(delay * 42 * _HOUR_MS)
    return 600_000 + int(delay**2 * (6 * _HOUR_MS - 600_000))


def _shipment(shipment_id: str, order_id: str, carrier: str, shipped_at_ms: int) -> Event:
    return Event(
        stream="shipments",
        event_time_ms=shipped_at_ms,
        event_id=shipment_id,
        key=order_id,
        values={"shipment_id": shipment_id, "order_id": order_id, "carrier": carrier, "shipped_at": shipped_at_ms},
    )
