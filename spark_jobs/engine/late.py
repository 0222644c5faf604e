"""Late rows: the event itself, the windows that it missed, the watermark that judged it, how late it was."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.engine.commits import schema_of
from spark_jobs.engine.progress import BatchBounds
from spark_jobs.spec import Pipeline, Session
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.events import with_row_steps
from spark_jobs.transforms.grid import first_end_us, window_count

WHY = (
    "missed_windows ARRAY<STRUCT<window_start: TIMESTAMP, window_end: TIMESTAMP, late_by_ms: BIGINT>>, "
    "partly_late BOOLEAN, late_by_ms BIGINT, watermark TIMESTAMP, engine_watermark TIMESTAMP, "
    "_epoch INT, _batch_id BIGINT"
)


def late_schema(events: DataFrame) -> StructType:
    """The columns of `<table>__late`: the event as the pipeline reads it, and why it was late.

    - `missed_windows`: each window that the event missed; its `late_by_ms` is how much longer the watermark would
      have had to wait for the event to be counted in it;
    - `partly_late`: whether the event is counted in other windows;
    - `late_by_ms`: the greatest of the windows' figures;
    - `watermark`: the published watermark, up to which results were final when the event was judged;
    - `engine_watermark`: the one that it was judged by, which lies `grace` behind.
    """
    kept = [field for field in events.schema if field.name != "_heartbeat"]
    return StructType([*kept, *schema_of(WHY)])


@dataclass(frozen=True)
class LateCount:
    """Late rows, counted from what is about to be written.

    Attributes:
        events: rows.
        pairs: windows missed, over all rows.
        fewest_groups: distinct (window, key) groups among them.
        most_groups: groups that Spark may count: for sessions it counts them per task.
    """

    events: int
    pairs: int
    fewest_groups: int
    most_groups: int


class LateRows:
    """Fetches the payload of a batch's few late events from bronze, by their sequence numbers.

    Args:
        definition: the pipeline.
        fetch: gives the events of one source table, by its place among the tables, with the given sequence numbers.
        bounds: of the batch.
    """

    def __init__(
        self, definition: Pipeline, fetch: Callable[[int, Sequence[int]], DataFrame], bounds: BatchBounds
    ) -> None:
        self._definition = definition
        self._fetch = fetch
        self._bounds = bounds

    def rows(self, late: DataFrame, batch_id: int, epoch: int) -> DataFrame:
        """The rows of `<table>__late` for the narrow rows that are late.

        Args:
            late: `__table` and `__seq` of each late event.
            batch_id: the batch in which they came.
            epoch: of the checkpoint.
        """
        wanted: dict[int, list[int]] = {}
        for index, seq in late.select("__table", "__seq").collect():
            wanted.setdefault(index, []).append(seq)
        parts = [self._fetch(index, sorted(seqs)).drop("_heartbeat") for index, seqs in sorted(wanted.items())]
        return self._with_why(reduce(lambda left, right: left.unionByName(right), parts), batch_id, epoch)

    def count(self, rows: DataFrame) -> LateCount:
        """What the rows hold, to be held against the ledger and against Spark's own drop count."""
        keyed = with_row_steps(rows, self._definition.row_steps)
        by = [F.col(name) for name in self._definition.aggregate.by]
        groups = F.transform("missed_windows", lambda window: F.struct(window["window_end"].alias("end"), *by))
        events, pairs, distinct = keyed.agg(
            F.count(F.lit(1)),
            F.sum(F.size("missed_windows")),
            F.size(F.array_distinct(F.flatten(F.collect_set(groups)))),
        ).collect()[0]
        most = events if isinstance(self._definition.aggregate.window, Session) else distinct
        return LateCount(events=events, pairs=pairs or 0, fewest_groups=distinct, most_groups=most)

    def _with_why(self, events: DataFrame, batch_id: int, epoch: int) -> DataFrame:
        window, watermark = self._definition.aggregate.window, self._definition.watermark
        if window is None or watermark is None or self._definition.event_time is None:
            raise ValueError("without windows nothing is late")
        judged_us = self._bounds.late_watermark_ms * 1000
        time = F.col(self._definition.event_time)
        first_end = first_end_us(time, window)
        if isinstance(window, Session):
            ends: Column = F.array(first_end)
            size_us = duration_ms(window.gap) * 1000
        else:
            every_us, size_us = duration_ms(window.every) * 1000, duration_ms(window.size) * 1000
            last_end = first_end + (window_count(time, window) - 1) * every_us
            ends = F.filter(F.sequence(first_end, last_end, F.lit(every_us)), lambda end: end <= F.lit(judged_us))
        missed = F.transform(
            ends,
            lambda end: F.struct(
                F.timestamp_micros(end - size_us).alias("window_start"),
                F.timestamp_micros(end).alias("window_end"),
                F.floor((F.lit(judged_us) - end) / 1000).alias("late_by_ms"),
            ),
        )
        published_us = judged_us + duration_ms(watermark.grace) * 1000
        return events.withColumns(
            {
                "missed_windows": missed,
                "partly_late": F.size(missed) < window_count(time, window),
                "late_by_ms": F.floor((F.lit(judged_us) - first_end) / 1000),
                "watermark": F.timestamp_micros(F.lit(published_us)),
                "engine_watermark": F.timestamp_micros(F.lit(judged_us)),
                "_epoch": F.lit(epoch),
                "_batch_id": F.lit(batch_id).cast("bigint"),
            }
        )
