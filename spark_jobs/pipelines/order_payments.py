"""How orders of the shop are paid, from JSON files."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_order_payments = Ingest(
    name="ingest_order_payments",
    source=Files("landing/order_payments"),
    columns={
        "payment_id": "STRING",
        "order_id": "STRING",
        "amount": "DECIMAL(10, 2)",
        "method": "STRING",
        "paid_at": "TIMESTAMP",
    },
    event_time="paid_at",
    event_id="payment_id",
    rules=(NotNull("order_id"), NotNull("amount"), Between("amount", min=0)),
    sink=Sink("bronze.order_payments"),
    trigger_interval="10 seconds",
    description="One row for each payment of an order of the shop.",
    owner="shop",
    column_descriptions={
        "payment_id": "Number of the payment; the same if it is sent twice.",
        "order_id": "The order that is paid.",
        "amount": "What was paid, EUR.",
        "method": "How it was paid, such as card.",
        "paid_at": "When it was paid, UTC.",
    },
)
