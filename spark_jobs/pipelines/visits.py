"""Visits to the café, from JSON files; the later times may be missing."""

from tidemark import Files, Ingest, NotNull, Sink

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
    description="One row for each visit to the café; later times may be missing.",
    owner="café",
    column_descriptions={
        "visit_id": "Number of the visit; the same if it is sent twice.",
        "guest_id": "Who came.",
        "seated_at": "When the guest was seated, UTC.",
        "ordered_at": "When the guest ordered, UTC.",
        "served_at": "When the drink was served, UTC.",
        "paid_at": "When the guest paid, UTC.",
        "drink": "What was ordered.",
    },
)
