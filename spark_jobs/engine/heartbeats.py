"""Heartbeats: flagged bronze rows that move the watermark when no event does."""

import uuid
from collections.abc import Iterable
from datetime import timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.commits import TableWriter
from spark_jobs.lake import Lake, tables
from spark_jobs.lake.history import find_stamp
from spark_jobs.lake.stamps import Stamp
from spark_jobs.spec import Pipeline, Session
from spark_jobs.spec.durations import duration_ms


def horizon(readers: Iterable[Pipeline]) -> timedelta:
    """How far past the newest event the watermark must move until every window of the readers is final."""
    longest = timedelta(0)
    for reader in readers:
        window, watermark = reader.aggregate.window, reader.watermark
        if window is None or watermark is None:
            continue
        size = window.gap if isinstance(window, Session) else window.size
        longest = max(longest, watermark.engine_delay + size)
    return longest


def newest_event_ms(spark: SparkSession, lake: Lake, table: str, event_time: str) -> int | None:
    """The newest event time of a bronze table, in milliseconds rounded up; None where it has no event."""
    events = spark.read.format("delta").load(lake.table_path(table)).where("NOT _heartbeat")
    newest = events.agg(F.unix_micros(F.max(event_time))).collect()[0][0]
    return None if newest is None else -(-newest // 1000)


def beat(spark: SparkSession, lake: Lake, table: str, event_time: str, at_ms: int, *, pipeline: str) -> None:
    """Appends a heartbeat with the given event time; once, however often it is called."""
    writer = TableWriter(lake, table, "heartbeat", pipeline, query_id="heartbeat", epoch=0)
    bronze = spark.read.format("delta").load(lake.table_path(table))
    values = {
        event_time: F.timestamp_millis(F.lit(at_ms)),
        "_event_id": F.lit(f"heartbeat-{uuid.uuid5(uuid.NAMESPACE_OID, f'{table}/{at_ms}')}"),
        "_ingest_time": F.current_timestamp(),
        "_heartbeat": F.lit(True),
    }
    row = spark.range(1).select(
        *(values.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in bronze.schema)
    )
    writer.append(row, Stamp(pipeline=pipeline, epoch=0, batch_id=at_ms, role="heartbeat", rows=1))


def close(
    spark: SparkSession,
    lake: Lake,
    table: str,
    event_time: str,
    readers: Iterable[Pipeline],
    *,
    pipeline: str,
) -> int | None:
    """Finishes a finite input: one heartbeat past the end of every window that its readers may have open.

    Returns:
        The heartbeat's event time in milliseconds; None where the table has no event.
    """
    newest = newest_event_ms(spark, lake, table, event_time) if tables.exists(lake, table) else None
    if newest is None:
        return None
    at_ms = newest + duration_ms(horizon(readers)) + 1
    last = find_stamp(lake, table, lambda stamp: True)
    if last is not None and last.role == "heartbeat" and last.batch_id >= at_ms:
        return last.batch_id
    beat(spark, lake, table, event_time, at_ms, pipeline=pipeline)
    return at_ms
