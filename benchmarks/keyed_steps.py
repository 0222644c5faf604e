"""What keyed steps cost, beside a native windowed aggregation over the same rows: rows a second, and state of a key.

One session, one bronze table, four batches of each step, one after the other; the native one first and last, as Java is
warmer then. `Process` stands beside the same work written with Spark's own Row API, key by key.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import duckdb
import psutil
from deltalake import write_deltalake
from pyspark.sql import DataFrame, Row, SparkSession
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
BATCHES, DELAY_S, PAUSE_S = 4, 60, 300


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


class PausesByKey(StatefulProcessor):
    """The same with Spark's Row API, as its manual shows it; events of a key as they are read."""

    def init(self, handle: Any) -> None:
        """Names the state."""
        self.handle = handle
        self.kept = handle.getValueState("kept", "events BIGINT, timer_ms BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Counts, and waits for the next one."""
        kept = self.kept.get()
        events, set_ms = kept if kept is not None else (0, None)
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
        events, _ = self.kept.get()
        self.kept.clear()
        yield Row(k=key[0], events=events)

    def close(self) -> None:
        """Nothing is open."""


VERSIONS = Table("bronze.versions", max_files_per_trigger=1)
STEPS: dict[str, Any] = {
    "windows of Spark (`Aggregate`, tumbling)": Aggregate(window=Tumbling("5 minutes"), by=("k",), measures=MEASURES),
    "`AsOf`": AsOf(VERSIONS, on=("k",), event_time="u", keep="1 day"),
    "`Join` with `keep`": Join(VERSIONS, on=("k",), event_time="u", keep="1 day"),
    "`Sliding`, 5 minutes": Sliding("5 minutes", by=("k",), measures=MEASURES),
    "`Counting`, 3": Counting(3, by=("k",), measures=MEASURES),
    "`Running`": Running(by=("k",), measures=MEASURES),
    "`Process`, a timer for each pause": Process(Pauses, by=("k",)),
}


def fill(lake: Lake, rows: int, keys: int) -> None:
    """Events of some hours, out of order by up to half a minute, and a version of each tenth."""
    span_s = 4 * 3600
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SELECT setseed(0.5)").fetchall()
        for batch in range(BATCHES):
            for table, time_column, values, count in (
                ("bronze.events", "t", "random() * 100 AS temperature, (i % 1000)::DECIMAL(12, 2) AS amount", rows),
                ("bronze.versions", "u", "'status ' || (i % 7) AS status", rows // 10),
            ):
                size = count // BATCHES
                found = connection.sql(
                    f"SELECT 'key ' || (hash(i) % {keys})::INT AS k, {values}, "
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


def bare(spark: SparkSession, lake: Lake, number: int) -> Any:
    """A query of Spark's Row API that writes what it gives to a Delta table."""
    from spark_jobs.spark.ordered import WATERMARK

    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("startingVersion", 0)
    events = stream.load(lake.table_path("bronze.events")).withWatermark("t", f"{DELAY_S} seconds")
    t_us = F.unix_micros("t").alias("t_us", metadata={WATERMARK: DELAY_S * 1000})
    given = (
        events.select("k", t_us)
        .groupBy("k")
        .transformWithState(PausesByKey(), "k STRING, events BIGINT", "append", "EventTime")
    )

    def write(batch: DataFrame, _: int) -> None:
        batch.write.format("delta").mode("append").save(lake.table_path(f"gold.bare_{number}"))

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


def measured(start: Callable[[], Any], keys: int) -> tuple[float, float, float]:
    """Seconds of wall and of CPU, and bytes of state for each key."""
    began, spent = time.monotonic(), cpu_s()
    handle = start()
    handle.awaitTermination()
    if handle.exception() is not None:
        raise handle.exception()
    wall, cpu = time.monotonic() - began, cpu_s() - spent
    operators = [each for progress in handle.recentProgress[-1:] for each in progress["stateOperators"]]
    size = sum(each["memoryUsedBytes"] + each["customMetrics"].get("rocksdbSstFileSize", 0) for each in operators)
    return wall, cpu, size / keys


def main() -> None:
    """Prints a table, as `benchmarks/README.md` has it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder).ensure_exists()
        fill(lake, options.rows, options.keys)
        spark = build_session(lake, settings=Settings(master="local[2]", shuffle_partitions=4))
        native, *others = STEPS.items()
        rounds: list[tuple[str, Callable[[int], Any]]] = []
        for name, step in (("warming up", native[1]), native, *others, native):
            rounds.append((name, tidemark(spark, lake, step)))
        rounds.insert(-1, ("the same with Spark's Row API, by key", partial(bare, spark, lake)))
        found = []
        for number, (name, start) in enumerate(rounds):
            found.append((name, *measured(partial(start, number), options.keys)))
            sys.stderr.write(f"{found[-1]}\n")
        spark.stop()
    del found[0]
    base = min(cpu for name, _, cpu, _ in found if name == native[0])
    table = TextTable("step", "wall s", "CPU s", "rows per CPU s", "rate beside Spark's windows", "bytes per key")
    for name, wall, cpu, size in found:
        rate = f"{options.rows / cpu:,.0f}"
        table.add_row(name, f"{wall:.1f}", f"{cpu:.1f}", rate, f"{base / cpu:.2f}", f"{size:,.0f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
