"""The shop's products, and how they slowly change."""

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from spark_jobs.simulator.changes import history, listing_times, told
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
    """A product from `changed_at` on, until its next version."""

    product_id: str
    name: str
    category: str
    unit_price: Decimal
    changed_at: int


def product_id(number: int) -> str:
    """The id of the n-th product, from 0: "p-001"."""
    return f"p-{number + 1:03d}"


def product_versions(shop: Shop, start_ms: int) -> Iterator[ProductVersion]:
    """The whole catalogue at `start_ms`, then one change after the other for ever, in order of time."""
    dice = shop.dice("products")
    return history(
        lambda number: _new_product(number, dice, start_ms),
        lambda old, time_ms: _changed(old, dice, time_ms),
        size=shop.products,
        change_every=shop.product_change_every,
        dice=dice,
        start_ms=start_ms,
    )


def product_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `products`: without what is not listed, or not yet."""
    ids = [product_id(number) for number in range(shop.products)]
    unlisted = listing_times(ids, shop.unlisted, shop.dice("products/unlisted"), start_ms)
    return told("products", (version._asdict() for version in product_versions(shop, start_ms)), unlisted)


class Prices:
    """What products cost, listed or not, as time advances."""

    def __init__(self, shop: Shop, start_ms: int) -> None:
        self._versions = product_versions(shop, start_ms)
        self._upcoming = next(self._versions)
        self._prices: dict[str, Decimal] = {}

    def at(self, product: str, time_ms: int) -> Decimal:
        """The price of the moment; ask in order of time."""
        while self._upcoming.changed_at <= time_ms:
            self._prices[self._upcoming.product_id] = self._upcoming.unit_price
            self._upcoming = next(self._versions)
        return self._prices[product]


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
    moved_cents = int(old.unit_price * 100 * Decimal(str(round(0.85 + dice.random() * 0.3, 3))))
    category = CATEGORIES[int(dice.random() * len(CATEGORIES))] if dice.random() < 0.1 else old.category
    return old._replace(unit_price=cents(max(50, moved_cents)), category=category, changed_at=time_ms)
