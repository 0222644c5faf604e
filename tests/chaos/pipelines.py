"""What the killed drivers run: pipelines of each kind, with pinned batches (one file a batch), at full speed."""

from datetime import timedelta

from spark_jobs.pipelines import registry
from spark_jobs.spec import Aggregate, Deduplicate, Definition, Enrich, Join, Pipeline, Sink, Table, Tumbling, Watermark

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
