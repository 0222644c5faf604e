"""Late rows: the event itself, the windows that it missed, the watermark that judged it, how late it was."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_jobs.lake import Lake
from spark_jobs.lake.tables import opening as tables
from spark_jobs.lake.tables.held import HeldTable
from spark_jobs.plan.columns import EVENT_COLUMNS, HEARTBEAT, INGEST_SEQ, LATE_US, SEQ, SIDE, SOURCE, SOURCE_TABLE
from spark_jobs.plan.lateness import MISSED, LatenessRule
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spark.frames import fetch
from spark_jobs.spark.schemas import schema_of
from spark_jobs.spec import Table
from spark_jobs.spec.names import column_named, text_in_spark
from spark_jobs.transforms.events import passed_over, project

_WINDOWS = f"missed_windows {MISSED}, partly_late BOOLEAN, "
_SIDE, _TABLE = f"{SIDE} STRING, ", f"{SOURCE_TABLE} STRING, "
_WHY = (
    "late_by_ms BIGINT, watermark TIMESTAMP, engine_watermark TIMESTAMP, _epoch INT, _batch_id BIGINT, "
    "settled_version BIGINT, settled_at TIMESTAMP"
)

FEW = 50_000
"""So many late events of a batch are fetched and written without a job of Spark's."""

_GROUPS = "__missed_groups"

_MISSED = "__missed_windows"


def late_schema(sources: Sequence[DataFrame], plan: LogicalPlan, lateness: LatenessRule) -> StructType:
    """The columns of `<table>__late`: the event as the pipeline reads it, and why it was late.

    - `missed_windows`, where it was late for windows: each window that the event missed; its `late_by_ms` is how much
      longer the watermark would have had to wait for the event to be counted in it;
    - `partly_late`, likewise: whether the event is counted in other windows;
    - `_source_table`, where several tables are read: which of them the event is of;
    - `_side`, in a join: whose event it is;
    - `late_by_ms`: how much longer the watermark would have had to wait for all of it;
    - `watermark`: the published watermark, up to which results were final when the event was judged;
    - `engine_watermark`: the one that it was judged by, which lies `grace` behind;
    - `settled_version`, `settled_at`: the version of the result in which a repair or a backfill has counted the event
      after all, and when; null until then.
    """
    why = (_WINDOWS if lateness.in_windows else "") + (_SIDE if len(plan.sides) > 1 else "") + _WHY
    return StructType([*_fields_of_events(sources), *schema_of((_TABLE if plan.names_sources else "") + why)])


def _fields_of_events(sources: Sequence[DataFrame]) -> Iterable[StructField]:
    """The columns of events, as the pipeline reads them."""
    own = (HEARTBEAT, SOURCE_TABLE)
    return {field.name: field for source in sources for field in source.schema if field.name not in own}.values()


def source_table(plan: LogicalPlan) -> list[str]:
    """Which table the event of a narrow row is of; SQL with its name, none where there is one table alone."""
    return [f"{_by_source([table.name for table in plan.reads])} AS {SOURCE_TABLE}"] if plan.names_sources else []


def _by_source(texts: Sequence[str]) -> str:
    """Of a narrow row, the text that belongs to its source; SQL."""
    return f"element_at(array({', '.join(map(text_in_spark, texts))}), {SOURCE} + 1)"


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
        untouched: whether nothing is computed of the events, as it may fail; it is null.
        held: each of the tables; an empty one: they are opened where they are read.
    """

    spark: SparkSession
    lake: Lake
    tables: Sequence[Table]
    schemas: Sequence[StructType]
    untouched: bool = False
    held: Sequence[HeldTable] = ()

    def _opened(self, index: int) -> DeltaTable:
        return self.held[index].newest() if self.held else tables.open_table(self.lake, self.tables[index].name)

    def few(self, index: int, seqs: Sequence[int]) -> pa.Table:
        """The events of one table with these numbers (ascending), as the pipeline reads them.

        They are picked out without a job of Spark's, and pass through it only where the source computes columns.
        """
        found = tables.rows_holding(self.lake, self.tables[index].name, INGEST_SEQ, seqs, opened=self._opened(index))
        select = self.tables[index].select
        if select is None:
            return found.drop_columns([HEARTBEAT])
        if all(column_named(sql) in found.column_names for sql in select.values()):
            names = {name: str(column_named(sql)) for name, sql in select.items()}
            names |= {name: name for name in EVENT_COLUMNS}
            return found.select(list(names.values())).rename_columns(list(names))
        return fetch(self._read(index, self.spark.createDataFrame(found, self.schemas[index])))

    def many(self, index: int, seqs: Sequence[int], only: DataFrame) -> DataFrame:
        """The same as a frame, joined with another on the number.

        Args:
            index: of the table.
            seqs: the numbers, ascending: they tell which files to read.
            only: the frame to join with; it has a row for each number.
        """
        name, schema = self.tables[index].name, self.schemas[index]
        held = tables.files_holding(self._opened(index), INGEST_SEQ, seqs)
        rows = self.spark.read.schema(schema).parquet(*(f"{self.lake.table_path(name)}/{path}" for path in held))
        return self._read(index, rows).join(only, INGEST_SEQ)

    def beside(self, verdicts: pa.Table, columns: Sequence[str]) -> pa.Table:
        """What is said of some events, each beside the event itself.

        Args:
            verdicts: rows with `SOURCE` and the event's number.
            columns: of the table that they go to; what no source of these events has is null.
        """
        parts = []
        for index in sorted(pc.unique(verdicts[SOURCE]).to_pylist()):
            mine = verdicts.filter(pc.equal(verdicts[SOURCE], index)).drop_columns([SOURCE])
            parts.append(_beside(self.few(index, sorted(mine[INGEST_SEQ].to_pylist())), mine))
        found = pa.concat_tables(parts, promote_options="permissive")
        for name in (name for name in columns if name not in found.column_names):
            found = found.append_column(name, pa.nulls(found.num_rows))
        return found

    def beside_many(self, verdicts: DataFrame, columns: Sequence[str]) -> DataFrame:
        """As `beside`, for more events than fit in memory."""
        numbers = verdicts.select(SOURCE, INGEST_SEQ).toArrow()
        parts = []
        for index in sorted(pc.unique(numbers[SOURCE]).to_pylist()):
            seqs = sorted(numbers.filter(pc.equal(numbers[SOURCE], index))[INGEST_SEQ].to_pylist())
            parts.append(self.many(index, seqs, verdicts.where(f"{SOURCE} = {index}").drop(SOURCE)))
        found = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
        return found.withColumns({name: F.lit(None) for name in columns if name not in found.columns})

    def _read(self, index: int, rows: DataFrame) -> DataFrame:
        how = partial(passed_over, event_time=None) if self.untouched else project
        return how(rows, self.tables[index], EVENT_COLUMNS).drop(HEARTBEAT)


QUARANTINE = (
    "reason STRING, detail STRING, _epoch INT, _batch_id BIGINT, replayed_batch BIGINT, replayed_at TIMESTAMP, "
    "changes_from TIMESTAMP, changes_upto TIMESTAMP, settled_version BIGINT, settled_at TIMESTAMP"
)

WHY_SET_ASIDE = (
    *("reason", "detail", "replayed_batch", "replayed_at", "changes_from", "changes_upto"),
    *("settled_version", "settled_at"),
)
"""What a row of it has beside the event, and which batch has set it aside."""


def quarantine_schema(sources: Sequence[DataFrame], plan: LogicalPlan) -> StructType:
    """The columns of a pipeline's `<table>__quarantine`: the event as the pipeline reads it, and why it is there.

    - `_source_table`, where several tables are read: which of them the event is of;
    - `replayed_batch`, `replayed_at`: the batch with whose version of the lookup table a replay has found the event's
      key, and when it did; null: it has not;
    - `changes_from`, `changes_upto`: where rows lie that the event can change, as of a late event;
    - `settled_version`, `settled_at`: as of a late event: the version of the result that counts it.
    """
    why = (_TABLE if plan.names_sources else "") + QUARANTINE
    return StructType([*_fields_of_events(sources), *schema_of(why)])


class LateRows:
    """The rows of `<table>__late` for the late events of a batch.

    Args:
        lateness: by what they were late.
        bronze: where the events are.
        columns: of the table.
    """

    def __init__(self, lateness: LatenessRule, bronze: Bronze, columns: Sequence[str]) -> None:
        self._columns = columns
        self._lateness = lateness
        self._bronze = bronze

    def rows(
        self, late: DataFrame | pa.Table, events: int, batch_id: int, epoch: int
    ) -> tuple[pa.Table | DataFrame, LateCount]:
        """The rows, and what they hold.

        Args:
            late: the verdict on each late event, as `verdicts_on_late` gives it.
            events: how many they are; up to `FEW` are given in memory, more as a persisted frame.
            batch_id: the batch in which they came.
            epoch: of the checkpoint.
        """
        judged = with_batch(late, batch_id, epoch)
        if isinstance(judged, pa.Table) or events <= FEW:
            verdicts = judged if isinstance(judged, pa.Table) else judged.toArrow()
            groups = pc.count_distinct(pc.list_flatten(verdicts[_GROUPS])).as_py()
            content = self._bronze.beside(verdicts.drop_columns([_GROUPS]), self._columns)
            pairs = content.num_rows
            if self._lateness.in_windows:
                pairs = pc.sum(pc.list_value_length(content["missed_windows"])).as_py()
            return content, self._counted(content.num_rows, pairs, groups)
        kept = self._bronze.beside_many(judged.drop(_GROUPS), self._columns).persist()
        missed = "sum(size(missed_windows))" if self._lateness.in_windows else "count(*)"
        count, pairs = kept.selectExpr("count(*)", missed).collect()[0]
        groups = judged.selectExpr(f"explode({_GROUPS}) AS hash").distinct().count()
        return kept, self._counted(count, pairs, groups)

    def _counted(self, events: int, pairs: int | None, groups: int) -> LateCount:
        most = groups if self._lateness.counts_groups and not self._lateness.counts_per_task else events
        fewest = groups if self._lateness.counts_groups else events
        return LateCount(events=events, pairs=pairs or 0, fewest_groups=fewest, most_groups=most)


def verdicts_on_late(plan: LogicalPlan, lateness: LatenessRule) -> list[str]:
    """What is said of a late event: SQL of a narrow row, see `with_missed_windows`.

    A hash of each (window, key) group that it missed is held against Spark's own drop count.

    Args:
        plan: of the pipeline.
        lateness: by what it was late.
    """
    grace_us = plan.grace_ms * 1000
    sides = [side.name for side in plan.sides for _ in side.tables]
    of_windows = [f"{_MISSED} AS missed_windows", f"size({_MISSED}) < {lateness.pairs()} AS partly_late"]
    return [
        SOURCE,
        f"{SEQ} AS {INGEST_SEQ}",
        *(of_windows if lateness.in_windows else ()),
        *source_table(plan),
        *([f"{_by_source(sides)} AS {SIDE}"] if len(plan.sides) > 1 else ()),
        f"{lateness.late_by_ms(LATE_US)} AS late_by_ms",
        f"timestamp_micros({LATE_US} + {grace_us}L) AS watermark",
        f"timestamp_micros({LATE_US}) AS engine_watermark",
        f"{lateness.groups(_MISSED)} AS {_GROUPS}",
    ]


def with_missed_windows(late: DataFrame, lateness: LatenessRule) -> DataFrame:
    """Adds the windows that late events missed, as `verdicts_on_late` reads them.

    Args:
        late: the narrow row of each, with `LATE_US`.
        lateness: by what they were late.
    """
    return late.withColumn(_MISSED, F.expr(lateness.missed(LATE_US)))


def late_verdict(plan: LogicalPlan, lateness: LatenessRule, is_late: str) -> str:
    """What is said of a late event, as one value, null for other rows, of which nothing is computed; SQL.

    Args:
        plan: of the pipeline.
        lateness: by what it was late.
        is_late: which rows are those of late events; SQL of narrow rows with `LATE_US`.
    """
    # The variable of a lambda is computed once, and needs no step of its own in the plan.
    verdict = f"{_MISSED} -> struct({', '.join(verdicts_on_late(plan, lateness))})"
    return f"CASE WHEN {is_late} THEN element_at(transform(array({lateness.missed(LATE_US)}), {verdict}), 1) END"


def set_aside_verdict(plan: LogicalPlan, is_set_aside: str) -> str:
    """The same of an event that a step could not use."""
    return f"CASE WHEN {is_set_aside} THEN struct({', '.join(verdicts_on_set_aside(plan))}) END"


def verdicts_on_set_aside(plan: LogicalPlan) -> list[str]:
    """What is said of an event that a step could not use: SQL of a narrow row.

    Args:
        plan: of the pipeline.
    """
    return [SOURCE, f"{SEQ} AS {INGEST_SEQ}", *source_table(plan)]


def with_batch(
    verdicts: DataFrame | pa.Table, batch_id: int, epoch: int, said: Mapping[str, str] | None = None
) -> DataFrame | pa.Table:
    """Verdicts that also say in which batch the events came.

    Args:
        verdicts: the rows.
        batch_id: of the batch.
        epoch: of its checkpoint.
        said: name of a column -> its text in all rows.
    """
    said = said or {}
    if isinstance(verdicts, DataFrame):
        numbers = {"_epoch": F.lit(epoch), "_batch_id": F.lit(batch_id).cast("bigint")}
        return verdicts.withColumns({name: F.lit(text) for name, text in said.items()} | numbers)
    same = {name: pa.scalar(text, pa.string()) for name, text in said.items()}
    same |= {"_epoch": pa.scalar(epoch, pa.int32()), "_batch_id": pa.scalar(batch_id, pa.int64())}
    for name, value in same.items():
        verdicts = verdicts.append_column(name, pa.repeat(value, verdicts.num_rows))
    return verdicts


def _beside(events: pa.Table, verdicts: pa.Table) -> pa.Table:
    """The columns of both, row by row of the same sequence number."""
    verdicts = verdicts.take(pc.index_in(events[INGEST_SEQ], value_set=verdicts[INGEST_SEQ]))
    for name in verdicts.column_names:
        if name != INGEST_SEQ:
            events = events.append_column(name, verdicts[name])
    return events
