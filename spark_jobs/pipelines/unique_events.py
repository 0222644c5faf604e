"""Clicks without those that were sent twice."""

from tidemark import Conservation, Deduplicate, NotNull, Pipeline, Sink, Table, Watermark

unique_events = Pipeline(
    name="unique_events",
    source=Table("bronze.clicks"),
    event_time="clicked_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(Deduplicate("_event_id", within="1 hour"),),
    sink=Sink("silver.unique_clicks"),
    expectations=(NotNull("user_id"), NotNull("page"), Conservation()),
    trigger_interval="10 seconds",
    description="Clicks, each of them once: without those that a browser sent again within the hour.",
    owner="web",
)
