"""Readings of machines, from JSON files. A sensor that has nothing to say sends -9999, which no rule lets through."""

from tidemark import Between, Files, Ingest, NotNull, Sink

ingest_readings = Ingest(
    name="ingest_readings",
    source=Files("landing/readings"),
    columns={
        "machine_id": "STRING",
        "temperature": "DOUBLE",
        "vibration": "DOUBLE",
        "pressure": "DOUBLE",
        "read_at": "TIMESTAMP",
    },
    event_time="read_at",
    rules=(
        NotNull("machine_id"),
        Between("temperature", min=-50, max=500),
        Between("vibration", min=0, max=100),
        Between("pressure", min=0, max=100),
    ),
    sink=Sink("bronze.readings"),
    # Where no machine says anything, heartbeats go on: who waits for readings by the clock would not be asked.
    idle_after="1 minute",
    trigger_interval="10 seconds",
    description="One row for each reading of a machine's sensors.",
    owner="plant",
    column_descriptions={
        "machine_id": "The machine.",
        "temperature": "Of the machine, °C.",
        "vibration": "Speed of the vibration, mm/s.",
        "pressure": "Of the hydraulics, bar.",
        "read_at": "When the sensor read it, UTC.",
    },
)
