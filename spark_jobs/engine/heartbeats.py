"""Heartbeats: flagged bronze rows that move the watermark when no event does."""

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, count
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, TimestampNTZType, TimestampType

from spark_jobs.commits.changes import Append
from spark_jobs.commits.writer import TableWriter
from spark_jobs.lake import Lake
from spark_jobs.lake.commit_records.stamps import Stamp
from spark_jobs.lake.tables import opening as tables
from spark_jobs.plan import logical as plan
from spark_jobs.spark.columns import column
from spark_jobs.spark.frames import fetch
from spark_jobs.spec import Ingest, Pipeline, Table
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.expressions import columns
from spark_jobs.spec.names import column_named, in_spark
from spark_jobs.transforms.event_times import believed


def event_times(table: str, ingests: Iterable[Ingest], readers: Iterable[Pipeline]) -> dict[str, timedelta]:
    """What is taken for the time of an event in a bronze table.

    Returns:
        Expression over the table's columns, such as a column's name in quotes -> the horizon of the readers that go by
        it.
    """
    found = {in_spark(ingest.event_time): timedelta(0) for ingest in ingests if ingest.sink.table == table}
    for reader in readers:
        if (sql := _times_of(reader).get(table)) is not None:
            found[sql] = max(found.get(sql, timedelta(0)), plan.build(reader).horizon)
    return found


def most_ahead(table: str, ingests: Iterable[Ingest], readers: Iterable[Pipeline]) -> timedelta:
    """How far ahead of its arrival the time of an event of a bronze table may be, for those that write or read it."""
    written = (ingest.max_future for ingest in ingests if ingest.sink.table == table)
    read = (reader.max_future for reader in readers if table in {each.name for each in reader.tables})
    return max((*written, *read), default=timedelta(0))


def _times_of(reader: Pipeline) -> dict[str, str]:
    """Source table of a reader -> its event time as an expression over the columns of that table."""
    sides = (side for side in plan.build(reader).sides if side.event_time is not None)
    return {table.name: _of_side(table, str(side.event_time)) for side in sides for table in side.tables}


def _of_side(table: Table, event_time: str) -> str:
    """The event time over a table's own columns; one that only gives a column another name is that column's name."""
    if table.select is None or event_time not in table.select:
        return in_spark(event_time)
    sql = table.select[event_time]
    name = column_named(sql)
    return sql if name is None else in_spark(name)


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

    def number_at(self, table: str, sql: str, target_ms: int, max_future: timedelta) -> tuple[str, Any] | None:
        """The number that a column must have for an expression over it to give a time, such as `timestamp_millis(ms)`.

        Found by the expression's own slope at the newest event, then tried out.

        Args:
            table: a bronze table.
            sql: an expression over one column of numbers.
            target_ms: the least time that it is to give, milliseconds since 1970.
            max_future: as in `fronts`.

        Returns:
            The column and its value; None where the expression reads other columns, or does not grow evenly.
        """
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        names = {field.name.casefold(): field for field in bronze.schema}
        read = [names[name.casefold()] for name in columns(sql) if name.casefold() in names]
        if len(read) != 1 or not isinstance(read[0].dataType, NumericType):
            return None
        of, kind = read[0].name, read[0].dataType

        def time_us(value: Any) -> int | None:
            one = self.spark.range(1).select(F.lit(value).cast(kind).alias(of))
            found = one.select(F.unix_micros(F.expr(sql).cast("timestamp"))).collect()[0][0]
            return None if found is None else int(found)

        newest = (
            bronze.where("NOT _heartbeat").agg(F.max_by(column(of), believed(F.expr(sql), max_future))).collect()[0][0]
        )
        try:
            at, after = time_us(newest), time_us(newest + 1) if newest is not None else None
            if at is None or after is None or after <= at:
                return None
            value = newest + -((at - target_ms * 1000) // (after - at))
            reached = time_us(value)
        except PySparkException:
            return None  # such as a number that its type does not hold
        return (of, value) if reached is not None and reached >= target_ms * 1000 else None

    def fronts(self, table: str, times: Collection[str], max_future: timedelta) -> dict[str, Front]:
        """How far a table is by each of these expressions over its columns.

        What the log of the table tells is taken from there; only for the others is the table read.

        Args:
            table: a bronze table.
            times: names in quotes, or SQL that computes a time.
            max_future: how far ahead of its arrival the time of an event may be; others do not count.
        """
        if not times:
            return {}
        opened = tables.open_table(self.lake, table)
        # Events are numbered, heartbeats are not.
        names = {sql: name for sql in times if (name := column_named(sql)) is not None}
        logged = {sql: tables.newest_beside(opened, name, "_ingest_seq") for sql, name in names.items()}
        found = {sql: Front(*map(_up_to_ms, newest)) for sql, newest in logged.items() if newest is not None}
        # The log does not tell when the newest event arrived: one that could not be believed even now is looked at.
        latest_ms = (time.time() + max_future.total_seconds()) * 1000
        found = {sql: front for sql, front in found.items() if (front.event_ms or 0) <= latest_ms}
        return found | self._read_fronts(table, [sql for sql in times if sql not in found], max_future)

    def _read_fronts(self, table: str, times: Sequence[str], max_future: timedelta) -> dict[str, Front]:
        if not times:
            return {}
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        read = [believed(F.expr(sql).cast("timestamp"), max_future) for sql in times]
        newest = [
            F.max(F.when(F.col("_heartbeat") == beat, F.unix_micros(each))) for each in read for beat in (False, True)
        ]
        found = [_up_to_ms(us) for us in bronze.agg(*newest).collect()[0]]
        return {sql: Front(*found[2 * index : 2 * index + 2]) for index, sql in enumerate(times)}

    def beat(self, table: str, at_ms: Mapping[str, int], numbers: Mapping[str, Any] | None = None) -> None:
        """Appends a heartbeat.

        Args:
            table: a bronze table.
            at_ms: timestamp column -> milliseconds since 1970.
            numbers: column from which a reader computes its event time -> value.
        """
        numbers = numbers or {}
        bronze = self.spark.read.format("delta").load(self.lake.table_path(table))
        values = {
            "_event_id": F.lit(
                f"heartbeat-{uuid.uuid5(uuid.NAMESPACE_OID, f'{table}/{sorted({**at_ms, **numbers}.items())}')}"
            ),
            "_ingest_time": F.current_timestamp(),
            "_heartbeat": F.lit(True),
            **{name: F.timestamp_millis(F.lit(ms)) for name, ms in at_ms.items()},
            **{name: F.lit(value) for name, value in numbers.items()},
        }
        row = self.spark.range(1).select(
            *(values.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in bronze.schema)
        )
        number = next(self.numbers)
        writer = TableWriter(self.lake, table, "heartbeat", table, query_id=self.sender, epoch=0)
        stamp = Stamp(pipeline=table, epoch=0, batch_id=number, role="heartbeat", rows=1)
        writer.commit(Append(fetch(row), 1, 0), stamp)

    def close(self, names: Sequence[str], ingests: Sequence[Ingest], readers: Sequence[Pipeline]) -> tuple[str, ...]:
        """Finishes the input of tables that are read together: past the end of every window of their readers.

        Args:
            names: of the tables.
            ingests: those that write them, as far as they are known.
            readers: every pipeline that reads one of them.

        Returns:
            What could not be closed, in words.
        """
        told: list[str] = []
        times = {name: event_times(name, ingests, readers) for name in names if tables.exists(self.lake, name)}
        clocks = {name: self.clocks(name, times[name]) for name in times}
        fronts = {
            name: self.fronts(
                name, sorted({*read, *map(in_spark, chain(*read.values()))}), most_ahead(name, ingests, readers)
            )
            for name, read in clocks.items()
        }
        for name, of_table in fronts.items():
            at_ms: dict[str, int] = {}
            numbers: dict[str, Any] = {}
            for sql, read in clocks[name].items():
                front, newest = of_table[sql], self._newest_together(name, sql, fronts, readers)
                target = None if newest is None else newest + duration_ms(times[name][sql]) + 1
                if target is None or (front.heartbeat_ms is not None and front.heartbeat_ms >= target):
                    continue
                if not read:
                    # Its time is computed from what is no time.
                    if (found := self.number_at(name, sql, target, most_ahead(name, ingests, readers))) is not None:
                        numbers[found[0]] = max(found[1], numbers.get(found[0], found[1]))
                    else:
                        shown, who = column_named(sql) or sql, self._who(name, sql, readers)
                        told.append(
                            f"{name}: the event time `{shown}` of {who} cannot be moved by a heartbeat, so its "
                            "last windows stay open. Give bronze a TIMESTAMP column, and go by that."
                        )
                for each in read:
                    own = of_table[in_spark(each)].event_ms
                    # The reader's time may lie at a distance from the column's: both move by as much.
                    at = target if own is None or front.event_ms is None else own + target - front.event_ms
                    at_ms[each] = max(at, at_ms.get(each, at))
            if at_ms or numbers:
                self.beat(name, at_ms, numbers)
        return tuple(told)

    @staticmethod
    def _who(name: str, sql: str, readers: Iterable[Pipeline]) -> str:
        """The readers of a table that go by an expression."""
        found = {reader.name for reader in readers if _times_of(reader).get(name) == sql}
        return ", ".join(sorted(found)) or "its ingest"

    def _newest_together(
        self, name: str, sql: str, fronts: Mapping[str, Mapping[str, Front]], readers: Iterable[Pipeline]
    ) -> int | None:
        """The newest event of a table by an expression, and of those that are read together with it by its readers."""
        found = [fronts[name][sql].event_ms]
        for reader in readers:
            by = _times_of(reader)
            if by.get(name) == sql:
                found += [fronts[table][its].event_ms for table, its in by.items() if its in fronts.get(table, {})]
        return max((ms for ms in found if ms is not None), default=None)
