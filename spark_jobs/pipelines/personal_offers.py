"""Per user the three categories that were viewed most and not bought in the last day: what to offer.

Sales of the tills name no customer. So what a user buys is known from orders, and customer `cu-0007` is user `u-0007`.
A row is told when the three change; the newest row of a user says what to offer now.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from tidemark import (
    Conservation,
    Enrich,
    NotNull,
    Pipeline,
    Process,
    Processor,
    Row,
    Select,
    Sink,
    State,
    Table,
    Timers,
    Union,
    Watermark,
    Where,
)

DAY = timedelta(days=1)
MOST = 3

INTERESTS = Union(
    Table(
        "bronze.clicks",
        select={
            "user_id": "user_id",
            "happened_at": "clicked_at",
            "product_id": "CASE WHEN page LIKE 'product/%' THEN substring(page, 9) END",
            "page_category": "CASE WHEN page LIKE 'category/%' THEN substring(page, 10) END",
            "bought": "false",
            "amount": "CAST(NULL AS DECIMAL(10, 2))",
        },
    ),
    Table(
        "bronze.orders",
        select={
            "user_id": "concat('u-', substring(customer_id, 4))",
            "happened_at": "ordered_at",
            "product_id": "product_id",
            "page_category": "CAST(NULL AS STRING)",
            "bought": "true",
            "amount": "amount",
        },
    ),
)


class Offers(Processor):
    """Keeps when each category was viewed in the last day, and when it was bought last.

    Copies of a click have its time, and count once.
    """

    output: ClassVar = {"offers": "ARRAY<STRING>", "views": "ARRAY<INT>"}
    state: ClassVar = {
        "viewed": "MAP<STRING, ARRAY<TIMESTAMP>>",
        "bought": "MAP<STRING, TIMESTAMP>",
        "offers": "ARRAY<STRING>",
    }

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> Iterator[Row]:
        now, category = event["happened_at"], event["category"]
        viewed, bought = state["viewed"] or {}, state["bought"] or {}
        if event["bought"]:
            bought[category] = now
        else:
            viewed[category] = sorted({*viewed.get(category, ()), now})
        state.update(viewed=viewed, bought=bought)
        yield from self._changed(now, state, timers)

    def on_timer(self, key: Row, name: str, at: datetime, state: State, timers: Timers) -> Iterator[Row]:
        yield from self._changed(at, state, timers)

    def _changed(self, now: datetime, state: State, timers: Timers) -> Iterator[Row]:
        """Forgets what is a day old, says when the next will be, and gives a row if the offers are others."""
        recent = {name: [at for at in times if at > now - DAY] for name, times in (state["viewed"] or {}).items()}
        viewed = {name: times for name, times in recent.items() if times}
        bought = {name: at for name, at in (state["bought"] or {}).items() if at > now - DAY}
        wanted = sorted(viewed.keys() - bought.keys(), key=lambda name: (-len(viewed[name]), name))[:MOST]
        if wanted != (state["offers"] or []):
            yield {"offers": wanted, "views": [len(viewed[name]) for name in wanted]}
        state.update(viewed=viewed or None, bought=bought or None, offers=wanted or None)
        if kept := [*(times[0] for times in viewed.values()), *bought.values()]:
            timers.set("old", min(kept) + DAY)


personal_offers = Pipeline(
    name="personal_offers",
    source=INTERESTS,
    event_time="happened_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(
        # What was sent back, or is to be paid by nobody, was not bought.
        Where("(product_id IS NOT NULL OR page_category IS NOT NULL) AND (NOT bought OR amount > 0)"),
        Enrich("silver.products", on=("product_id",), columns={"product_category": "category"}),
        Select({"category": "coalesce(page_category, product_category)"}),
        # A product that the catalogue does not know is of no category that could be offered.
        Where("category IS NOT NULL"),
        Process(Offers, by=("user_id",)),
    ),
    sink=Sink("gold.personal_offers"),
    expectations=(NotNull("user_id"), NotNull("offers"), Conservation()),
    trigger_interval="10 seconds",
    description="Per user the three categories viewed most and not bought in the last day; a row when they change.",
    owner="marketing",
    column_descriptions={
        "user_id": "Who clicked, and ordered.",
        "happened_at": "When these became the three, UTC.",
        "offers": "Categories, the one that was viewed most first; empty: none is left.",
        "views": "How often each was viewed in the day before, in the same order.",
    },
)
