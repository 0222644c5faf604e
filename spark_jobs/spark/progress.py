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
        dropped_groups: late (window, key) groups that the operator dropped.
        groups: groups in state after the batch.
        repeated_tasks: tasks that were counted more than once, as they are where their output was lost with a worker.
    """

    dropped_groups: int
    groups: int
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
    """The counts of the batch's stateful operator, after its plan has run and before anything is committed."""
    dropped = groups = repeated = 0
    for node in _nodes(_execution(query).lastExecution().executedPlan()):
        if "StateStoreSave" in node.nodeName():
            metrics = node.metrics()
            groups += metrics.apply("numTotalStateRows").value()
            # Each task counts the one store that it has opened.
            repeated += metrics.apply("numStateStoreInstances").value() - node.stateInfo().get().numPartitions()
        if "StateStore" in node.nodeName():
            metrics = node.metrics()
            if metrics.contains("numRowsDroppedByWatermark"):
                dropped += metrics.apply("numRowsDroppedByWatermark").value()
    return StateFigures(dropped_groups=dropped, groups=groups, repeated_tasks=repeated)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children().iterator()
    while children.hasNext():
        yield from _nodes(children.next())
