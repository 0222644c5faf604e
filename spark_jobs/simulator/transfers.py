"""The stream `transfers`: money that comes to accounts, or leaves them."""

from collections.abc import Iterator
from itertools import count

from spark_jobs.simulator.catalogue import cents
from spark_jobs.simulator.shop import Shop, id_tag
from spark_jobs.simulator.streams import Event, Value

TRANSFERS_SHARE = 0.2
"""Transfers per sale."""

INCOMING = 0.25
"""Share of the transfers that come to the account; on average they are three times as large as the others."""


def account(number: int) -> str:
    """The id of the n-th account, from 0: "a-0001"."""
    return f"a-{number + 1:04d}"


def transfer_events(shop: Shop, start_ms: int) -> Iterator[Event]:
    """The stream `transfers`, in order of event time, for ever. No amount is zero."""
    dice = shop.dice("transfers")
    tag = id_tag(shop.seed, start_ms)
    elapsed_ms = 0.0
    for number in count(1):
        elapsed_ms += dice.expovariate(shop.events_per_event_s * TRANSFERS_SHARE) * 1000
        booked_at_ms = start_ms + int(elapsed_ms)
        whose, comes, size = account(int(dice.random() * shop.accounts)), dice.random() < INCOMING, dice.random()
        amount = cents(300 + int(size**2 * 60_000)) if comes else -cents(100 + int(size**2 * 20_000))
        transfer_id = f"t-{tag}-{number:08d}"
        values: dict[str, Value] = {
            "transfer_id": transfer_id,
            "account": whose,
            "amount": amount,
            "booked_at": booked_at_ms,
        }
        yield Event("transfers", booked_at_ms, transfer_id, whose, values)
