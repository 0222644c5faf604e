"""Late rows: the event itself, the windows that it missed, the watermark that judged it, how late it was."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.engine.commits import schema_of
from spark_jobs.engine.progress import BatchBounds
from spark_jobs.spec import Pipeline, Session
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.events import with_row_steps
from spark_jobs.transforms.grid import first_end_us, last_end_us, window_count

WHY = (
    "missed_windows ARRAY<STRUCT<window_start: TIMESTAMP, window_end: TIMESTAMP, late_by_ms: BIGINT>>, "
    "partly_late BOOLEAN, late_by_ms BIGINT, watermark TIMESTAMP, engine_watermark TIMESTAMP, "
    "_epoch INT, _batch_id BIGINT"
)

FEW = 50_000
"""So many late events of a batch are fetched and written without a job of Spark's."""

_ROW, _GROUPS = "__row", "__groups"


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

    def rows(self, late: DataFrame, events: int, batch_id: int, epoch: int) -> tuple[pa.Table | DataFrame, LateCount]:
        """The rows of `<table>__late` for the narrow rows that are late, and what they hold.

        Args:
            late: `__table` and `__seq` of each late event.
            events: how many they are; up to `FEW` are given in memory, more as a persisted frame.
            batch_id: the batch in which they came.
            epoch: of the checkpoint.
        """
        wanted = late.select("__table", "__seq").toArrow()
        parts = []
        for index in sorted(pc.unique(wanted["__table"]).to_pylist()):
            seqs = wanted.filter(pc.equal(wanted["__table"], index))["__seq"].to_pylist()
            parts.append(self._fetch(index, sorted(seqs)).drop("_heartbeat"))
        rows = self._with_why(reduce(lambda left, right: left.unionByName(right), parts), batch_id, epoch)
        if events <= FEW:
            content = self._with_groups(rows).toArrow()
            pairs = pc.sum(pc.list_value_length(content["missed_windows"])).as_py()
            groups = pc.count_distinct(pc.list_flatten(content[_GROUPS])).as_py()
            return content.drop([_GROUPS]), self._counted(content.num_rows, pairs, groups)
        kept = rows.persist()
        distinct = F.size(F.array_distinct(F.flatten(F.collect_set(_GROUPS))))
        count, pairs, groups = (
            self._with_groups(kept).agg(F.count(F.lit(1)), F.sum(F.size("missed_windows")), distinct).collect()[0]
        )
        return kept, self._counted(count, pairs, groups)

    def _counted(self, events: int, pairs: int | None, groups: int) -> LateCount:
        most = events if isinstance(self._definition.aggregate.window, Session) else groups
        return LateCount(events=events, pairs=pairs or 0, fewest_groups=groups, most_groups=most)

    def _with_groups(self, rows: DataFrame) -> DataFrame:
        """Adds a hash of each (window, key) group that an event missed, to be held against Spark's own drop count."""
        keyed = with_row_steps(rows.select(F.struct("*").alias(_ROW), "*"), self._definition.row_steps)
        key = "".join(f", `{name}`" for name in self._definition.aggregate.by)
        groups = f"transform(missed_windows, __missed -> xxhash64(__missed.window_end{key})) AS {_GROUPS}"
        return keyed.selectExpr(f"{_ROW}.*", groups)

    def _with_why(self, events: DataFrame, batch_id: int, epoch: int) -> DataFrame:
        window, watermark = self._definition.aggregate.window, self._definition.watermark
        if window is None or watermark is None or self._definition.event_time is None:
            raise ValueError("without windows nothing is late")
        judged_us = self._bounds.late_watermark_ms * 1000
        published_us = judged_us + duration_ms(watermark.grace) * 1000
        time = f"`{self._definition.event_time}`"
        first_end, count = first_end_us(time, window), window_count(time, window)
        if isinstance(window, Session):
            size_us, ends = duration_ms(window.gap) * 1000, f"array({first_end})"
        else:
            every_us, size_us = duration_ms(window.every) * 1000, duration_ms(window.size) * 1000
            all_ends = f"sequence({first_end}, {last_end_us(time, window)}, {every_us}L)"
            ends = f"filter({all_ends}, __end -> __end <= {judged_us}L)"
        missed = (
            f"transform({ends}, __end -> named_struct('window_start', timestamp_micros(__end - {size_us}L), "
            f"'window_end', timestamp_micros(__end), 'late_by_ms', ({judged_us}L - __end) div 1000L))"
        )
        return events.selectExpr("*", f"{missed} AS missed_windows").selectExpr(
            "*",
            f"size(missed_windows) < {count} AS partly_late",
            f"({judged_us}L - {first_end}) div 1000L AS late_by_ms",
            f"timestamp_micros({published_us}L) AS watermark",
            f"timestamp_micros({judged_us}L) AS engine_watermark",
            f"{epoch} AS _epoch",
            f"{batch_id}L AS _batch_id",
        )
