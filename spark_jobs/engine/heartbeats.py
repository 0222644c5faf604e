"""Heartbeats: flagged bronze rows that move the watermark when no event does."""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, count

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType, TimestampType

from spark_jobs.engine.commits import TableWriter
from spark_jobs.lake import Lake, tables
from spark_jobs.lake.stamps import Stamp
from spark_jobs.spec import Ingest, Pipeline, Session, Table
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.expressions import columns


def horizon(reader: Pipeline) -> timedelta:
    """How far past the newest event the watermark must move until every window of a reader is final."""
    window, watermark = reader.aggregate.window, reader.watermark
    if window is None or watermark is None:
        return timedelta(0)
    return watermark.engine_delay + (window.gap if isinstance(window, Session) else window.size)


def event_times(table: str, ingests: Iterable[Ingest], readers: Iterable[Pipeline]) -> dict[str, timedelta]:
    """What is taken for the time of an event in a bronze table.

    Returns:
        Expression over the table's columns -> the horizon of the readers that go by it.
    """
    found = {ingest.event_time: timedelta(0) for ingest in ingests if ingest.sink.table == table}
    for reader in readers:
        for source in reader.tables:
            if source.name == table and reader.event_time is not None:
                sql = _time_in(source, reader.event_time)
                found[sql] = max(found.get(sql, timedelta(0)), horizon(reader))
    return found


def _time_in(source: Table, event_time: str) -> str:
    """A reader's event time as an expression over the columns of one of its source tables."""
    return (source.select or {}).get(event_time, event_time)


def groups(names: Iterable[str], readers: Iterable[Pipeline]) -> tuple[tuple[str, ...], ...]:
    """The tables, those that one pipeline reads together: the one that is furthest behind decides for it."""
    found = [{name} for name in names]
    for reader in readers:
        read = {table.name for table in reader.tables}
        together = [group for group in found if group & read]
        if together:
            found = [group for group in found if group not in together] + [set.union(*together)]
    return tuple(tuple(sorted(group)) for group in found)


@dataclass(frozen=True)
class Front:
    """How far a bronze table is by one expression, in milliseconds since 1970, rounded up; None: it has none.

    Attributes:
        event_ms: the newest time of an event.
        heartbeat_ms: the newest heartbeat.
    """

    event_ms: int | None
    heartbeat_ms: int | None


def _up_to_ms(us: int | None) -> int | None:
    return None if us is None else -(-us // 1000)


@dataclass(frozen=True)
class Heartbeats:
    """Sends heartbeats to the bronze tables of a lake.

    Attributes:
        spark: the session.
        lake: where.
        sender: tells these heartbeats from those of other drivers, and of a table's life before a reset.
        numbers: of the heartbeats; their times need not grow, since each column may have one of its own.
    """

    spark: SparkSession
    lake: Lake
    sender: str = field(default_factory=lambda: f"heartbeat-{uuid.uuid4()}")
    numbers: Iterator[int] = field(default_factory=count)

    def clocks(self, table: str, times: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Which timestamps of a table each of these expressions reads, for those that it has the columns for."""
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        names = {field.name.casefold(): field for field in bronze.schema}
        read = {sql: {name.casefold() for name in columns(sql)} for sql in times}
        # What a reader goes by that this table lacks is for the reader's own start to tell.
        return {
            sql: tuple(
                sorted(
                    names[name].name
                    for name in found
                    if isinstance(names[name].dataType, TimestampType | TimestampNTZType)
                )
            )
            for sql, found in read.items()
            if found <= names.keys()
        }

    def fronts(self, table: str, times: Collection[str]) -> dict[str, Front]:
        """How far a table is by each of these expressions over its columns.

        What the log of the table tells is taken from there; only for the others is the table read.
        """
        if not times:
            return {}
        opened = tables.open_table(self.lake, table)
        # Events are numbered, heartbeats are not.
        logged = {sql: tables.newest_beside(opened, sql, "_ingest_seq") for sql in times}
        found = {sql: Front(*map(_up_to_ms, newest)) for sql, newest in logged.items() if newest is not None}
        return found | self._read_fronts(table, [sql for sql in times if sql not in found])

    def _read_fronts(self, table: str, times: Sequence[str]) -> dict[str, Front]:
        if not times:
            return {}
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        # A column's name may need quotes as an expression.
        read = [F.col(sql) if sql in bronze.columns else F.expr(sql) for sql in times]
        newest = [
            F.max(F.when(F.col("_heartbeat") == beat, F.unix_micros(time.cast("timestamp"))))
            for time in read
            for beat in (False, True)
        ]
        found = [_up_to_ms(us) for us in bronze.agg(*newest).collect()[0]]
        return {sql: Front(*found[2 * index : 2 * index + 2]) for index, sql in enumerate(times)}

    def beat(self, table: str, at_ms: Mapping[str, int]) -> None:
        """Appends a heartbeat.

        Args:
            table: a bronze table.
            at_ms: timestamp column -> milliseconds since 1970; not empty.
        """
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        values = {
            "_event_id": F.lit(f"heartbeat-{uuid.uuid5(uuid.NAMESPACE_OID, f'{table}/{sorted(at_ms.items())}')}"),
            "_ingest_time": F.current_timestamp(),
            "_heartbeat": F.lit(True),
            **{name: F.timestamp_millis(F.lit(ms)) for name, ms in at_ms.items()},
        }
        row = self.spark.range(1).select(
            *(values.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in bronze.schema)
        )
        number = next(self.numbers)
        writer = TableWriter(self.lake, table, "heartbeat", table, query_id=self.sender, epoch=0)
        writer.append(row, Stamp(pipeline=table, epoch=0, batch_id=number, role="heartbeat", rows=1))

    def close(self, names: Sequence[str], ingests: Sequence[Ingest], readers: Sequence[Pipeline]) -> None:
        """Finishes the input of tables that are read together: past the end of every window of their readers.

        Args:
            names: of the tables.
            ingests: those that write them, as far as they are known.
            readers: every pipeline that reads one of them.
        """
        times = {name: event_times(name, ingests, readers) for name in names if tables.exists(self.lake, name)}
        clocks = {name: self.clocks(name, times[name]) for name in times}
        fronts = {name: self.fronts(name, sorted({*read, *chain(*read.values())})) for name, read in clocks.items()}
        for name, of_table in fronts.items():
            at_ms: dict[str, int] = {}
            for sql, read in clocks[name].items():
                front, newest = of_table[sql], self._newest_together(name, sql, fronts, readers)
                target = None if newest is None else newest + duration_ms(times[name][sql]) + 1
                if target is None or (front.heartbeat_ms is not None and front.heartbeat_ms >= target):
                    continue
                for column in read:
                    own = of_table[column].event_ms
                    # The reader's time may lie at a distance from the column's: both move by as much.
                    at = target if own is None or front.event_ms is None else own + target - front.event_ms
                    at_ms[column] = max(at, at_ms.get(column, at))
            if at_ms:
                self.beat(name, at_ms)

    def _newest_together(
        self, name: str, sql: str, fronts: Mapping[str, Mapping[str, Front]], readers: Iterable[Pipeline]
    ) -> int | None:
        """The newest event of a table by an expression, and of those that are read together with it by its readers."""
        found = [fronts[name][sql].event_ms]
        for reader in readers:
            by = {source.name: _time_in(source, str(reader.event_time)) for source in reader.tables}
            if by.get(name) == sql:
                found += [fronts[table][its].event_ms for table, its in by.items() if its in fronts.get(table, {})]
        return max((ms for ms in found if ms is not None), default=None)
