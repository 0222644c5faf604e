"""Readings far off what machines do: an alert for each, without waiting for anything."""

from tidemark import NotNull, Pipeline, Select, Sink, Table, Where

HOT, SHAKING, STRAINED = "temperature >= 100", "vibration >= 10", "pressure >= 10"

machine_spikes = Pipeline(
    name="machine_spikes",
    source=Table("bronze.readings"),
    event_time="read_at",
    steps=(
        Where(f"{HOT} OR {SHAKING} OR {STRAINED}"),
        Select(
            {
                "reason": f"concat_ws(', ', CASE WHEN {HOT} THEN 'temperature' END, "
                f"CASE WHEN {SHAKING} THEN 'vibration' END, CASE WHEN {STRAINED} THEN 'pressure' END)"
            }
        ),
    ),
    sink=Sink("gold.machine_spikes"),
    expectations=(NotNull("machine_id"), NotNull("reason")),
    trigger_interval="10 seconds",
    description="Readings far off what machines do, one row each, as they come.",
    owner="plant",
    column_descriptions={
        "reason": "Which values are too high: temperature, vibration, pressure.",
    },
)
