"""Where the drivers are, from JSON files; a driver who is off duty sends nothing."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_driver_positions = Ingest(
    name="ingest_driver_positions",
    source=Files("landing/driver_positions"),
    columns={"driver_id": "STRING", "latitude": "DOUBLE", "longitude": "DOUBLE", "seen_at": "TIMESTAMP"},
    event_time="seen_at",
    rules=(
        NotNull("driver_id"),
        NotNull("latitude"),
        Between("latitude", min=-90, max=90),
        NotNull("longitude"),
        Between("longitude", min=-180, max=180),
    ),
    sink=Sink("bronze.driver_positions"),
    trigger_interval="10 seconds",
    description="One row for each position of a driver on duty.",
    owner="rides",
    column_descriptions={
        "driver_id": "The driver.",
        "latitude": "Where the car is, degrees.",
        "longitude": "Where the car is, degrees.",
        "seen_at": "When it was there, UTC.",
    },
)
