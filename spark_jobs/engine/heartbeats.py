"""Heartbeats: flagged bronze rows that move the watermark when no event does."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from spark_jobs.engine.commits import TableWriter
from spark_jobs.lake import Lake, tables
from spark_jobs.lake.stamps import Stamp
from spark_jobs.spec import Ingest, Pipeline, Session
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.expressions import columns


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


def event_times(table: str, ingests: Iterable[Ingest], readers: Iterable[Pipeline]) -> tuple[str, ...]:
    """The expressions over a bronze table that its ingest and its readers take for the time of an event."""
    found = [ingest.event_time for ingest in ingests if ingest.sink.table == table]
    for reader in readers:
        for source in reader.tables:
            if source.name == table and reader.event_time is not None:
                found.append((source.select or {}).get(reader.event_time, reader.event_time))
    return tuple(dict.fromkeys(found))


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
    """How far a bronze table is, in milliseconds since 1970, rounded up; None: it has none.

    Attributes:
        event_ms: the newest time of an event, by any of the expressions that were asked for.
        heartbeat_ms: the newest heartbeat.
    """

    event_ms: int | None
    heartbeat_ms: int | None


@dataclass(frozen=True)
class Heartbeats:
    """Sends heartbeats to the bronze tables of a lake.

    Attributes:
        spark: the session.
        lake: where.
        sender: tells these heartbeats from those of other drivers, and of a table's life before a reset.
    """

    spark: SparkSession
    lake: Lake
    sender: str = field(default_factory=lambda: f"heartbeat-{uuid.uuid4()}")

    def front(self, table: str, times: Sequence[str]) -> Front:
        """How far a table is, by the given expressions of an event's time."""
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        # What a reader goes by that this table lacks is for the reader's own start to tell.
        known = [F.unix_micros(F.expr(sql)) for sql in times if columns(sql) <= set(bronze.columns)]
        newest = F.greatest(*known, *[F.lit(None).cast("bigint")] * 2)
        figures = [F.max(F.when(F.col("_heartbeat") == beat, newest)) for beat in (False, True)]
        event_us, heartbeat_us = bronze.agg(*figures).collect()[0]
        return Front(*(None if value is None else -(-value // 1000) for value in (event_us, heartbeat_us)))

    def beat(self, table: str, times: Sequence[str], at_ms: int) -> None:
        """Appends a heartbeat, in every timestamp that one of the expressions reads."""
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        read = frozenset[str]().union(*(columns(sql) for sql in times))
        values = {
            "_event_id": F.lit(f"heartbeat-{uuid.uuid5(uuid.NAMESPACE_OID, f'{table}/{at_ms}')}"),
            "_ingest_time": F.current_timestamp(),
            "_heartbeat": F.lit(True),
        }
        for column in bronze.schema:
            if column.name in read and isinstance(column.dataType, TimestampType):
                values[column.name] = F.timestamp_millis(F.lit(at_ms))
        row = self.spark.range(1).select(
            *(values.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in bronze.schema)
        )
        writer = TableWriter(self.lake, table, "heartbeat", table, query_id=self.sender, epoch=0)
        writer.append(row, Stamp(pipeline=table, epoch=0, batch_id=at_ms, role="heartbeat", rows=1))

    def close(self, times_of: Mapping[str, Sequence[str]], readers: Iterable[Pipeline]) -> int | None:
        """Finishes the input of tables that are read together: past the end of every window of their readers.

        Args:
            times_of: table -> the expressions that its ingest and its readers take for the time of an event.
            readers: every pipeline that reads one of them.

        Returns:
            The heartbeats' event time in milliseconds; None where none of the tables has an event.
        """
        fronts = {name: self.front(name, times) for name, times in times_of.items() if tables.exists(self.lake, name)}
        newest = [front.event_ms for front in fronts.values() if front.event_ms is not None]
        if not newest:
            return None
        at_ms = max(newest) + duration_ms(horizon(readers)) + 1
        for name, front in fronts.items():
            if front.heartbeat_ms is None or front.heartbeat_ms < at_ms:
                self.beat(name, times_of[name], at_ms)
        return at_ms
