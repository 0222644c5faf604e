"""How services answer requests, from JSON files."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_request_logs = Ingest(
    name="ingest_request_logs",
    source=Files("landing/request_logs"),
    columns={
        "request_id": "STRING",
        "service": "STRING",
        "status_code": "INT",
        "latency_ms": "INT",
        "requested_at": "TIMESTAMP",
    },
    event_time="requested_at",
    event_id="request_id",
    rules=(
        NotNull("service"),
        NotNull("status_code"),
        Between("status_code", min=100, max=599),
        NotNull("latency_ms"),
        Between("latency_ms", min=0),
    ),
    sink=Sink("bronze.request_logs"),
    trigger_interval="10 seconds",
    description="One row for each request that a service has answered.",
    owner="operations",
    column_descriptions={
        "request_id": "Number of the request; the same if its log line is sent twice.",
        "service": "Which service answered.",
        "status_code": "How, as a status of HTTP; from 500 on it failed.",
        "latency_ms": "How long that took, milliseconds.",
        "requested_at": "When the request came, UTC.",
    },
)
