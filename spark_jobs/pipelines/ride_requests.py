"""Who wants to be driven, and from where, from JSON files."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_ride_requests = Ingest(
    name="ingest_ride_requests",
    source=Files("landing/ride_requests"),
    columns={
        "request_id": "STRING",
        "rider_id": "STRING",
        "latitude": "DOUBLE",
        "longitude": "DOUBLE",
        "requested_at": "TIMESTAMP",
    },
    event_time="requested_at",
    event_id="request_id",
    rules=(
        NotNull("rider_id"),
        NotNull("latitude"),
        Between("latitude", min=-90, max=90),
        NotNull("longitude"),
        Between("longitude", min=-180, max=180),
    ),
    sink=Sink("bronze.ride_requests"),
    trigger_interval="10 seconds",
    description="One row for each ride that somebody asks for.",
    owner="rides",
    column_descriptions={
        "request_id": "Number of the request; the same if it is sent twice.",
        "rider_id": "Who asks.",
        "latitude": "Where the rider stands, degrees.",
        "longitude": "Where the rider stands, degrees.",
        "requested_at": "When the ride was asked for, UTC.",
    },
)
