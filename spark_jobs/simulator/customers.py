"""People who order, and how their data slowly change."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from spark_jobs.simulator.changes import history, listing_times, told
from spark_jobs.simulator.shop import Shop
from spark_jobs.simulator.streams import Event

COUNTRIES = ("DE", "FR", "NL", "DK", "PL", "CH", "PT", "NO")
SEGMENTS = ("new", "regular", "business", "club")
_FIRST_NAMES = ("Ada", "Bo", "Chiara", "Dara", "Emil", "Fatima", "Goran", "Hanna", "Ines", "Jonas", "Kaya", "Liv")
_LAST_NAMES = ("Abel", "Berg", "Costa", "Dahl", "Ek", "Fabre", "Grau", "Holm", "Iversen", "Jansen", "Krol", "Löwe")


class CustomerVersion(NamedTuple):
    """A customer from `changed_at` on, until the next version."""

    customer_id: str
    name: str
    country: str
    segment: str
    changed_at: int


def customer_id(number: int) -> str:
    """The id of the n-th customer, from 0: "cu-0001"."""
    return f"cu-{number + 1:04d}"


def customer_versions(shop: Shop, start_ms: int) -> Iterator[CustomerVersion]:
    """All customers at `start_ms`, then one change after the other for ever, in order of time."""
    dice = shop.dice("customers")
    return history(
        lambda number: _new_customer(number, dice, start_ms),
        lambda old, time_ms: _changed(old, dice, time_ms),
        size=shop.customers,
        change_every=shop.customer_change_every,
        dice=dice,
        start_ms=start_ms,
    )


def customer_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `customers`: without who is not listed, or not yet."""
    ids = [customer_id(number) for number in range(shop.customers)]
    unlisted = listing_times(ids, shop.unlisted, shop.dice("customers/unlisted"), start_ms)
    return told("customers", (version._asdict() for version in customer_versions(shop, start_ms)), unlisted)


def _new_customer(number: int, dice: random.Random, start_ms: int) -> CustomerVersion:
    name = f"{_pick(_FIRST_NAMES, dice)} {_pick(_LAST_NAMES, dice)}"
    return CustomerVersion(customer_id(number), name, _pick(COUNTRIES, dice), _pick(SEGMENTS, dice), start_ms)


def _changed(old: CustomerVersion, dice: random.Random, time_ms: int) -> CustomerVersion:
    """Mostly another segment; now and then another country."""
    moves, place = dice.random() < 0.2, dice.random()
    if moves:
        return old._replace(country=_other(COUNTRIES, old.country, place), changed_at=time_ms)
    return old._replace(segment=_other(SEGMENTS, old.segment, place), changed_at=time_ms)


def _pick(choices: tuple[str, ...], dice: random.Random) -> str:
    return choices[int(dice.random() * len(choices))]


def _other(choices: tuple[str, ...], current: str, place: float) -> str:
    others = [choice for choice in choices if choice != current]
    return others[int(place * len(others))]
