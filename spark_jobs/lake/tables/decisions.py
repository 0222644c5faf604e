"""`ops.decisions`: what a person has decided about a pipeline, a row for each decision."""

from datetime import UTC, datetime
from typing import Any, Literal

import duckdb
import pyarrow as pa

from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.appends import append_rows
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.query import fetch_rows

TABLE = "ops.decisions"

SCHEMA = pa.schema(
    [
        ("decided_at", pa.timestamp("us", tz="UTC")),
        ("pipeline", pa.string()),
        ("action", pa.string()),
        ("decided_by", pa.string()),
        ("subject", pa.string()),
        ("comment", pa.string()),
        ("decision_id", pa.string()),
    ]
)

Action = Literal[
    "replay",
    "resume",
    "skip",
    "quarantine",
    "reject",
    "restore",
    "reset",
    "promote",
    "drop",
    "rescale",
    "prune",
]


def note(
    lake: Lake, *, pipeline: str, action: Action, decided_by: str, subject: str, decision_id: str, comment: str = ""
) -> None:
    """Appends a decision before it is carried out.

    Args:
        pipeline: that it is about.
        action: what was decided: `replay` of quarantined rows; `resume`, `skip` or `quarantine` of the batch at which
            a pipeline is halted; `restore`: the pipeline goes back to a batch; `reset`: it begins again; `promote` or
            `drop` of its shadow; `rescale` of its state; `prune` of what nothing needs; `reject`: nothing is done.
        decided_by: the person, as Airflow or the operating system knows them.
        subject: what it is about, in words: "batch 17 of epoch 2", "1,000 rows with reason malformed".
        decision_id: by which what is done refers to it.
        comment: why, in the person's words.
    """
    row = {
        "decided_at": datetime.now(UTC),
        "pipeline": pipeline,
        "action": action,
        "decided_by": decided_by,
        "subject": subject,
        "comment": comment,
        "decision_id": decision_id,
    }
    append_rows(lake, TABLE, pa.Table.from_pylist([row], schema=SCHEMA))


def decisions_of(lake: Lake, pipeline: str) -> list[dict[str, Any]]:
    """What was decided about a pipeline, the newest first."""
    try:
        opened = open_table(lake, TABLE)
    except MissingTableError:
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("kept", opened.to_pyarrow_dataset().scanner().to_reader())
        sql = "SELECT * FROM kept WHERE pipeline = $pipeline ORDER BY decided_at DESC"
        return fetch_rows(connection, sql, {"pipeline": pipeline})
