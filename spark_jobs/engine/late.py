"""Late rows: the event itself, the windows that it missed, the watermark that judged it, how late it was."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.engine.commits import schema_of
from spark_jobs.engine.progress import BatchBounds
from spark_jobs.lake import Lake, tables
from spark_jobs.spec import Pipeline, Select, Session, Table
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.events import project, with_row_steps
from spark_jobs.transforms.grid import first_end_us, last_end_us, window_count

WHY = (
    "missed_windows ARRAY<STRUCT<window_start: TIMESTAMP, window_end: TIMESTAMP, late_by_ms: BIGINT>>, "
    "partly_late BOOLEAN, late_by_ms BIGINT, watermark TIMESTAMP, engine_watermark TIMESTAMP, "
    "_epoch INT, _batch_id BIGINT"
)

FEW = 50_000
"""So many late events of a batch are fetched and written without a job of Spark's."""

INGEST_SEQ = "_ingest_seq"
EVENT_COLUMNS = ("_event_id", INGEST_SEQ, "_ingest_time")
"""What a late event keeps of bronze's own columns, whatever the source selects."""

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


@dataclass(frozen=True)
class Bronze:
    """Where the events of a pipeline's source tables are fetched from, by their sequence numbers.

    Reads just the files that hold them, named by bronze's log: Delta's own reader would first rebuild the state of the
    whole table.

    Attributes:
        spark: the session.
        lake: where.
        tables: the pipeline's source tables.
        schemas: of each of them.
    """

    spark: SparkSession
    lake: Lake
    tables: Sequence[Table]
    schemas: Sequence[StructType]

    def few(self, index: int, seqs: Sequence[int]) -> pa.Table:
        """The rows of one table with these numbers (ascending), picked out without a job of Spark's."""
        return tables.rows_holding(self.lake, self.tables[index].name, INGEST_SEQ, seqs)

    def many(self, index: int, seqs: Sequence[int]) -> DataFrame:
        """The events of one table with these numbers (ascending), as the pipeline reads them."""
        name, schema = self.tables[index].name, self.schemas[index]
        held = tables.files_holding(tables.open_table(self.lake, name), INGEST_SEQ, seqs)
        rows = self.spark.read.schema(schema).parquet(*(f"{self.lake.table_path(name)}/{path}" for path in held))
        wanted = self.spark.createDataFrame(pa.table({INGEST_SEQ: pa.array(seqs, pa.int64())}))
        return self._read(index, rows.join(F.broadcast(wanted), INGEST_SEQ, "left_semi").select(*schema.names))

    def frame(self, index: int, rows: pa.Table) -> DataFrame:
        """Rows of one table, all of its columns or some, as the pipeline reads them."""
        schema = StructType([self.schemas[index][name] for name in rows.column_names])
        return self._read(index, self.spark.createDataFrame(rows, schema))

    def _read(self, index: int, rows: DataFrame) -> DataFrame:
        return project(rows, self.tables[index], EVENT_COLUMNS).drop("_heartbeat")


class LateRows:
    """The rows of `<table>__late` for the late events of a batch.

    Args:
        definition: the pipeline.
        bronze: where the events are.
        bounds: of the batch.
    """

    def __init__(self, definition: Pipeline, bronze: Bronze, bounds: BatchBounds) -> None:
        self._definition = definition
        self._bronze = bronze
        self._bounds = bounds

    def rows(self, late: DataFrame, events: int, batch_id: int, epoch: int) -> tuple[pa.Table | DataFrame, LateCount]:
        """The rows, and what they hold.

        Args:
            late: `__table` and `__seq` of each late event.
            events: how many they are; up to `FEW` are given in memory, more as a persisted frame.
            batch_id: the batch in which they came.
            epoch: of the checkpoint.
        """
        numbers = late.select("__table", "__seq").toArrow()
        wanted = {
            index: sorted(numbers.filter(pc.equal(numbers["__table"], index))["__seq"].to_pylist())
            for index in sorted(pc.unique(numbers["__table"]).to_pylist())
        }
        if events <= FEW:
            found = {index: self._bronze.few(index, seqs) for index, seqs in wanted.items()}
            if self._definition.tables[0].select is None:
                # The events stay as they are: only what their lateness is computed from passes through Spark.
                judged = self._bronze.frame(0, found[0].select(self._needed(found[0].column_names)))
                why = self._with_why(judged, batch_id, epoch)
                why = self._with_groups(why, INGEST_SEQ, *schema_of(WHY).names).toArrow()
                content = _beside(found[0], why)
            else:
                judged = _union([self._bronze.frame(index, rows) for index, rows in found.items()])
                content = self._with_groups(self._with_why(judged, batch_id, epoch), "*").toArrow()
            pairs = pc.sum(pc.list_value_length(content["missed_windows"])).as_py()
            groups = pc.count_distinct(pc.list_flatten(content[_GROUPS])).as_py()
            return content, self._counted(content.num_rows, pairs, groups)
        kept = self._with_why(
            _union([self._bronze.many(index, seqs) for index, seqs in wanted.items()]), batch_id, epoch
        )
        kept = kept.persist()
        distinct = F.size(F.array_distinct(F.flatten(F.collect_set(_GROUPS))))
        figures = (F.count(F.lit(1)), F.sum(F.size("missed_windows")), distinct)
        count, pairs, groups = self._with_groups(kept, "missed_windows").agg(*figures).collect()[0]
        return kept, self._counted(count, pairs, groups)

    def _needed(self, columns: Sequence[str]) -> list[str]:
        """The columns of bronze that the verdict and the key may depend on: those that the definition mentions."""
        step = self._definition.aggregate
        texts = [str(self._definition.event_time), *step.by]
        for row_step in self._definition.row_steps:
            texts += row_step.columns.values() if isinstance(row_step, Select) else [row_step.condition]
        words = set(re.findall(r"\w+", " ".join(texts).lower()))
        return [name for name in columns if name == INGEST_SEQ or words.issuperset(re.findall(r"\w+", name.lower()))]

    def _counted(self, events: int, pairs: int | None, groups: int) -> LateCount:
        most = events if isinstance(self._definition.aggregate.window, Session) else groups
        return LateCount(events=events, pairs=pairs or 0, fewest_groups=groups, most_groups=most)

    def _with_groups(self, rows: DataFrame, *keep: str) -> DataFrame:
        """Some columns, and a hash of each (window, key) group that an event missed.

        The groups are held against Spark's own drop count.
        """
        # Columns that a `Select` adds must not cover those to keep.
        keyed = with_row_steps(rows.select(F.struct(*keep).alias(_ROW), "*"), self._definition.row_steps)
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


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionByName(right), frames)


def _beside(events: pa.Table, why: pa.Table) -> pa.Table:
    """The columns of both, row by row of the same sequence number."""
    why = why.take(pc.index_in(events[INGEST_SEQ], value_set=why[INGEST_SEQ]))
    for name in why.column_names:
        if name != INGEST_SEQ:
            events = events.append_column(name, why[name])
    return events
