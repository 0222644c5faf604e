"""The stream `orders`: what customers order, at the price of the moment."""

from bisect import bisect_right
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from spark_jobs.simulator.catalogue import Prices, cents, product_id
from spark_jobs.simulator.customers import customer_id
from spark_jobs.simulator.shop import Shop, id_tag, popularity
from spark_jobs.simulator.streams import Event

ORDERS_SHARE = 0.2
"""Orders per sale."""

NULL_AMOUNTS = 0.02
ZERO_AMOUNTS = 0.03
NEGATIVE_AMOUNTS = 0.03


class Order(NamedTuple):
    """One order. Its amount may be unknown, 0 (a voucher paid for it) or negative (goods were sent back)."""

    number: int
    order_id: str
    customer_id: str
    product_id: str
    amount: Decimal | None
    ordered_at_ms: int


def orders(shop: Shop, start_ms: int) -> Iterator[Order]:
    """Orders in order of time, for ever: a Poisson process; some customers and products come more often."""
    dice = shop.dice("orders")
    products = popularity(shop.products, shop.dice("popularity"))
    customers = popularity(shop.customers, shop.dice("customers/popularity"))
    prices = Prices(shop, start_ms)
    tag = id_tag(shop.seed, start_ms)
    elapsed_ms, number = 0.0, 0
    while True:
        elapsed_ms += dice.expovariate(shop.events_per_event_s * ORDERS_SHARE) * 1000
        number += 1
        ordered_at_ms = start_ms + int(elapsed_ms)
        customer, product, quantity, kind = (dice.random() for _ in range(4))
        ordered = product_id(min(bisect_right(products, product), shop.products - 1))
        yield Order(
            number=number,
            order_id=f"o-{tag}-{number:08d}",
            customer_id=customer_id(min(bisect_right(customers, customer), shop.customers - 1)),
            product_id=ordered,
            amount=_amount(prices.at(ordered, ordered_at_ms) * (1 + int(quantity**2 * 5)), kind),
            ordered_at_ms=ordered_at_ms,
        )


def order_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `orders`, in order of event time."""
    for order in orders(shop, start_ms):
        yield Event(
            stream="orders",
            event_time_ms=order.ordered_at_ms,
            event_id=order.order_id,
            key=order.order_id,
            values={
                "order_id": order.order_id,
                "customer_id": order.customer_id,
                "product_id": order.product_id,
                "amount": order.amount,
                "ordered_at": order.ordered_at_ms,
            },
        )


def _amount(total: Decimal, kind: float) -> Decimal | None:
    if kind < NULL_AMOUNTS:
        return None
    if kind < NULL_AMOUNTS + ZERO_AMOUNTS:
        return cents(0)
    return -total if kind < NULL_AMOUNTS + ZERO_AMOUNTS + NEGATIVE_AMOUNTS else total
