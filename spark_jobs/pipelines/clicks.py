"""Clicks in the shop, from JSON files."""

from spark_jobs.spec import Files, Ingest, NotNull, Sink

ingest_clicks = Ingest(
    name="ingest_clicks",
    source=Files("landing/clicks"),
    columns={"click_id": "STRING", "user_id": "STRING", "page": "STRING", "clicked_at": "TIMESTAMP"},
    event_time="clicked_at",
    event_id="click_id",
    rules=(NotNull("user_id"), NotNull("page")),
    sink=Sink("bronze.clicks"),
    trigger_interval="10 seconds",
)
