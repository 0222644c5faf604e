"""The stream `order_payments`: how the orders are paid, soon, late, in two parts or not at all."""

import random
from collections.abc import Iterator
from decimal import Decimal

from spark_jobs.simulator.catalogue import cents
from spark_jobs.simulator.ordering import in_order
from spark_jobs.simulator.orders import Order, orders
from spark_jobs.simulator.shop import Shop, id_tag
from spark_jobs.simulator.streams import Event

UNPAID = 0.06
"""Share of the orders with an amount above 0 that are never paid; the other orders never are."""

PAID_LATE = 0.08
"""Share of them that are paid more than an hour after the order, up to five hours."""

IN_TWO_PARTS = 0.08
"""Share of them that are paid in two parts, the second up to two hours after the first."""

WITHOUT_ORDER = 0.015
"""Payments that belong to no order, per order."""

_MINUTE_MS = 60_000
_METHODS = ("card", "wallet", "transfer")


def order_payment_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `order_payments`, in order of event time. No payment comes before its order."""
    dice = shop.dice("order_payments")
    tag = id_tag(shop.seed, start_ms)
    return in_order((order.ordered_at_ms, list(_payments(order, tag, dice))) for order in orders(shop, start_ms))


def _payments(order: Order, tag: str, dice: random.Random) -> Iterator[Event]:
    # All numbers are drawn whatever happens, so that one order's fate does not change the next one's.
    plan, delay, more, part, pick, stray, value = (dice.random() for _ in range(7))
    method = _METHODS[int(pick * len(_METHODS))]
    soon_ms = 20_000 + int(delay**2 * 15 * _MINUTE_MS)
    payment_id = f"op-{tag}-{order.number:08d}"
    if order.amount is not None and order.amount > 0:
        if plan < UNPAID:
            pass
        elif plan < UNPAID + PAID_LATE:
            late_ms = 61 * _MINUTE_MS + int(delay * 239 * _MINUTE_MS)
            yield _payment(f"{payment_id}-1", order.order_id, order.amount, "invoice", order.ordered_at_ms + late_ms)
        elif plan < UNPAID + PAID_LATE + IN_TWO_PARTS:
            first = cents(int(order.amount * 100 * Decimal(str(round(0.2 + part * 0.6, 3)))))
            second_ms = soon_ms + _MINUTE_MS + int(more * 119 * _MINUTE_MS)
            yield _payment(f"{payment_id}-1", order.order_id, first, method, order.ordered_at_ms + soon_ms)
            rest = order.amount - first
            yield _payment(f"{payment_id}-2", order.order_id, rest, method, order.ordered_at_ms + second_ms)
        else:
            yield _payment(f"{payment_id}-1", order.order_id, order.amount, method, order.ordered_at_ms + soon_ms)
    if stray < WITHOUT_ORDER:
        nobodys = f"o-{tag}-x{order.number:07d}"
        amount = cents(100 + int(value * 9_900))
        yield _payment(
            f"{payment_id}-0", nobodys, amount, "transfer", order.ordered_at_ms + int(more * 30 * _MINUTE_MS)
        )


def _payment(payment_id: str, order_id: str, amount: Decimal, method: str, paid_at_ms: int) -> Event:
    return Event(
        stream="order_payments",
        event_time_ms=paid_at_ms,
        event_id=payment_id,
        key=order_id,
        values={
            "payment_id": payment_id,
            "order_id": order_id,
            "amount": amount,
            "method": method,
            "paid_at": paid_at_ms,
        },
    )
