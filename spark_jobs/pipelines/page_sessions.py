"""What each user did between two half-hours of silence: the pages in order, and whether it led to a purchase."""

from tidemark import (
    Aggregate,
    Between,
    Conservation,
    Late,
    Pipeline,
    Satisfies,
    Session,
    Sink,
    Table,
    Unique,
    Watermark,
)

page_sessions = Pipeline(
    name="page_sessions",
    source=Table("bronze.clicks"),
    event_time="clicked_at",
    watermark=Watermark(delay="2 minutes", late=Late.SIDE_OUTPUT),
    steps=(
        Aggregate(
            window=Session("30 minutes"),
            by=("user_id",),
            measures={
                "session_start": "min(clicked_at)",
                "session_end": "max(clicked_at)",
                "event_count": "count(*)",
                "pages": "transform(array_sort(collect_list(struct(clicked_at, click_id, page))), click -> click.page)",
                "led_to_purchase": "max(page = 'checkout/done')",
            },
        ),
    ),
    sink=Sink("gold.page_sessions"),
    expectations=(
        Between("event_count", min=1),
        Satisfies("it ends after it starts", "session_end >= session_start"),
        Unique("window_start", "user_id"),
        Conservation(),
    ),
    trigger_interval="10 seconds",
    description="What each user did between two half-hours of silence.",
    owner="web",
    column_descriptions={
        "session_start": "First click, UTC.",
        "session_end": "Last click, UTC.",
        "event_count": "Number of clicks.",
        "pages": "Pages in the order in which they were opened.",
        "led_to_purchase": "Whether an order was completed.",
    },
)
