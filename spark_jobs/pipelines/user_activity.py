"""Clicks per user in windows of five minutes: on time, within a minute of grace, or in the side output."""

from tidemark import Aggregate, Between, Conservation, Late, Pipeline, Sink, Table, Tumbling, Unique, Watermark

user_activity = Pipeline(
    name="user_activity",
    source=Table("bronze.clicks"),
    event_time="clicked_at",
    watermark=Watermark(delay="10 seconds", grace="1 minute", late=Late.SIDE_OUTPUT),
    steps=(Aggregate(window=Tumbling("5 minutes"), by=("user_id",), measures={"events": "count(*)"}),),
    sink=Sink("gold.user_activity"),
    expectations=(Between("events", min=1), Unique("window_start", "user_id"), Conservation()),
    trigger_interval="10 seconds",
    description="Clicks of each user in windows of five minutes.",
    owner="web",
    column_descriptions={
        "events": "Number of clicks in the window.",
    },
)
