"""What Spark knows of the batch that runs right now, from its write-ahead log and its operators."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


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


def _execution(query: StreamingQuery) -> Any:
    return query._jsq.streamingQuery()


def batch_bounds(query: StreamingQuery) -> BatchBounds:
    """The watermarks and offsets of the batch that runs.

    The late watermark is the one of the previous batch: since Spark 3.4 state is evicted by W(N), but late rows are
    judged by W(N-1); both stand in the offset log.
    """
    execution = _execution(query)
    last = execution.lastExecution()
    previous = last.prevOffsetSeqMetadata()
    return BatchBounds(
        watermark_ms=last.offsetSeqMetadata().batchWatermarkMs(),
        late_watermark_ms=previous.get().batchWatermarkMs() if previous.isDefined() else 0,
        sources=dict(_offsets(execution.availableOffsets())),
        begins={source: offset for source, offset in _offsets(execution.committedOffsets()) if offset},
        batch_time_ms=last.offsetSeqMetadata().batchTimestampMs(),
    )


def planned_offsets(query: StreamingQuery) -> tuple[str, str]:
    """Where the batch that runs begins and ends in the query's one source, as JSON; the first one begins at `""`."""
    execution = _execution(query)
    before, upto = (
        dict(_offsets(progress)) for progress in (execution.committedOffsets(), execution.availableOffsets())
    )
    return next(iter(before.values()), ""), next(iter(upto.values()))


def _offsets(progress: Any) -> Iterator[tuple[str, str]]:
    entries = progress.iterator()
    while entries.hasNext():
        entry = entries.next()
        offset = entry._2()
        yield str(entry._1().toString()), str(offset.json()) if offset is not None else ""


def state_figures(query: StreamingQuery) -> StateFigures:
    """The counts of the batch's stateful operators, after its plan has run and before anything is committed."""
    sums = {"numRowsDroppedByWatermark": 0, "numDroppedDuplicateRows": 0, "numTotalStateRows": 0}
    repeated = 0
    for node in _nodes(_execution(query).lastExecution().executedPlan()):
        name = node.nodeName()
        if not any(kind in name for kind in _STATEFUL):
            continue
        metrics = node.metrics()
        for metric in sums:
            if metrics.contains(metric):
                sums[metric] += metrics.apply(metric).value()
        if metrics.contains("numStateStoreInstances") and "Restore" not in name:
            # Each task counts the stores that it has opened.
            stores = _STORES.get(name, 1) * _partitions(node)
            repeated += max(0, metrics.apply("numStateStoreInstances").value() - stores)
    return StateFigures(
        dropped=sums["numRowsDroppedByWatermark"],
        duplicates=sums["numDroppedDuplicateRows"],
        rows=sums["numTotalStateRows"],
        repeated_tasks=repeated,
    )


def stateful_partitions(query: StreamingQuery) -> int:
    """Into how many partitions the stateful operators of the batch divide it; 0: it has none."""
    nodes = _nodes(_execution(query).lastExecution().executedPlan())
    return max((_partitions(node) for node in nodes if any(kind in node.nodeName() for kind in _STATEFUL)), default=0)


def _partitions(node: Any) -> int:
    return int(node.stateInfo().get().numPartitions())


_STATEFUL = ("StateStore", "StreamingDeduplicate", "StreamingSymmetricHashJoin", "TransformWithState")

_STORES = {"StreamingSymmetricHashJoin": 4}
"""State stores that a task of an operator opens, where they are several."""


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children().iterator()
    while children.hasNext():
        yield from _nodes(children.next())
