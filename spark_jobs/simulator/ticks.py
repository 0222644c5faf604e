"""The stream `ticks`: trades of shares, whose prices wander."""

import heapq
from collections.abc import Iterator
from itertools import count

from spark_jobs.simulator.catalogue import cents
from spark_jobs.simulator.shop import Shop
from spark_jobs.simulator.streams import Event, Value

TICKS_SHARE = 0.5
"""Ticks of all symbols together, per sale."""

_SYLLABLES = ("TID", "MAR", "SOL", "KEL", "BRI", "NOR", "PEL", "ORC", "WAD", "FJO")


def symbol(number: int) -> str:
    """The n-th symbol, from 0: "TID", after ten of them "TID2"."""
    again, place = divmod(number, len(_SYLLABLES))
    return f"{_SYLLABLES[place]}{again + 1 if again else ''}"


def tick_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `ticks`, in order of event time, for ever; no two of a symbol have the same time."""
    symbols = [_ticks_of(symbol(number), shop, start_ms) for number in range(shop.symbols)]
    return heapq.merge(*symbols, key=lambda event: event.event_time_ms)


def _ticks_of(name: str, shop: Shop, start_ms: int) -> Iterator[Event]:
    dice = shop.dice(f"ticks/{name}")
    per_ms = shop.events_per_event_s * TICKS_SHARE / shop.symbols / 1000
    price_cents = 1_000 + int(dice.random() ** 2 * 40_000)
    traded_at_ms = start_ms
    for number in count():
        traded_at_ms += 1 + int(dice.expovariate(per_ms))
        # At most half a percent a trade, back towards where it is neither worthless nor out of reach.
        pull = 0.0002 if price_cents < 500 else -0.0002 if price_cents > 100_000 else 0.0
        price_cents = max(100, round(price_cents * (1 + pull + max(-0.005, min(0.005, dice.gauss(0.0, 0.0015))))))
        values: dict[str, Value] = {
            "symbol": name,
            "price": cents(price_cents),
            "volume": 1 + int(dice.expovariate(1 / 60)),
            "traded_at": traded_at_ms,
        }
        yield Event("ticks", traded_at_ms, f"{name}@{number}", name, values)
