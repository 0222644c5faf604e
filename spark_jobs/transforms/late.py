"""Late rows: the event itself, the windows that it missed, the watermark that judged it, how late it was."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.lake import Lake, tables
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spark.schemas import schema_of
from spark_jobs.spec import Pipeline, Session, Table
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.events import project
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

TIME, SEQ, SOURCE, KEY = "__time", "__seq", "__table", "__key"
"""The narrow row of an event: its time, its number in the source table, which table that is, a hash of its key."""

_GROUPS = "__groups"


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
        """The events of one table with these numbers (ascending), as the pipeline reads them.

        They are picked out without a job of Spark's, and pass through it only where the source selects columns.
        """
        found = tables.rows_holding(self.lake, self.tables[index].name, INGEST_SEQ, seqs)
        if self.tables[index].select is None:
            return found.drop_columns(["_heartbeat"])
        return self._read(index, self.spark.createDataFrame(found, self.schemas[index])).toArrow()

    def many(self, index: int, seqs: Sequence[int], only: DataFrame) -> DataFrame:
        """The same as a frame, joined with another on the number.

        Args:
            index: of the table.
            seqs: the numbers, ascending: they tell which files to read.
            only: the frame to join with; it has a row for each number.
        """
        name, schema = self.tables[index].name, self.schemas[index]
        held = tables.files_holding(tables.open_table(self.lake, name), INGEST_SEQ, seqs)
        rows = self.spark.read.schema(schema).parquet(*(f"{self.lake.table_path(name)}/{path}" for path in held))
        return self._read(index, rows).join(only, INGEST_SEQ)

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
            late: the narrow row of each late event: `TIME`, `SEQ`, `SOURCE` and `KEY`.
            events: how many they are; up to `FEW` are given in memory, more as a persisted frame.
            batch_id: the batch in which they came.
            epoch: of the checkpoint.
        """
        judged = self._with_why(late, batch_id, epoch)
        if events <= FEW:
            verdicts = judged.toArrow()
            groups = pc.count_distinct(pc.list_flatten(verdicts[_GROUPS])).as_py()
            content = self._with_events(verdicts.drop_columns([_GROUPS]))
            pairs = pc.sum(pc.list_value_length(content["missed_windows"])).as_py()
            return content, self._counted(content.num_rows, pairs, groups)
        kept = self._with_many_events(judged.drop(_GROUPS)).persist()
        count, pairs = kept.selectExpr("count(*)", "sum(size(missed_windows))").collect()[0]
        groups = judged.selectExpr(f"explode({_GROUPS}) AS hash").distinct().count()
        return kept, self._counted(count, pairs, groups)

    def _with_events(self, verdicts: pa.Table) -> pa.Table:
        parts = []
        for index in sorted(pc.unique(verdicts[SOURCE]).to_pylist()):
            mine = verdicts.filter(pc.equal(verdicts[SOURCE], index)).drop_columns([SOURCE])
            parts.append(_beside(self._bronze.few(index, sorted(mine[INGEST_SEQ].to_pylist())), mine))
        return pa.concat_tables(parts, promote_options="permissive")

    def _with_many_events(self, verdicts: DataFrame) -> DataFrame:
        numbers = verdicts.select(SOURCE, INGEST_SEQ).toArrow()
        parts = []
        for index in sorted(pc.unique(numbers[SOURCE]).to_pylist()):
            seqs = sorted(numbers.filter(pc.equal(numbers[SOURCE], index))[INGEST_SEQ].to_pylist())
            parts.append(self._bronze.many(index, seqs, verdicts.where(f"{SOURCE} = {index}").drop(SOURCE)))
        return reduce(lambda left, right: left.unionByName(right), parts)

    def _counted(self, events: int, pairs: int | None, groups: int) -> LateCount:
        most = events if isinstance(self._definition.aggregate.window, Session) else groups
        return LateCount(events=events, pairs=pairs or 0, fewest_groups=groups, most_groups=most)

    def _with_why(self, late: DataFrame, batch_id: int, epoch: int) -> DataFrame:
        """Why each event was late, and a hash of each (window, key) group that it missed.

        The groups are held against Spark's own drop count.
        """
        window, watermark = self._definition.aggregate.window, self._definition.watermark
        if window is None or watermark is None:
            raise ValueError("without windows nothing is late")
        judged_us = self._bounds.late_watermark_ms * 1000
        published_us = judged_us + duration_ms(watermark.grace) * 1000
        first_end, count = first_end_us(TIME, window), window_count(TIME, window)
        if isinstance(window, Session):
            size_us, ends = duration_ms(window.gap) * 1000, f"array({first_end})"
        else:
            every_us, size_us = duration_ms(window.every) * 1000, duration_ms(window.size) * 1000
            all_ends = f"sequence({first_end}, {last_end_us(TIME, window)}, {every_us}L)"
            ends = f"filter({all_ends}, __end -> __end <= {judged_us}L)"
        missed = (
            f"transform({ends}, __end -> named_struct('window_start', timestamp_micros(__end - {size_us}L), "
            f"'window_end', timestamp_micros(__end), 'late_by_ms', ({judged_us}L - __end) div 1000L))"
        )
        return late.selectExpr("*", f"{missed} AS missed_windows").selectExpr(
            SOURCE,
            f"{SEQ} AS {INGEST_SEQ}",
            "missed_windows",
            f"size(missed_windows) < {count} AS partly_late",
            f"({judged_us}L - {first_end}) div 1000L AS late_by_ms",
            f"timestamp_micros({published_us}L) AS watermark",
            f"timestamp_micros({judged_us}L) AS engine_watermark",
            f"{epoch} AS _epoch",
            f"{batch_id}L AS _batch_id",
            f"transform(missed_windows, __missed -> xxhash64(__missed.window_end, {KEY})) AS {_GROUPS}",
        )


def _beside(events: pa.Table, verdicts: pa.Table) -> pa.Table:
    """The columns of both, row by row of the same sequence number."""
    verdicts = verdicts.take(pc.index_in(events[INGEST_SEQ], value_set=verdicts[INGEST_SEQ]))
    for name in verdicts.column_names:
        if name != INGEST_SEQ:
            events = events.append_column(name, verdicts[name])
    return events
