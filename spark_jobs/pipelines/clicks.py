"""Clicks in the shop, from JSON files."""

from tidemark import Files, Ingest, NotNull, Sink

ingest_clicks = Ingest(
    name="ingest_clicks",
    source=Files("landing/clicks"),
    columns={"click_id": "STRING", "user_id": "STRING", "page": "STRING", "clicked_at": "TIMESTAMP"},
    event_time="clicked_at",
    event_id="click_id",
    rules=(NotNull("user_id"), NotNull("page")),
    sink=Sink("bronze.clicks"),
    trigger_interval="10 seconds",
    description="One row for each page that a visitor of the shop opened.",
    owner="web",
    column_descriptions={
        "click_id": "Number of the click; the same if a browser sends it twice.",
        "user_id": "Who clicked.",
        "page": "Path of the page in the shop.",
        "clicked_at": "When the browser opened the page, UTC.",
    },
)
