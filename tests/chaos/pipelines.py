"""What the killed drivers run: pipelines of each kind, with pinned batches (one file a batch), at full speed."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from spark_jobs.pipelines import registry
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Definition,
    Enrich,
    Join,
    Pipeline,
    Process,
    Processor,
    Sink,
    Sliding,
    Table,
    Timers,
    Tumbling,
    Watermark,
)

LOOKUP = "silver.categories"
"""Where categories of products are looked up; the tests fill it."""


def _one_file_a_batch(definition: Definition) -> Definition:
    # The landing folder is shared by all lakes of a test; it is named by the environment of the driver.
    source = definition.source.model_copy(update={"max_files_per_trigger": 1})
    return definition.model_copy(update={"source": source, "trigger_interval": timedelta(0)})


def _of_sales(name: str, *steps: object) -> Definition:
    return _one_file_a_batch(
        Pipeline(
            name=name,
            source=Table("bronze.sales"),
            event_time="sold_at",
            watermark=Watermark(delay="2 minutes"),
            steps=steps,
            sink=Sink(f"gold.{name}"),
        )
    )


class Pauses(Processor):
    """How many units of a product were sold without a pause of ten minutes: each timer gives a row."""

    output: ClassVar = {"units": "BIGINT"}
    state: ClassVar = {"units": "BIGINT"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        state["units"] = (state["units"] or 0) + event["quantity"]
        timers.set("pause", event["sold_at"] + timedelta(minutes=10))

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> list[Mapping]:
        return [{"units": state.pop("units")}]


ingest_sales = _one_file_a_batch(registry()["ingest_sales"])
ingest_orders = _one_file_a_batch(registry()["ingest_orders"])
top_products = _one_file_a_batch(registry()["top_products"])
top_products_live = _one_file_a_batch(registry()["top_products_live"])
shop_totals = _one_file_a_batch(registry()["shop_totals"])
first_sales = _of_sales("first_sales", Deduplicate("_event_id", within="1 hour"))
sales_and_orders = _of_sales(
    "sales_and_orders",
    Join(
        Table(
            "bronze.orders", select={"product_id": "product_id", "ordered_at": "ordered_at"}, max_files_per_trigger=1
        ),
        on=("product_id",),
        event_time="ordered_at",
        within="10 minutes",
        how="full",
    ),
)
sales_by_category = _of_sales(
    "sales_by_category",
    Enrich(LOOKUP, on=("product_id",), columns={"category": "category"}, missing="quarantine"),
    Aggregate(window=Tumbling("1 hour"), by=("category",), measures={"units": "sum(quantity)"}),
)
sales_before = _of_sales("sales_before", Sliding("1 hour", by=("product_id",), measures={"units": "sum(quantity)"}))
sale_pauses = _of_sales("sale_pauses", Process(Pauses, by=("product_id",)))
