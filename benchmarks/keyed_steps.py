"""What keyed steps cost, beside a native windowed aggregation over the same rows: rows a second, and what they keep.

One session, one bronze table, four batches of each step, one after the other, each run over a small table before.
`Process` stands beside the same work written with Spark's own Row API, key by key: their rows must be the same. With
`--hour` there are thirty batches of an hour of event time, and the state at a tenth, half and end of it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import duckdb
import psutil
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from rich.console import Console
from rich.table import Table as TextTable

from benchmarks.measuring import family
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.spark.session import build_session
from spark_jobs.spec import (
    Aggregate,
    AsOf,
    Counting,
    Join,
    Pipeline,
    Process,
    Processor,
    Running,
    Sink,
    Sliding,
    Table,
    Timers,
    Tumbling,
    Watermark,
)

MEASURES = {"events": "count(*)", "total": "sum(amount)", "mean": "avg(temperature)", "most": "max(temperature)"}
DELAY_S, PAUSE_S = 60, 300


class Pauses(Processor):
    """How many events of a key came without a pause of five minutes."""

    output: ClassVar = {"events": "BIGINT"}
    state: ClassVar = {"events": "BIGINT"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        """Counts, and waits for the next one."""
        state["events"] = (state["events"] or 0) + 1
        timers.set("pause", event["t"] + timedelta(seconds=300))

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> list[Mapping]:
        """None came."""
        return [{"events": state.pop("events")}]


class PausesInOrder(StatefulProcessor):
    """The same with Spark's Row API, as its manual shows it: whole events of a key, in order of event time."""

    event = "t_us BIGINT, temperature DOUBLE, amount DECIMAL(12, 2), event_id STRING, seq BIGINT, ingest_us BIGINT"

    def init(self, handle: Any) -> None:
        """Names the state."""
        self.handle = handle
        self.waiting = handle.getListState("waiting", self.event)
        self.kept = handle.getValueState("kept", "events BIGINT, pause_us BIGINT, timer_ms BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Goes on with new events."""
        return self.advance(key, [row[1:] for row in rows], timerValues.getCurrentWatermarkInMs(), None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Goes on without."""
        return self.advance(key, [], timerValues.getCurrentWatermarkInMs(), expiredTimerInfo.getExpiryTimeInMs())

    def advance(self, key: Any, new: list[Any], watermark_ms: int, fired_ms: int | None) -> Iterator[Row]:
        """Takes events, and tells pauses, up to the watermark; keeps the other events."""
        upto_us = watermark_ms * 1000
        events, pause_us, set_ms = self.kept.get() or (0, None, None)
        waiting = sorted([*self.waiting.get(), *new], key=lambda event: (event[0], event[4]))
        ready = [event for event in waiting if event[0] <= upto_us]
        rest, given = waiting[len(ready) :], []
        for event in ready:
            if pause_us is not None and pause_us < event[0]:
                given.append(Row(k=key[0], t_us=pause_us, events=events))
                events = 0
            events += 1
            pause_us = event[0] + PAUSE_S * 1_000_000
        if pause_us is not None and pause_us <= upto_us:
            given.append(Row(k=key[0], t_us=pause_us, events=events))
            events, pause_us = 0, None
        if rest:
            if new or ready:
                self.waiting.put(rest)
        elif len(waiting) > len(new):
            self.waiting.clear()
        next_us = min((each for each in (pause_us, rest[0][0] if rest else None) if each is not None), default=None)
        timer_ms = None if next_us is None else -(-next_us // 1000)
        if timer_ms != set_ms:
            if set_ms is not None and set_ms != fired_ms:
                self.handle.deleteTimer(set_ms)
            if timer_ms is not None:
                self.handle.registerTimer(timer_ms)
        if timer_ms is None:
            self.kept.clear()
        else:
            self.kept.update((events, pause_us, timer_ms))
        return iter(given)

    def close(self) -> None:
        """Nothing is open."""


class PausesAsRead(StatefulProcessor):
    """Less than that: events as they are read, one column of them, and the last pause of a batch alone."""

    def init(self, handle: Any) -> None:
        """Names the state."""
        self.handle = handle
        self.kept = handle.getValueState("kept", "events BIGINT, timer_ms BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Counts, and waits for the next one."""
        events, set_ms = self.kept.get() or (0, None)
        last_us = 0
        for row in rows:
            events += 1
            last_us = max(last_us, row.t_us)
        timer_ms = max(last_us // 1000 + PAUSE_S * 1000, set_ms or 0)
        if timer_ms != set_ms:
            if set_ms is not None:
                self.handle.deleteTimer(set_ms)
            self.handle.registerTimer(timer_ms)
        self.kept.update((events, timer_ms))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """None came."""
        events, timer_ms = self.kept.get()
        self.kept.clear()
        yield Row(k=key[0], t_us=timer_ms * 1000, events=events)

    def close(self) -> None:
        """Nothing is open."""


VERSIONS = Table("bronze.versions", max_files_per_trigger=1)
WINDOWS, PROCESS = "windows of Spark (`Aggregate`, tumbling)", "`Process`, a timer for each pause"
IN_ORDER, AS_READ = "the same work with Spark's Row API, by key", "less work with it: events as they are read"
STATE = "spark.sql.streaming.stateStore.rocksdb"


def steps(keep: str) -> dict[str, Any]:
    """What is measured: name -> step.

    Args:
        keep: how long versions are kept.
    """
    return {
        WINDOWS: Aggregate(window=Tumbling("5 minutes"), by=("k",), measures=MEASURES),
        "`AsOf`": AsOf(VERSIONS, on=("k",), event_time="u", keep=keep),
        "`Join` with `keep`": Join(VERSIONS, on=("k",), event_time="u", keep=keep),
        "`Sliding`, 5 minutes": Sliding("5 minutes", by=("k",), measures=MEASURES),
        "`Counting`, 3": Counting(3, by=("k",), measures=MEASURES),
        "`Running`": Running(by=("k",), measures=MEASURES),
        PROCESS: Process(Pauses, by=("k",)),
    }


def fill(lake: Lake, rows: int, key: str, *, batches: int, span_s: int) -> None:
    """Events out of order by up to half a minute, and a version of each tenth.

    Args:
        lake: an empty one.
        rows: how many events.
        key: the number of an event's key, in SQL, of its own number `i`.
        batches: in how many commits.
        span_s: seconds of event time.
    """
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SELECT setseed(0.5)").fetchall()
        for batch in range(batches):
            for table, time_column, values, count in (
                ("bronze.events", "t", "random() * 100 AS temperature, (i % 1000)::DECIMAL(12, 2) AS amount", rows),
                ("bronze.versions", "u", "'status ' || (i % 7) AS status", rows // 10),
            ):
                size = count // batches
                found = connection.sql(
                    f"SELECT 'key ' || ({key})::INT AS k, {values}, "
                    f"TIMESTAMPTZ '2026-01-01' + to_microseconds((i * {span_s} * 1000000 // {count} "
                    f"+ random() * 30000000)::BIGINT) AS {time_column}, i::VARCHAR AS _event_id, i AS _ingest_seq, "
                    "TIMESTAMPTZ '2026-01-02' AS _ingest_time, false AS _heartbeat "
                    f"FROM range({batch * size}, {(batch + 1) * size}) r(i)"
                ).to_arrow_table()
                write_deltalake(lake.table_uri(table), found, mode="append", target_file_size=2**31)


def pipeline(number: int, step: Any) -> Pipeline:
    """A pipeline with one step."""
    return Pipeline(
        name=f"step_{number}",
        source=Table("bronze.events", max_files_per_trigger=1),
        event_time="t",
        watermark=Watermark(delay=f"{DELAY_S} seconds"),
        steps=(step,),
        sink=Sink(f"gold.step_{number}"),
    )


def bare(spark: SparkSession, lake: Lake, processor: StatefulProcessor, columns: Sequence[Column], number: int) -> Any:
    """A query of Spark's Row API that writes what it gives to a Delta table."""
    from spark_jobs.spark.ordered import WATERMARK

    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("startingVersion", 0)
    events = stream.load(lake.table_path("bronze.events")).withWatermark("t", f"{DELAY_S} seconds")
    t_us = F.unix_micros("t").alias("t_us", metadata={WATERMARK: DELAY_S * 1000})
    given = (
        events.select("k", t_us, *columns)
        .groupBy("k")
        .transformWithState(processor, "k STRING, t_us BIGINT, events BIGINT", "append", "EventTime")
    )

    def write(batch: DataFrame, _: int) -> None:
        batch.write.format("delta").mode("append").save(lake.table_path(f"gold.step_{number}"))

    checkpoint = lake.path(f"_checkpoints/bare_{number}")
    writer = given.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def tidemark(spark: SparkSession, lake: Lake, step: Any) -> Callable[[int], Any]:
    """What starts a pipeline with a step."""
    return lambda number: PipelineQuery(spark, lake, pipeline(number, step)).start(until_caught_up=True)


def cpu_s() -> float:
    """CPU seconds of this process and its children: Java and Spark's Python workers."""
    found = 0.0
    for process in family():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found += times.user + times.system + times.children_user + times.children_system
    return found


def run(start: Callable[[], Any]) -> tuple[float, float, list[Any]]:
    """Seconds of wall and of CPU, and what Spark has said of each batch."""
    began, spent = time.monotonic(), cpu_s()
    handle = start()
    handle.awaitTermination()
    if handle.exception() is not None:
        raise handle.exception()
    return time.monotonic() - began, cpu_s() - spent, list(handle.recentProgress)


def pauses(lake: Lake, number: int) -> list[tuple[Any, ...]]:
    """The rows of a step that tells pauses."""
    found = DeltaTable(lake.table_uri(f"gold.step_{number}")).to_pyarrow_table()
    time_us = "t_us" if "t_us" in found.column_names else "epoch_us(t)"
    with duckdb.connect() as connection:
        return connection.from_arrow(found).select(f"k, {time_us} AS t_us, events").order("ALL").fetchall()


Contender = Callable[[int], Any]
"""Starts a query, which writes to the table of its number."""


def contenders(spark: SparkSession, lake: Lake) -> dict[str, Contender]:
    """All whose rates are measured, by name."""
    event = ("temperature", "amount", "_event_id", "_ingest_seq")
    whole = [*map(F.col, event), F.unix_micros("_ingest_time").alias("ingest_us")]
    return {
        **{name: tidemark(spark, lake, step) for name, step in steps("1 day").items()},
        IN_ORDER: lambda number: bare(spark, lake, PausesInOrder(), whole, number),
        AS_READ: lambda number: bare(spark, lake, PausesAsRead(), [], number),
    }


def rates(spark: SparkSession, lake: Lake, rows: int) -> TextTable:
    """Wall and CPU seconds of each, and events a CPU second."""
    # Java compiles, and Python's workers start, when something is run for the first time.
    small = Lake(lake.path("small")).ensure_exists()
    fill(small, 40_000, "hash(i) % 1000", batches=2, span_s=2 * 3600)
    for number, start in enumerate(contenders(spark, small).values()):
        run(partial(start, number))
    found, numbers = [], {}
    every = contenders(spark, lake)
    for number, name in enumerate((*every, WINDOWS)):
        wall, cpu, _ = run(partial(every[name], number))
        sys.stderr.write(f"{name}: {wall:.1f} s, {cpu:.1f} CPU s\n")
        found.append((name, wall, cpu))
        numbers[name] = number
    assert pauses(lake, numbers[PROCESS]) == pauses(lake, numbers[IN_ORDER])
    base = min(cpu for name, _, cpu in found if name == WINDOWS)
    table = TextTable("step", "wall s", "CPU s", "events per CPU s", "rate beside Spark's windows")
    for name, wall, cpu in found:
        table.add_row(name, f"{wall:.1f}", f"{cpu:.1f}", f"{rows / cpu:,.0f}", f"{base / cpu:.2f}")
    return table


def states(spark: SparkSession, lake: Lake, keys: int) -> TextTable:
    """What each has in its state at a tenth, at half and at the end of the input."""
    # All of it in files after each batch, and nothing that has gone: else their size tells little.
    spark.conf.set(f"{STATE}.changelogCheckpointing.enabled", "false")
    spark.conf.set(f"{STATE}.compactOnCommit", "true")
    table = TextTable("step", "rows: tenth", "half", "end", "MB: tenth", "half", "end", "end / half", "bytes per key")
    for number, (name, step) in enumerate(steps("5 minutes").items()):
        _, _, batches = run(partial(tidemark(spark, lake, step), number))
        operators = [each["stateOperators"] for each in batches if each["numInputRows"]]
        looks = [operators[len(operators) * part // 10 - 1] for part in (1, 5, 10)]
        rows = [sum(each["numRowsTotal"] for each in look) for look in looks]
        sizes = [sum(each["customMetrics"]["rocksdbSstFileSize"] for each in look) for look in looks]
        sys.stderr.write(f"{name}: {rows} rows, {sizes} bytes\n")
        table.add_row(
            name,
            *(f"{each:,}" for each in rows),
            *(f"{each / 1e6:.2f}" for each in sizes),
            f"{sizes[2] / sizes[1]:.2f}",
            f"{sizes[2] / keys:,.0f}",
        )
    return table


def main() -> None:
    """Prints a table, as `benchmarks/README.md` has it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--hour", action="store_true", help="thirty batches of an hour, and the state of each step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder).ensure_exists()
        if options.hour:
            # Keys in turns: so all are there from early on, and none is new later.
            fill(lake, options.rows, f"i % {options.keys}", batches=30, span_s=3600)
        else:
            fill(lake, options.rows, f"hash(i) % {options.keys}", batches=4, span_s=4 * 3600)
        spark = build_session(lake, settings=Settings(master="local[2]", shuffle_partitions=4))
        table = states(spark, lake, options.keys) if options.hour else rates(spark, lake, options.rows)
        spark.stop()
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
