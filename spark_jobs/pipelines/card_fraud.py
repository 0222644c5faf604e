"""Cases of cards that are used too often, for too much, or in two countries within an hour.

A case is told once, with the payment that makes it one, and again only after a payment that did not.
"""

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import ClassVar

from tidemark import (
    Between,
    Conservation,
    NotNull,
    OneOf,
    Pipeline,
    Process,
    Processor,
    Row,
    Sink,
    State,
    Table,
    Timers,
    Watermark,
)

SPAN = timedelta(minutes=10)
MOST_PAYMENTS = 5
MOST_MONEY = Decimal(1000)
TRAVEL = timedelta(hours=1)


class Fraud(Processor):
    """Keeps the payments of the last ten minutes, and when each country was paid in last.

    A payment that is told twice has the same time: its number is among those of the last ten minutes.
    """

    output: ClassVar = {
        "reason": "STRING",
        "payment_id": "STRING",
        "payments": "INT",
        "paid": "DECIMAL(12, 2)",
        "countries": "ARRAY<STRING>",
    }
    state: ClassVar = {
        "recent": "ARRAY<STRUCT<payment_id: STRING, paid_at: TIMESTAMP, amount: DECIMAL(10, 2)>>",
        "countries": "MAP<STRING, TIMESTAMP>",
        "told": "ARRAY<STRING>",
    }

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> Iterator[Row]:
        now = event["paid_at"]
        recent = [each for each in state["recent"] or () if each["paid_at"] > now - SPAN]
        if event["payment_id"] in [each["payment_id"] for each in recent]:
            return
        recent.append({name: event[name] for name in ("payment_id", "paid_at", "amount")})
        before = (state["countries"] or {}).items()
        countries = {**{name: at for name, at in before if at >= now - TRAVEL}, event["country"]: now}
        paid = sum(each["amount"] for each in recent)
        holds = {"count": len(recent) > MOST_PAYMENTS, "sum": paid > MOST_MONEY, "countries": len(countries) > 1}
        for reason, is_case in holds.items():
            if is_case and reason not in (state["told"] or ()):
                yield {
                    "reason": reason,
                    "payment_id": event["payment_id"],
                    "payments": len(recent),
                    "paid": paid,
                    "countries": sorted(countries),
                }
        state.update(recent=recent, countries=countries, told=[name for name, is_case in holds.items() if is_case])


card_fraud = Pipeline(
    name="card_fraud",
    source=Table("bronze.card_payments"),
    event_time="paid_at",
    watermark=Watermark(delay="10 minutes"),
    # Nothing of a card matters an hour after its last payment.
    steps=(Process(Fraud, by=("card",), ttl="1 hour"),),
    sink=Sink("gold.card_fraud"),
    expectations=(
        NotNull("card"),
        OneOf("reason", ("count", "sum", "countries")),
        Between("payments", min=1),
        Between("paid", min=0),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="Cards with more than 5 payments or 1,000 EUR in 10 minutes, or paid with in two countries in an hour.",
    owner="bank",
    column_descriptions={
        "card": "The card, by a number that is not its own.",
        "paid_at": "The payment that makes it a case, UTC.",
        "reason": "count, sum or countries.",
        "payment_id": "Number of that payment.",
        "payments": "Payments in the 10 minutes up to it.",
        "paid": "Their sum, EUR.",
        "countries": "Where the card was paid with in the hour up to it.",
    },
)
