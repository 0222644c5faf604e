"""The stream `sales`: what people buy, at the price of the moment."""

import random
from bisect import bisect_right
from collections.abc import Iterator
from decimal import Decimal

from spark_jobs.simulator.catalogue import Prices, cents, product_id
from spark_jobs.simulator.shop import Shop, id_tag, popularity
from spark_jobs.simulator.streams import Event

_DISCOUNTED = 0.1
_QUANTITIES = (1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 6, 12)


def sale_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """Sales in order of event time, for ever: a Poisson process, popular products more often."""
    dice = shop.dice("sales")
    shares = popularity(shop.products, shop.dice("popularity"))
    names = [product_id(number) for number in range(shop.products)]
    prices = Prices(shop, start_ms)
    tag = id_tag(shop.seed, start_ms)
    elapsed_ms, number = 0.0, 0
    while True:
        elapsed_ms += dice.expovariate(shop.events_per_event_s) * 1000
        sold_at_ms = start_ms + int(elapsed_ms)
        product = names[min(bisect_right(shares, dice.random()), shop.products - 1)]
        number += 1
        sale_id = f"s-{tag}-{number:08d}"
        yield Event(
            stream="sales",
            event_time_ms=sold_at_ms,
            event_id=sale_id,
            key=product,
            values={
                "sale_id": sale_id,
                "product_id": product,
                "quantity": _QUANTITIES[int(dice.random() * len(_QUANTITIES))],
                "unit_price": _price(prices.at(product, sold_at_ms), dice),
                "sold_at": sold_at_ms,
            },
        )


def _price(list_price: Decimal, dice: random.Random) -> Decimal:
    """The list price, for every tenth sale 10 % off."""
    return cents(int(list_price * 90)) if dice.random() < _DISCOUNTED else list_price
