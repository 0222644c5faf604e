"""Sales of the shop, from JSON files."""

from spark_jobs.spec import Between, Files, Ingest, NotNull, Sink

ingest_sales = Ingest(
    name="ingest_sales",
    source=Files("landing/sales"),
    columns={
        "sale_id": "STRING",
        "product_id": "STRING",
        "quantity": "INT",
        "unit_price": "DECIMAL(10, 2)",
        "sold_at": "TIMESTAMP",
    },
    event_time="sold_at",
    event_id="sale_id",
    rules=(NotNull("product_id"), Between("quantity", min=1), Between("unit_price", min=0)),
    sink=Sink("bronze.sales"),
    trigger_interval="5 seconds",
)
