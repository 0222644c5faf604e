"""What the machines are doing, from JSON files: a row when it changes, which may arrive after readings of that time."""

from tidemark import Files, Ingest, NotNull, OneOf, Sink

ingest_statuses = Ingest(
    name="ingest_statuses",
    source=Files("landing/statuses"),
    columns={"machine_id": "STRING", "status": "STRING", "changed_at": "TIMESTAMP"},
    event_time="changed_at",
    rules=(
        NotNull("machine_id"),
        NotNull("status"),
        OneOf("status", ("running", "idle", "maintenance", "stopped")),
    ),
    sink=Sink("bronze.statuses"),
    trigger_interval="10 seconds",
    description="One row for each change of what a machine is doing.",
    owner="plant",
    column_descriptions={
        "machine_id": "The machine.",
        "status": "What it does from then on: running, idle, maintenance or stopped.",
        "changed_at": "From when on, UTC.",
    },
)
