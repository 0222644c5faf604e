"""Readings with what the machine was doing at that instant, and what each machine is doing now.

A reading waits for the watermark of both streams: so it finds its status also where that arrives later.
"""

from tidemark import Aggregate, AsOf, Conservation, NotNull, OneOf, Pipeline, Sink, Table, Unique, Watermark

STATUSES = Table(
    "bronze.statuses",
    select={"machine_id": "machine_id", "status": "status", "changed_at": "changed_at"},
)
KNOWN = ("running", "idle", "maintenance", "stopped")

machine_readings = Pipeline(
    name="machine_readings",
    source=Table("bronze.readings"),
    event_time="read_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(AsOf(STATUSES, on=("machine_id",), event_time="changed_at", keep="30 days"),),
    sink=Sink("gold.machine_readings"),
    expectations=(NotNull("machine_id"), OneOf("status", KNOWN), Conservation()),
    trigger_interval="10 seconds",
    description="Each reading with the status of its machine that held when it was read.",
    owner="plant",
    column_descriptions={
        "machine_id": "The machine.",
        "status": "What it was doing; null: nothing was told in the 30 days before.",
        "changed_at": "Since when it did, UTC.",
    },
)

machine_statuses = Pipeline(
    name="machine_statuses",
    source=Table("bronze.statuses"),
    steps=(
        Aggregate(
            by=("machine_id",),
            measures={"status": "max_by(status, changed_at)", "changed_at": "max(changed_at)"},
        ),
    ),
    sink=Sink("gold.machine_statuses", mode="update"),
    expectations=(OneOf("status", KNOWN), Unique("machine_id"), Conservation()),
    trigger_interval="10 seconds",
    description="What each machine is doing now: its newest status, whatever the order in which they arrive.",
    owner="plant",
    column_descriptions={
        "machine_id": "The machine.",
        "status": "What it does: running, idle, maintenance or stopped.",
        "changed_at": "Since when, UTC.",
    },
)
