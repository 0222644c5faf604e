"""The ten products of each hour with the most units sold, from state and a timer: what a window is made of.

`top_products` says the same with a window. They differ in what is late: here each sale behind the watermark is, there
one whose hour is over.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar

from tidemark import (
    Between,
    Conservation,
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
    Unique,
    Watermark,
)

HOUR = timedelta(hours=1)
MOST = 10


class TopOfTheHour(Processor):
    """Adds up the sales of an hour by product; when the hour is over, gives the ten with the most units."""

    output: ClassVar = {
        "place": "INT",
        "product_id": "STRING",
        "units": "BIGINT",
        "revenue": "DECIMAL(31, 2)",
    }
    state: ClassVar = {"products": "MAP<STRING, STRUCT<units: BIGINT, revenue: DECIMAL(31, 2)>>"}

    def on_event(self, key: Row, event: Row, state: State, timers: Timers) -> None:
        products = state["products"] or {}
        sums = products.setdefault(event["product_id"], {"units": 0, "revenue": 0})
        sums["units"] += event["quantity"]
        sums["revenue"] += event["quantity"] * event["unit_price"]
        state["products"] = products
        timers.set("over", key["hour"] + HOUR)

    def on_timer(self, key: Row, name: str, at: datetime, state: State, timers: Timers) -> Iterator[Row]:
        ranked = sorted(state["products"].items(), key=lambda each: (-each[1]["units"], each[0]))
        for place, (product_id, sums) in enumerate(ranked[:MOST], 1):
            yield {"place": place, "product_id": product_id, **sums}
        state["products"] = None


tumbling_by_hand = Pipeline(
    name="tumbling_by_hand",
    source=Table("bronze.sales"),
    event_time="sold_at",
    watermark=Watermark(delay="2 minutes"),
    steps=(Select({"hour": "date_trunc('HOUR', sold_at)"}), Process(TopOfTheHour, by=("hour",))),
    sink=Sink("gold.tumbling_by_hand"),
    expectations=(
        NotNull("product_id"),
        Between("units", min=1),
        Between("place", min=1, max=10),
        Unique("hour", "product_id"),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="The ten products of each hour with the most units sold, from state and a timer.",
    owner="shop",
    column_descriptions={
        "hour": "When the hour begins, UTC.",
        "sold_at": "When it is over, UTC.",
        "place": "1 is the product with the most units.",
        "units": "Units sold in the hour.",
        "revenue": "Units times their prices, EUR.",
    },
)
