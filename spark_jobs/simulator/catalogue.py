"""The shop's products, and how they slowly change."""

import random
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from typing import NamedTuple

from spark_jobs.simulator.durations import whole_ms
from spark_jobs.simulator.shop import Shop
from spark_jobs.simulator.streams import Event

CATEGORIES = ("coffee", "tea", "bakery", "kitchen", "books", "toys", "garden", "stationery")
_ADJECTIVES = ("Small", "Large", "Classic", "Dark", "Golden", "Quiet", "Nordic", "Plain", "Fresh", "Old")
_NOUNS = {
    "coffee": ("Espresso Beans", "Filter Roast", "Decaf Beans"),
    "tea": ("Earl Grey", "Sencha", "Rooibos"),
    "bakery": ("Cinnamon Roll", "Rye Bread", "Almond Croissant"),
    "kitchen": ("Teapot", "Mug", "Milk Jug"),
    "books": ("Notebook of Tides", "Almanac", "Cookbook"),
    "toys": ("Wooden Train", "Spinning Top", "Kite"),
    "garden": ("Herb Pot", "Watering Can", "Seed Box"),
    "stationery": ("Fountain Pen", "Paper Pad", "Ink Bottle"),
}


class ProductVersion(NamedTuple):
    """A product from `updated_at_ms` on, until its next version."""

    product_id: str
    name: str
    category: str
    list_price: Decimal
    updated_at_ms: int


def product_id(number: int) -> str:
    """The id of the n-th product, from 0: "p-001"."""
    return f"p-{number + 1:03d}"


def product_versions(shop: Shop, start_ms: int) -> Iterator[ProductVersion]:
    """The whole catalogue at `start_ms`, then one change after the other for ever, in order of time."""
    dice = shop.dice("products")
    current = [_new_product(number, dice, start_ms) for number in range(shop.products)]
    yield from current
    change_every_ms = max(1, whole_ms(shop.product_change_every))
    time_ms = start_ms
    while True:
        time_ms += max(1, int(dice.expovariate(1.0) * change_every_ms))
        number = int(dice.random() * shop.products)
        current[number] = _changed(current[number], dice, time_ms)
        yield current[number]


def product_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `products`."""
    for number, version in zip(count(), product_versions(shop, start_ms), strict=False):
        yield Event(
            stream="products",
            event_time_ms=version.updated_at_ms,
            event_id=f"{version.product_id}@{number}",
            key=version.product_id,
            values={
                "product_id": version.product_id,
                "name": version.name,
                "category": version.category,
                "list_price": version.list_price,
                "updated_at": version.updated_at_ms,
            },
        )


def cents(amount: int) -> Decimal:
    """An amount of cents as money with two decimals."""
    return Decimal(amount).scaleb(-2)


def _new_product(number: int, dice: random.Random, start_ms: int) -> ProductVersion:
    category = CATEGORIES[int(dice.random() * len(CATEGORIES))]
    adjective = _ADJECTIVES[int(dice.random() * len(_ADJECTIVES))]
    noun = _NOUNS[category][int(dice.random() * 3)]
    price = cents(150 + int(dice.random() ** 2 * 6_000))
    return ProductVersion(product_id(number), f"{adjective} {noun}", category, price, start_ms)


def _changed(old: ProductVersion, dice: random.Random, time_ms: int) -> ProductVersion:
    """Mostly a new price, within 15 % of the old one; now and then another category."""
    moved_cents = int(old.list_price * 100 * Decimal(str(round(0.85 + dice.random() * 0.3, 3))))
    category = CATEGORIES[int(dice.random() * len(CATEGORIES))] if dice.random() < 0.1 else old.category
    return old._replace(list_price=cents(max(50, moved_cents)), category=category, updated_at_ms=time_ms)
