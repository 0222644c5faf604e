"""`ops/watermarks`: up to which event time the results of each pipeline are final."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import Schema

from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.appends import COMPRESSED
from spark_jobs.lake.tables.opening import again_at_conflicts, open_or_create, open_table, prune_log_checkpoints
from spark_jobs.spec.names import in_delta, text_in_duckdb

TABLE = "ops.watermarks"

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("table", pa.string()),
        ("watermark", _TIME),
        ("engine_watermark", _TIME),
        ("epoch", pa.int32()),
        ("batch_id", pa.int64()),
        ("updated_at", _TIME),
    ]
)


@again_at_conflicts
def publish(lake: Lake, *, pipeline: str, table: str, engine_ms: int, grace_ms: int, epoch: int, batch_id: int) -> None:
    """Publishes how far a pipeline is: rows with `final_after <= watermark` do not change any more.

    A driver of an epoch that is over, which does not know it yet, publishes nothing.

    Args:
        lake: where.
        pipeline: its name.
        table: its result table.
        engine_ms: Spark's watermark after the batch, in milliseconds since 1970.
        grace_ms: allowed lateness; the published watermark is the engine's plus grace.
        epoch: of the checkpoint.
        batch_id: the newest committed batch.
    """
    _note(
        lake,
        {
            "pipeline": pipeline,
            "table": table,
            "watermark": datetime.fromtimestamp((engine_ms + grace_ms) / 1000, UTC),
            "engine_watermark": datetime.fromtimestamp(engine_ms / 1000, UTC),
            "epoch": epoch,
            "batch_id": batch_id,
        },
    )


def _note(lake: Lake, row: Mapping[str, Any]) -> None:
    """Puts a row in the place of its pipeline's, unless that is of a later epoch."""
    rows = pa.Table.from_pylist([{**row, "updated_at": datetime.now(UTC)}], schema=_SCHEMA)
    target = open_or_create(lake, TABLE, Schema.from_arrow(_SCHEMA))
    (
        target.merge(rows, "t.pipeline = s.pipeline", source_alias="s", target_alias="t", writer_properties=COMPRESSED)
        .when_matched_update_all("s.epoch >= t.epoch")
        .when_not_matched_insert_all()
        .execute()
    )
    prune_log_checkpoints(lake, TABLE, target.version())


@again_at_conflicts
def withdraw(lake: Lake, *, pipeline: str, table: str, epoch: int) -> None:
    """Takes a pipeline's watermark back: its rows are to be computed again, none of them is final.

    What stays is a row without a watermark: no driver of an earlier epoch can publish its own any more.

    Args:
        lake: where.
        pipeline: its name.
        table: its result table.
        epoch: that begins.
    """
    _note(lake, {"pipeline": pipeline, "table": table, "epoch": epoch})


@again_at_conflicts
def forget(lake: Lake, pipeline: str) -> None:
    """Takes the row of a pipeline away that is gone, so that one of its name may begin with its first epoch."""
    try:
        table = open_table(lake, TABLE, to_write=True)
    except MissingTableError:
        return
    if any(row["pipeline"] == pipeline for row in table.to_pyarrow_table(columns=["pipeline"]).to_pylist()):
        table.delete(f"{in_delta('pipeline')} = {text_in_duckdb(pipeline)}")
        prune_log_checkpoints(lake, TABLE, table.version())


def published(lake: Lake) -> Mapping[str, datetime]:
    """Pipeline -> its published watermark; one that has begun again has none yet."""
    return _column(lake, "watermark")


def passed(lake: Lake) -> Mapping[str, datetime]:
    """Pipeline -> Spark's watermark: windows that end at or before it are closed; published ones are later by grace.

    One that no event has moved yet is none.
    """
    return {name: at for name, at in _column(lake, "engine_watermark").items() if at.timestamp() > 0}


def _column(lake: Lake, name: str) -> Mapping[str, datetime]:
    try:
        table = open_table(lake, TABLE)
    except MissingTableError:
        return {}
    rows = table.to_pyarrow_table(columns=["pipeline", name]).to_pylist()
    return {row["pipeline"]: row[name] for row in rows if row[name] is not None}
