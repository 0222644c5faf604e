"""What guests of the café do today and this week, by the clock on its wall: visits a day, spending a week.

Both tables are so far: a row is there after the first visit or payment, and changes with each further one. A visit that
is told twice counts once.
"""

from tidemark import (
    Aggregate,
    Between,
    Calendar,
    Conservation,
    Late,
    Pipeline,
    Select,
    Sink,
    Table,
    Unique,
    Watermark,
)

ZONE = "Europe/Berlin"
# A guest who paid may be told of two hours later, where the network of the café was down.
PATIENT = Watermark(delay="10 minutes", grace="2 hours", late=Late.UPDATE)

cafe_visits = Pipeline(
    name="cafe_visits",
    source=Table("bronze.visits"),
    event_time="seated_at",
    watermark=PATIENT,
    steps=(
        Aggregate(
            window=Calendar("day", tz=ZONE),
            by=("guest_id",),
            measures={"visits": "size(collect_set(visit_id))", "last_seated_at": "max(seated_at)"},
        ),
        Select({"day": f"CAST(from_utc_timestamp(window_start, '{ZONE}') AS DATE)"}),
    ),
    sink=Sink("gold.cafe_visits", mode="update"),
    expectations=(Between("visits", min=1), Unique("window_start", "guest_id"), Conservation()),
    trigger_interval="10 seconds",
    description="Visits of each guest of the café, day by day in the café's time zone; today's so far.",
    owner="café",
    column_descriptions={
        "guest_id": "Who came.",
        "visits": "How often on that day, so far.",
        "last_seated_at": "When the guest sat down last, UTC.",
        "day": "The day, in the café's time zone.",
    },
)

cafe_spending = Pipeline(
    name="cafe_spending",
    source=Table("bronze.payments"),
    event_time="paid_at",
    watermark=PATIENT,
    steps=(
        Aggregate(
            window=Calendar("week", tz=ZONE),
            by=("guest_id",),
            measures={
                "payments": "size(collect_set(payment_id))",
                "spent": "aggregate(sort_array(collect_set(struct(payment_id, amount))), CAST(0 AS DECIMAL(12, 2)), "
                "(sum, each) -> CAST(sum + each.amount AS DECIMAL(12, 2)))",
            },
        ),
        Select({"week": f"CAST(from_utc_timestamp(window_start, '{ZONE}') AS DATE)"}),
    ),
    sink=Sink("gold.cafe_spending", mode="update"),
    expectations=(Between("spent", min=0), Unique("window_start", "guest_id"), Conservation()),
    trigger_interval="10 seconds",
    description="What each guest of the café spends, week by week from Monday in the café's time zone; so far.",
    owner="café",
    column_descriptions={
        "guest_id": "Who paid.",
        "payments": "How often in that week, so far.",
        "spent": "Sum of these payments, EUR.",
        "week": "Its Monday, in the café's time zone.",
    },
)
