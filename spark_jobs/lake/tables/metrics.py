"""`ops/metrics`: how every pipeline fared, a row a minute, for whoever reads Delta."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.appends import append_rows

TABLE = "ops.metrics"

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("measured_at", _TIME),
        ("job", pa.string()),
        ("pipeline", pa.string()),
        ("state", pa.string()),
        ("epoch", pa.int64()),
        ("batch_id", pa.int64()),
        ("input_rows_per_s", pa.float64()),
        ("processed_rows_per_s", pa.float64()),
        ("latency_ms", pa.int64()),
        ("batch_ms", pa.int64()),
        ("plan_ms", pa.int64()),
        ("write_ms", pa.int64()),
        ("log_ms", pa.int64()),
        ("watermark", _TIME),
        ("state_rows", pa.int64()),
        ("left_state_rows", pa.int64()),
        ("right_state_rows", pa.int64()),
        ("state_bytes", pa.int64()),
        ("checkpoint_ms", pa.int64()),
        ("checkpoint_bytes", pa.int64()),
        ("read", pa.int64()),
        ("late", pa.int64()),
        ("quarantined", pa.int64()),
        ("rows_behind", pa.int64()),
        ("behind_ms", pa.int64()),
        ("failures", pa.int64()),
    ]
)
"""`read`, `late` and `quarantined` count since the driver started; rates are of its last ten minutes."""


def publish(lake: Lake, rows: Sequence[dict[str, Any]]) -> None:
    """Appends a minute's rows."""
    append_rows(lake, TABLE, pa.Table.from_pylist(list(rows), schema=SCHEMA))
