"""The streams `visits` and `payments`: guests of the café, and what they pay for those visits."""

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from spark_jobs.simulator.catalogue import cents
from spark_jobs.simulator.ordering import in_order
from spark_jobs.simulator.shop import Shop, id_tag
from spark_jobs.simulator.streams import Event, Value

VISITS_SHARE = 0.1
"""Visits per sale."""

_DRINKS = {
    "espresso": 280,
    "filter coffee": 320,
    "cappuccino": 380,
    "flat white": 410,
    "tea": 310,
    "hot chocolate": 420,
    "lemonade": 390,
}
_STEPS = ("seated_at", "ordered_at", "served_at", "paid_at")


class Visit(NamedTuple):
    """One visit. Once a step is missing, all later ones are: nobody is served who has not ordered."""

    visit_id: str
    guest_id: str
    times_ms: tuple[int | None, ...]  # in the order of `_STEPS`
    drink: str | None
    amount: Decimal | None

    @property
    def seated_at_ms(self) -> int:
        """When the guest sat down; never missing."""
        assert self.times_ms[0] is not None
        return self.times_ms[0]


def visits(shop: Shop, start_ms: int) -> Iterator[Visit]:
    """Visits in order of `seated_at`, for ever. Both streams are made from these."""
    dice = shop.dice("visits")
    tag = id_tag(shop.seed, start_ms)
    elapsed_ms, number = 0.0, 0
    while True:
        elapsed_ms += dice.expovariate(shop.events_per_event_s * VISITS_SHARE) * 1000
        number += 1
        guest = f"g-{int(dice.random() * shop.guests) + 1:04d}"
        yield _visit(f"v-{tag}-{number:08d}", guest, start_ms + int(elapsed_ms), dice)


def visit_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `visits` in order of event time: a row per visit, with `visit_updates` a row per step."""
    rows = visits(shop, start_ms)
    if not shop.visit_updates:
        return (_visit_row(visit, len(_STEPS), visit.visit_id, visit.seated_at_ms) for visit in rows)
    return in_order((visit.seated_at_ms, list(_steps(visit))) for visit in rows)


def payment_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `payments`, in order of `paid_at`: one for each visit that was paid."""
    return in_order((visit.seated_at_ms, list(_payment(visit))) for visit in visits(shop, start_ms))


def _visit(visit_id: str, guest: str, seated_at_ms: int, dice: random.Random) -> Visit:
    # All numbers are drawn whatever happens, so that one guest's luck does not change the next one's.
    to_order, to_serve, to_pay, missing_at, pick, extras = (dice.random() for _ in range(6))
    ordered_at_ms = seated_at_ms + 30_000 + int(to_order * 240_000)
    served_at_ms = ordered_at_ms + 60_000 + int(to_serve**2 * 540_000)
    paid_at_ms = served_at_ms + 300_000 + int(to_pay * 3_300_000)
    known = 1 if missing_at < 0.04 else 2 if missing_at < 0.06 else 3 if missing_at < 0.1 else 4
    times_ms = (seated_at_ms, ordered_at_ms, served_at_ms, paid_at_ms)
    drink = list(_DRINKS)[int(pick * len(_DRINKS))]
    return Visit(
        visit_id=visit_id,
        guest_id=guest,
        times_ms=tuple(t if step < known else None for step, t in enumerate(times_ms)),
        drink=drink if known > 1 else None,
        amount=cents(_DRINKS[drink] + int(extras**2 * 1_500)) if known == 4 else None,
    )


def _visit_row(visit: Visit, known_steps: int, event_id: str, event_time_ms: int) -> Event:
    times = {
        step: time_ms if place < known_steps else None
        for place, (step, time_ms) in enumerate(zip(_STEPS, visit.times_ms, strict=True))
    }
    drink = visit.drink if known_steps > 1 else None
    ids: dict[str, Value] = {"visit_id": visit.visit_id, "guest_id": visit.guest_id}
    return Event("visits", event_time_ms, event_id, visit.guest_id, {**ids, **times, "drink": drink})


def _steps(visit: Visit) -> Iterator[Event]:
    for place, (step, time_ms) in enumerate(zip(_STEPS, visit.times_ms, strict=True)):
        if time_ms is not None:
            event_id = f"{visit.visit_id}@{step.removesuffix('_at')}"
            yield _visit_row(visit, place + 1, event_id, time_ms)


def _payment(visit: Visit) -> Iterator[Event]:
    paid_at_ms = visit.times_ms[3]
    if paid_at_ms is not None:
        payment_id = visit.visit_id.replace("v-", "pay-", 1)
        values: dict[str, Value] = {
            "payment_id": payment_id,
            "guest_id": visit.guest_id,
            "visit_id": visit.visit_id,
            "amount": visit.amount,
            "paid_at": paid_at_ms,
        }
        yield Event("payments", paid_at_ms, payment_id, visit.guest_id, values)
