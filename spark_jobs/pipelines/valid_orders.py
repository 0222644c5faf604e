"""Orders that somebody must pay, with the customer: their count and sum by customer and minute."""

from tidemark import (
    Aggregate,
    Between,
    Enrich,
    NotNull,
    Pipeline,
    Referential,
    Select,
    Sink,
    Table,
    Tumbling,
    Unique,
    Watermark,
    Where,
)

valid_orders = Pipeline(
    name="valid_orders",
    source=Table("bronze.orders"),
    event_time="ordered_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(
        Where("amount > 0"),
        Select({"large": "amount >= 100"}),
        Enrich(
            "silver.customers",
            on=("customer_id",),
            columns={"country": "country", "segment": "segment"},
            missing="quarantine",
        ),
        Aggregate(
            window=Tumbling("1 minute"),
            by=("customer_id", "country", "segment"),
            measures={"orders": "count(*)", "large_orders": "count_if(large)", "amount": "sum(amount)"},
        ),
    ),
    sink=Sink("gold.valid_orders"),
    expectations=(
        NotNull("country"),
        Between("amount", min=0),
        Unique("window_start", "customer_id", "country", "segment"),
        Referential("customer_id", "silver.customers"),
    ),
    trigger_interval="10 seconds",
    description="Orders that somebody must pay, by customer and minute.",
    owner="shop",
    column_descriptions={
        "orders": "Orders with an amount above 0.",
        "large_orders": "Of these, orders of 100 EUR or more.",
        "amount": "Sum of the orders, EUR.",
    },
)
