"""The stream `card_payments`: what cards pay at home, and what thieves pay with them."""

import random
from collections.abc import Iterator
from decimal import Decimal
from itertools import count

from spark_jobs.simulator.catalogue import cents
from spark_jobs.simulator.ordering import in_order
from spark_jobs.simulator.shop import Shop, id_tag
from spark_jobs.simulator.streams import Event, Value

PAYMENTS_SHARE = 0.3
"""Payments of their owners, per sale."""

STOLEN = 0.004
"""Share of these after which a thief has the card: half of them pay 6 to 12 times at home within eight minutes, the
others once or twice in another country, 5 to 45 minutes after the owner has paid at home."""

COUNTRIES = ("DE", "FR", "NL", "PL", "IT", "ES", "AT", "DK")
_MINUTE_MS = 60_000


def card(number: int) -> str:
    """The id of the n-th card, from 0: "c-0001"."""
    return f"c-{number + 1:04d}"


def home_of(number: int) -> str:
    """The country in which the owner of the n-th card pays."""
    return COUNTRIES[number % len(COUNTRIES)]


def card_payment_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `card_payments`, in order of event time, for ever."""
    return in_order(_payments(shop, start_ms))


def _payments(shop: Shop, start_ms: int) -> Iterator[tuple[int, list[Event]]]:
    dice = shop.dice("card_payments")
    tag = id_tag(shop.seed, start_ms)
    elapsed_ms = 0.0
    for number in count(1):
        elapsed_ms += dice.expovariate(shop.events_per_event_s * PAYMENTS_SHARE) * 1000
        paid_at_ms, whose = start_ms + int(elapsed_ms), int(dice.random() * shop.cards)
        amount = cents(120 + int(dice.random() ** 3 * 15_000))
        payment_id = f"cp-{tag}-{number:08d}"
        own = _payment(f"{payment_id}-0", whose, home_of(whose), amount, paid_at_ms)
        stolen = list(_of_a_thief(payment_id, whose, paid_at_ms, dice)) if dice.random() < STOLEN else []
        yield paid_at_ms, [own, *stolen]


def _of_a_thief(payment_id: str, whose: int, after_ms: int, dice: random.Random) -> Iterator[Event]:
    if dice.random() < 0.5:
        times_ms = [after_ms + 1 + int(dice.random() * 8 * _MINUTE_MS) for _ in range(6 + int(dice.random() * 7))]
        where = home_of(whose)
    else:
        times_ms = [after_ms + int((5 + dice.random() * 40) * _MINUTE_MS) for _ in range(1 + int(dice.random() * 2))]
        where = home_of(whose + 1 + int(dice.random() * (len(COUNTRIES) - 1)))
    for number, paid_at_ms in enumerate(sorted(times_ms), 1):
        amount = cents(5_000 + int(dice.random() * 40_000))
        yield _payment(f"{payment_id}-{number}", whose, where, amount, paid_at_ms)


def _payment(payment_id: str, whose: int, country: str, amount: Decimal, paid_at_ms: int) -> Event:
    name = card(whose)
    values: dict[str, Value] = {
        "payment_id": payment_id,
        "card": name,
        "country": country,
        "amount": amount,
        "paid_at": paid_at_ms,
    }
    return Event("card_payments", paid_at_ms, payment_id, name, values)
