"""Orders with their payments within the hour, orders that nobody has paid by then, and payments without an order."""

from tidemark import Between, Conservation, Join, Pipeline, Satisfies, Sink, Table, Watermark

PAYMENTS = Table(
    "bronze.order_payments",
    select={
        "order_id": "order_id",
        "payment_id": "payment_id",
        "paid": "amount",
        "method": "method",
        "paid_at": "paid_at",
    },
)

order_payments = Pipeline(
    name="order_payments",
    source=Table("bronze.orders"),
    event_time="ordered_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(Join(PAYMENTS, on=("order_id",), event_time="paid_at", within="1 hour", how="full"),),
    sink=Sink("gold.order_payments"),
    expectations=(
        Between("paid", min=0),
        Satisfies("an order or a payment", "ordered_at IS NOT NULL OR payment_id IS NOT NULL"),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="Orders with their payments within the hour; those without, and payments without an order.",
    owner="shop",
    column_descriptions={
        "paid": "What was paid, EUR; null: no payment within the hour.",
    },
)
