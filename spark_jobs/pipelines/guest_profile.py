"""Per guest of the café: visits, money spent, last seen. A running total over two streams."""

from tidemark import Aggregate, Between, NotNull, Pipeline, Sink, Table, Union, Unique

guest_profile = Pipeline(
    name="guest_profile",
    source=Union(
        Table(
            "bronze.visits",
            select={
                "guest_id": "guest_id",
                "seen_at": "seated_at",
                "visits": "1",
                "spent": "CAST(0 AS DECIMAL(10, 2))",
            },
        ),
        Table(
            "bronze.payments",
            select={"guest_id": "guest_id", "seen_at": "paid_at", "visits": "0", "spent": "amount"},
        ),
    ),
    steps=(
        Aggregate(
            by=("guest_id",),
            measures={"visits": "sum(visits)", "total_spent": "sum(spent)", "last_seen": "max(seen_at)"},
        ),
    ),
    sink=Sink("gold.guest_profile", mode="update"),
    expectations=(NotNull("guest_id"), Between("total_spent", min=0), Unique("guest_id")),
    trigger_interval="10 seconds",
    description="Each guest of the café: visits, money spent, last seen.",
    owner="café",
    column_descriptions={
        "visits": "Number of visits.",
        "total_spent": "Sum of all payments, EUR.",
        "last_seen": "Newest visit or payment, UTC.",
    },
)
