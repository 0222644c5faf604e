"""What Spark knows of the batch that runs right now, from its write-ahead log and its operators."""

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.spark.java import java_class


@dataclass(frozen=True)
class BatchBounds:
    """What was fixed before the batch ran, and is the same when it runs again.

    Attributes:
        watermark_ms: W(N): windows that end at or before it are closed in this batch.
        late_watermark_ms: W(N-1): pairs whose window ends at or before it are late.
        sources: source -> offset up to which the batch reads, as JSON.
        begins: source -> offset up to which the batches before have read; empty before the first.
        batch_time_ms: the batch's clock, which `current_timestamp()` answers with.
    """

    watermark_ms: int
    late_watermark_ms: int
    sources: dict[str, str]
    begins: dict[str, str]
    batch_time_ms: int

    @property
    def late_watermark_us(self) -> int:
        """`late_watermark_ms`, in the unit in which events have their times."""
        return self.late_watermark_ms * 1000

    @property
    def of_one_source(self) -> tuple[str, str]:
        """Where the batch begins and ends in the query's one source; the first one begins at `""`."""
        return next(iter(self.begins.values()), ""), next(iter(self.sources.values()))


@dataclass(frozen=True)
class StateFigures:
    """What Spark's stateful operators counted in this batch, once the plan has run.

    Attributes:
        dropped: what was late and dropped: events, or where it was put into groups first, (window, key) groups.
        duplicates: events that a deduplication removed.
        rows: in state after the batch.
        repeated_tasks: tasks that were counted more than once, as they are where their output was lost with a worker.
    """

    dropped: int
    duplicates: int
    rows: int
    repeated_tasks: int


def _running_batch(spark: SparkSession) -> Any:
    """Asked for all at once: each question of Python's to the JVM takes as long as the look itself."""
    return java_class(spark, "io.tidemark.planning.RunningBatch")


def batch_bounds(spark: SparkSession, query: StreamingQuery) -> BatchBounds:
    """The watermarks and offsets of the batch that runs.

    The late watermark is the one of the previous batch: since Spark 3.4 state is evicted by W(N), but late rows are
    judged by W(N-1); both stand in the offset log.
    """
    found = json.loads(_running_batch(spark).bounds(query._jsq))
    return BatchBounds(**found)


def state_figures(spark: SparkSession, query: StreamingQuery) -> StateFigures:
    """The counts of the batch's stateful operators, after its plan has run and before anything is committed."""
    found = json.loads(_running_batch(spark).state(query._jsq))
    return StateFigures(
        dropped=found["numRowsDroppedByWatermark"],
        duplicates=found["numDroppedDuplicateRows"],
        rows=found["numTotalStateRows"],
        repeated_tasks=found["repeated"],
    )


def stateful_partitions(spark: SparkSession, query: StreamingQuery) -> int:
    """Into how many partitions the stateful operators of the batch divide it; 0: it has none."""
    return int(json.loads(_running_batch(spark).state(query._jsq))["partitions"])
