"""Orders of the shop, from JSON files; an amount may be missing, 0 or negative."""

from tidemark import Conservation, Files, Ingest, NotNull, Sink

ingest_orders = Ingest(
    name="ingest_orders",
    source=Files("landing/orders"),
    columns={
        "order_id": "STRING",
        "customer_id": "STRING",
        "product_id": "STRING",
        "amount": "DECIMAL(10, 2)",
        "ordered_at": "TIMESTAMP",
    },
    event_time="ordered_at",
    event_id="order_id",
    rules=(NotNull("customer_id"), NotNull("product_id")),
    sink=Sink("bronze.orders"),
    expectations=(Conservation(),),
    trigger_interval="10 seconds",
    description="One row for each order of the shop.",
    owner="shop",
    column_descriptions={
        "order_id": "Number of the order; the same if it is sent twice.",
        "customer_id": "Who ordered; see silver.customers.",
        "product_id": "What was ordered; see silver.products.",
        "amount": "What is to be paid, EUR; may be missing, 0 or negative.",
        "ordered_at": "When it was ordered, UTC.",
    },
)
