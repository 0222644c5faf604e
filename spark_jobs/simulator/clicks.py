"""The stream `clicks`: people who walk through the web shop, session by session."""

import heapq
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count

from spark_jobs.simulator.catalogue import CATEGORIES, product_id
from spark_jobs.simulator.shop import Shop, id_tag, popularity
from spark_jobs.simulator.streams import Event, Value

MEAN_CLICKS_PER_SESSION = 5.97
"""Measured over a million sessions of `_pages`; turns clicks per second into sessions per second."""

LONGEST_PAUSE_MS = 20 * 60_000
"""Within a session nobody is silent for longer: well below the usual gap of 30 minutes."""


def click_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """Clicks in order of event time, for ever.

    Sessions begin as a Poisson process, by any user; those of one user may overlap.
    """
    dice = shop.dice("clicks")
    shares = popularity(shop.products, shop.dice("popularity"))
    sessions_per_s = shop.events_per_event_s / MEAN_CLICKS_PER_SESSION
    tag = id_tag(shop.seed, start_ms)
    numbers = count(1)
    pending: list[tuple[int, int, str, str]] = []  # time, tie-breaker, user, page
    elapsed_ms, planned = 0.0, 0
    while True:
        elapsed_ms += dice.expovariate(sessions_per_s) * 1000
        begins_ms = start_ms + int(elapsed_ms)
        while pending and pending[0][0] <= begins_ms:
            time_ms, _, user, page = heapq.heappop(pending)
            yield _click(f"c-{tag}-{next(numbers):08d}", user, page, time_ms)
        user = f"u-{int(dice.random() * shop.users) + 1:04d}"
        time_ms = begins_ms
        for page in _pages(dice, shares):
            planned += 1
            heapq.heappush(pending, (time_ms, planned, user, page))
            time_ms += _pause_ms(dice)


def _click(click_id: str, user: str, page: str, time_ms: int) -> Event:
    values: dict[str, Value] = {"click_id": click_id, "user_id": user, "page": page, "clicked_at": time_ms}
    return Event(stream="clicks", event_time_ms=time_ms, event_id=click_id, key=user, values=values)


def _pages(dice: random.Random, shares: list[float]) -> Iterator[str]:
    """One session: in by the home page or straight at a product, some browsing, sometimes a purchase."""
    if dice.random() < 0.7:
        yield "home"
        if dice.random() < 0.2:
            return
    while True:
        if dice.random() < 0.25:
            yield f"category/{CATEGORIES[int(dice.random() * len(CATEGORIES))]}"
        yield f"product/{product_id(min(bisect_right(shares, dice.random()), len(shares) - 1))}"
        if dice.random() < 0.25:
            break
    if dice.random() < 0.5:
        yield "cart"
        if dice.random() < 0.7:
            yield "checkout"
            if dice.random() < 0.8:
                yield "checkout/done"


def _pause_ms(dice: random.Random) -> int:
    """Seconds as a rule, minutes now and then."""
    if dice.random() < 0.03:
        return int(300_000 + dice.random() * (LONGEST_PAUSE_MS - 300_000))
    return min(LONGEST_PAUSE_MS, 1_000 + int(dice.expovariate(1 / 25_000)))
