"""Visits to the café, from JSON files; the later times may be missing."""

from spark_jobs.spec import Files, Ingest, NotNull, Sink

ingest_visits = Ingest(
    name="ingest_visits",
    source=Files("landing/visits"),
    columns={
        "visit_id": "STRING",
        "guest_id": "STRING",
        "seated_at": "TIMESTAMP",
        "ordered_at": "TIMESTAMP",
        "served_at": "TIMESTAMP",
        "paid_at": "TIMESTAMP",
        "drink": "STRING",
    },
    event_time="seated_at",
    event_id="visit_id",
    rules=(NotNull("guest_id"),),
    sink=Sink("bronze.visits"),
    trigger_interval="10 seconds",
)
