"""The driver: heartbeats, orderly ends, pipelines that fail beside others, and a second driver on one checkpoint."""

import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from spark_jobs.console.live import Progress
from spark_jobs.engine.driver import Driver, Outcome
from spark_jobs.engine.heartbeats import Front, Heartbeats
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import exists, newest_beside, open_table
from spark_jobs.spec import (
    Aggregate,
    Between,
    Definition,
    Files,
    Ingest,
    Pipeline,
    Sink,
    Table,
    Tumbling,
    Union,
    Watermark,
)
from tests.support import lakes
from tests.support.waiting import PATIENCE_S, await_that

PIPELINE_FILE = """
from spark_jobs.spec import Files, Ingest, Sink

ingest_events = Ingest(
    name="ingest_events",
    source=Files("landing", max_files_per_trigger=1),
    columns={"number": "INT", "k": "STRING", "t": "TIMESTAMP"},
    event_time="t",
    sink=Sink("bronze.events"),
)
"""


def land(lake: Lake, number: int, *, minute: int = 0, rows: int = 3) -> None:
    """A file with `rows` events, which appears whole."""
    folder = Path(lake.uri.removeprefix("file://")) / "landing"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"number": number * rows + row, "k": f"k{row}", "t": f"2026-01-01T00:{minute:02}:0{row}Z"})
        for row in range(rows)
    ]
    hidden = folder / f".{number:05}"
    hidden.write_text("\n".join(lines))
    # Files are read in order of their modification time, to the millisecond: those of one test would tie.
    os.utime(hidden, (1_767_225_600 + number, 1_767_225_600 + number))
    hidden.rename(folder / f"{number:05}.json")


def an_ingest() -> Ingest:
    return Ingest(
        name="ingest_events",
        source=Files("landing", max_files_per_trigger=1),
        columns={"number": "INT", "k": "STRING", "t": "TIMESTAMP"},
        event_time="t",
        sink=Sink("bronze.events"),
    )


def a_count(name: str = "counts", table: str = "bronze.events") -> Pipeline:
    return Pipeline(
        name=name,
        source=Table(table, max_files_per_trigger=1),
        event_time="t",
        watermark=Watermark(delay="2 seconds"),
        steps=(Aggregate(window=Tumbling("10 seconds"), by=("k",), measures={"events": "count(*)"}),),
        sink=Sink(f"gold.{name}"),
    )


def failures(outcomes: dict[str, Outcome]) -> dict[str, BaseException]:
    return {name: outcome.error for name, outcome in outcomes.items() if outcome.error is not None}


def contents(lake: Lake) -> dict[str, Any]:
    tables = ("bronze.events", "bronze.events__quarantine", "gold.counts", "gold.counts__late")
    return {table: lakes.comparable(lakes.rows(lake, table)) for table in tables}


def numbers(lake: Lake) -> list[int]:
    return sorted(row["number"] for row in lakes.rows(lake, "bronze.events") if not row["_heartbeat"])


def test_finite_input_is_closed_once_and_a_failed_pipeline_stops_no_other(spark: SparkSession, lake: Lake) -> None:
    land(lake, 0)
    land(lake, 1, minute=5)
    definitions: list[Definition] = [an_ingest(), a_count()]

    first = Driver(spark, lake, definitions).run_until_caught_up(close=True)

    assert failures(dict(first)) == {}
    after_first = contents(lake)
    assert sum(row["_heartbeat"] for row in lakes.rows(lake, "bronze.events")) == 1
    assert sum(row["events"] for row in lakes.rows(lake, "gold.counts")) == 6

    again = Driver(spark, lake, definitions).run_until_caught_up(close=True)

    assert failures(dict(again)) == {}
    assert contents(lake) == after_first

    land(lake, 2, minute=9)
    lost = a_count("lost", "bronze.nowhere")
    third = Driver(spark, lake, [lost, *definitions]).run_until_caught_up(close=False)

    assert set(third) == {"lost", "ingest_events", "counts"}
    assert set(failures(dict(third))) == {"lost"}
    assert "nowhere" in str(third["lost"].error)
    assert numbers(lake) == list(range(9))
    assert sum(row["read"] for _, row in lakes.ledger(lake, a_count())) == 9
    for definition in (an_ingest(), a_count()):
        epoch_rows = lakes.ledger(lake, definition)
        assert [number for number, _ in epoch_rows] == list(range(len(epoch_rows)))
    lakes.assert_balanced(lake, a_count())


def test_an_input_that_was_not_read_to_its_end_is_not_closed(spark: SparkSession, lake: Lake) -> None:
    land(lake, 0)
    land(lake, 1, minute=5)
    strict = an_ingest().model_copy(update={"rules": (Between("number", max=4, on_failure="fail"),)})
    first = Driver(spark, lake, [strict, a_count()])

    assert set(failures(dict(first.run_until_caught_up(close=True)))) == {"ingest_events"}
    assert not any(row["_heartbeat"] for row in lakes.rows(lake, "bronze.events"))
    assert "bronze.events not closed, because ingest_events has not read all" in " ".join(first.warnings)


def test_tables_that_are_read_together_are_closed_together(spark: SparkSession, lake: Lake) -> None:
    columns = {"k": pa.string(), "t": lakes.TIMESTAMP}
    ahead = lakes.Bronze(lake, "bronze.ahead", columns, "t")
    behind = lakes.Bronze(lake, "bronze.behind", columns, "t")
    behind.append([{"k": "a", "t": lakes.at(0)}])
    for minute in (0, 8 * 60):
        ahead.append([{"k": "a", "t": lakes.at(minute * 60_000 + 3_600_000)}])
    lakes.Bronze(lake, "bronze.silent", columns, "t").append([])
    # By an expression over the events' time, as a source may select it.
    select = {"k": "k", "at": "coalesce(t, TIMESTAMP '1970-01-01')"}
    names = ("bronze.ahead", "bronze.behind", "bronze.silent")
    union = Union(tables=tuple(Table(name, select=select) for name in names))
    both = a_count("both").model_copy(update={"source": union, "event_time": "at"})

    assert failures(dict(Driver(spark, lake, [both]).run_until_caught_up(close=True))) == {}

    assert sum(row["events"] for row in lakes.rows(lake, "gold.both")) == 3
    lakes.assert_balanced(lake, both)


def test_readers_that_go_by_other_times_are_closed_by_those(spark: SparkSession, lake: Lake) -> None:
    columns = {"k": pa.string(), "t": lakes.TIMESTAMP, "paid": lakes.TIMESTAMP}
    events = lakes.Bronze(lake, "bronze.events", columns, "t")
    day = 86_400_000
    # A time of no sense in one column concerns no reader of the other.
    events.append([{"k": "a", "t": lakes.at(day), "paid": lakes.at(day)}])
    events.append([{"k": "a", "t": lakes.at(day), "paid": lakes.at(9000 * day)}])
    by_time = a_count("by_time")
    by_payment = a_count("by_payment").model_copy(update={"event_time": "paid"})

    assert failures(dict(Driver(spark, lake, [by_time, by_payment]).run_until_caught_up(close=True))) == {}

    assert [row["events"] for row in lakes.rows(lake, "gold.by_time")] == [2]
    beats = [row for row in lakes.rows(lake, "bronze.events") if row["_heartbeat"]]
    assert {lakes.ms(row["t"]) // day for row in beats if row["t"]} == {1}
    assert {lakes.ms(row["paid"]) // day for row in beats if row["paid"]} == {9000}
    assert sum(row["events"] for row in lakes.rows(lake, "gold.by_payment")) == 2
    for definition in (by_time, by_payment):
        lakes.assert_balanced(lake, definition)


def test_a_reader_whose_time_is_computed_moves_no_other_one(spark: SparkSession, lake: Lake) -> None:
    """By another spelling of the column, and at a distance from it."""
    land(lake, 0, minute=1)
    delivered = Table("bronze.events", select={"k": "k", "at": "T + INTERVAL 2 HOURS"})
    later = a_count("later").model_copy(update={"source": delivered, "event_time": "at"})
    spelled = a_count("spelled").model_copy(update={"event_time": "T"})
    query = IngestQuery(spark, lake, an_ingest())
    query.start(until_caught_up=True).awaitTermination()

    query.beat(5_000, [a_count(), later, spelled])

    def beats() -> list[datetime]:
        return sorted(row["t"] for row in lakes.rows(lake, "bronze.events") if row["_heartbeat"])

    newest = max(row["t"] for row in lakes.rows(lake, "bronze.events") if not row["_heartbeat"])
    assert [beat - newest for beat in beats()] == [timedelta(seconds=5)]

    readers = [later, spelled]
    assert failures(dict(Driver(spark, lake, readers).run_until_caught_up(close=True))) == {}
    assert timedelta(seconds=5) < beats()[-1] - newest < timedelta(minutes=1)
    assert sum(row["events"] for row in lakes.rows(lake, "gold.later")) == 3
    assert {row["window_start"].hour for row in lakes.rows(lake, "gold.later")} == {2}
    assert sum(row["events"] for row in lakes.rows(lake, "gold.spelled")) == 3


def test_a_query_that_has_ended_is_freed_from_memory(spark: SparkSession, lake: Lake) -> None:
    """A driver that starts queries again, as for each newer version of a lookup, must not run out of memory."""
    land(lake, 0, minute=1)
    query = IngestQuery(spark, lake, an_ingest())
    query.start(until_caught_up=True).awaitTermination()
    held = weakref.ref(query)
    del query
    gc.collect()
    assert held() is None


def test_heartbeats_move_times_computed_from_numbers_and_not_from_text(spark: SparkSession, lake: Lake) -> None:
    columns = {"k": pa.string(), "t": lakes.TIMESTAMP, "ms": pa.int64(), "s": pa.float64(), "text": pa.string()}
    events = lakes.Bronze(lake, "bronze.events", columns, "t")
    new_year = 1_767_225_600_000
    rows = []
    for at in (0, 30_000, 61_500):
        ms = new_year + at
        text = lakes.at(ms).strftime("%Y-%m-%d %H:%M:%S")
        rows.append({"k": "a", "t": lakes.at(0), "ms": ms, "s": ms / 1000, "text": text})
    events.append(rows)
    readers = [
        a_count(name).model_copy(
            update={"source": Table("bronze.events", select={"k": "k", "at": sql}), "event_time": "at"}
        )
        for name, sql in (
            ("by_ms", "timestamp_millis(ms)"),
            ("by_seconds", "CAST(s AS TIMESTAMP)"),
            ("by_text", "to_timestamp(text)"),
        )
    ]
    driver = Driver(spark, lake, readers)
    assert failures(dict(driver.run_until_caught_up(close=True))) == {}
    for name in ("by_ms", "by_seconds"):
        ends = sorted((lakes.ms(row["window_end"]) - new_year) // 1000 for row in lakes.rows(lake, f"gold.{name}"))
        assert ends == [10, 40, 70], name
    (told,) = driver.warnings
    assert "bronze.events: the event time `to_timestamp(text)` of by_text cannot be moved by a heartbeat" in told
    for reader in readers:
        lakes.assert_balanced(lake, reader)


def test_how_far_a_table_is_is_the_same_by_its_log_and_by_its_rows(spark: SparkSession, lake: Lake) -> None:
    def ms(minute: int) -> int:
        return lakes.ms(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute))

    table = lakes.Bronze(lake, "bronze.events", {"t": lakes.TIMESTAMP}, "t")
    table.append([{"t": lakes.at(ms(1))}, {"t": lakes.at(ms(4))}])
    heartbeats, later = Heartbeats(spark, lake), "t + INTERVAL 2 HOURS"

    def fronts() -> dict[str, Front]:
        return heartbeats.fronts("bronze.events", ["t", later], timedelta(days=3650))

    assert fronts() == {"t": Front(ms(4), None), later: Front(ms(4 + 120), None)}
    table.heartbeat(ms(6))
    by_log = fronts()
    assert by_log == {"t": Front(ms(4), ms(6)), later: Front(ms(4 + 120), ms(6 + 120))}
    # Whoever compacts a table puts events and heartbeats into one file, of which the log cannot tell.
    open_table(lake, "bronze.events").optimize.compact()
    assert newest_beside(open_table(lake, "bronze.events"), "t", "_ingest_seq") is None
    assert fronts() == by_log


def test_an_ingest_that_is_busy_does_not_wait_for_input(spark: SparkSession, lake: Lake) -> None:
    land(lake, 0)
    seen: list[bool] = []
    query = IngestQuery(spark, lake, an_ingest(), failpoint=lambda point, batch_id: seen.append(query.waits_for_input))
    query.start()
    try:
        await_that(lambda: bool(seen) and query.waits_for_input, "the end of the batch")
    finally:
        query.query.stop()
    assert not any(seen)


def test_heartbeats_never_go_back_and_come_again_after_a_restart(spark: SparkSession, lake: Lake) -> None:
    def beats() -> list[datetime]:
        return sorted(row["t"] for row in lakes.rows(lake, "bronze.events") if row["_heartbeat"])

    def ingest_what_is_there() -> IngestQuery:
        query = IngestQuery(spark, lake, an_ingest())
        query.start(until_caught_up=True).awaitTermination()
        return query

    land(lake, 0, minute=1)
    query = ingest_what_is_there()
    query.beat(60_000, [])
    query.beat(90_000, [])
    assert [beat.minute for beat in beats()] == [2, 2]
    land(lake, 1, minute=0)  # nothing newer
    query = ingest_what_is_there()
    query.beat(30_000, [])
    assert len(beats()) == 2
    query.beat(120_000, [])
    assert len(beats()) == 3

    stop = threading.Event()

    def stop_at_the_next(driver: Driver) -> None:
        if len(beats()) > 3 or time.monotonic() > deadline:
            stop.set()

    deadline = time.monotonic() + PATIENCE_S
    idle = Driver(spark, lake, [an_ingest()], on_tick=stop_at_the_next)
    land(lake, 2, minute=9)
    assert failures(dict(Driver(spark, lake, [an_ingest()]).run_until_caught_up(close=False))) == {}
    assert failures(dict(idle.run_continuously(stop, idle_after=timedelta(seconds=1)))) == {}
    assert len(beats()) == 4, "without a single batch of its own"


def test_closing_the_input_passes_over_a_table_that_is_missing(spark: SparkSession, lake: Lake) -> None:
    outcomes = Driver(spark, lake, [a_count("lost", "bronze.nowhere")]).run_until_caught_up(close=True)
    assert set(failures(dict(outcomes))) == {"lost"}


def test_heartbeats_close_the_last_window_and_a_stopped_driver_goes_on(spark: SparkSession, lake: Lake) -> None:
    # Its windows end a second after the last event: the first heartbeat is far enough.
    steps = (Aggregate(window=Tumbling("3 seconds"), by=("k",), measures={"events": "count(*)"}),)
    soon = a_count().model_copy(update={"watermark": Watermark(delay="0 seconds"), "steps": steps})
    land(lake, 0)
    stop = threading.Event()
    driver = Driver(spark, lake, [an_ingest(), soon])
    ended: list[Any] = []
    running = threading.Thread(
        target=lambda: ended.append(driver.run_continuously(stop, idle_after=timedelta(seconds=1))), daemon=True
    )
    running.start()
    try:
        await_that(lambda: exists(lake, "gold.counts") and len(lakes.rows(lake, "gold.counts")) == 3, "the last window")
    finally:
        stop.set()
        running.join(PATIENCE_S)
    assert ended, "the driver ends when it is told to"
    assert failures(ended[0]) == {}
    assert {row["events"] for row in lakes.rows(lake, "gold.counts")} == {1}
    assert any(row["_heartbeat"] for row in lakes.rows(lake, "bronze.events"))

    for number in range(1, 3):
        land(lake, number, minute=10 + number)
    stop, batches = threading.Event(), len(lakes.ledger(lake, an_ingest()))

    def stop_after_a_batch(driver: Driver) -> None:
        if len(lakes.ledger(lake, an_ingest())) > batches:
            stop.set()

    interrupted = Driver(spark, lake, [an_ingest(), soon], on_tick=stop_after_a_batch)
    assert failures(dict(interrupted.run_until_caught_up(close=True, stop=stop))) == {}
    seen = numbers(lake)
    assert seen == list(range(len(seen)))
    assert len(seen) % 3 == 0, "it ends between two batches"
    assert 6 <= len(seen) <= 9

    assert failures(dict(Driver(spark, lake, [an_ingest(), soon]).run_until_caught_up(close=True))) == {}
    assert numbers(lake) == list(range(9))
    assert sum(row["events"] for row in lakes.rows(lake, "gold.counts")) == 9
    for definition in (an_ingest(), soon):
        assert [number for number, _ in lakes.ledger(lake, definition)] == list(
            range(len(lakes.ledger(lake, definition)))
        )
    lakes.assert_balanced(lake, soon)


def test_a_pipeline_that_fails_is_told_at_once_while_the_others_go_on(spark: SparkSession, lake: Lake) -> None:
    land(lake, 0)
    stop, said = threading.Event(), io.StringIO()
    progress = Progress(Console(file=said, width=300))
    still_running: list[bool] = []
    deadline = time.monotonic() + PATIENCE_S

    def look(driver: Driver) -> None:
        progress.tick(driver)
        if time.monotonic() > deadline:
            stop.set()
        counts = driver.queries.get("counts")
        if counts is not None and counts.latest is not None and not stop.is_set():
            shutil.rmtree(lake.table_path("gold.counts"), ignore_errors=True)
            land(lake, 1 + len(still_running), minute=5)
            if "counts" in driver.outcomes:
                still_running.append(driver.queries["ingest_events"].query.isActive)
                stop.set()

    outcomes = Driver(spark, lake, [an_ingest(), a_count()], on_tick=look).run_continuously(stop)

    assert still_running == [True]
    assert set(failures(dict(outcomes))) == {"counts"}
    text = " ".join(said.getvalue().split())
    assert "counts failed:" in text
    assert "Still running: ingest_events." in text
    assert "\tat " not in said.getvalue(), "no stack trace"


class OvertakenIngest(IngestQuery):
    """An ingest that another driver overtakes while it starts."""

    def plan(self) -> DataFrame:
        lakes.run_all(self.spark, self.lake, [self.definition], close=False)
        land(self.lake, 1)
        return super().plan()


def test_rows_get_unique_numbers_where_another_driver_commits_meanwhile(spark: SparkSession, lake: Lake) -> None:
    land(lake, 0)

    OvertakenIngest(spark, lake, an_ingest()).start(until_caught_up=True).awaitTermination()

    assert sorted(row["_ingest_seq"] for row in lakes.rows(lake, "bronze.events")) == list(range(6))
    assert numbers(lake) == list(range(6))


def test_a_driver_killed_while_it_planned_its_first_batch_stops_no_other(spark: SparkSession, lake: Lake) -> None:
    land(lake, 0)
    # As the file manager names what it writes until it is whole.
    lake.store.put("_checkpoints/ingest_events/epoch-1/offsets/.0.0c6dbc0b-12a2-4bd5-a1fc-04a4a44a7b44.tmp", b"v1")

    lakes.run_all(spark, lake, [an_ingest()], close=False)

    assert numbers(lake) == [0, 1, 2]


# Each entry of the checkpoint's log goes to one of them, which is what decides:
# tests/services/test_conditional_create.py::test_each_entry_of_a_checkpoint_log_goes_to_one_driver. Of two drivers as
# processes: tests/control/test_zombies.py::test_a_driver_that_is_killed_and_one_that_wakes_change_nothing
@pytest.mark.long
def test_of_two_drivers_on_one_checkpoint_one_goes_on(lake: Lake, tmp_path: Path) -> None:
    definitions = tmp_path / "two_drivers.py"
    definitions.write_text(PIPELINE_FILE)
    land(lake, 0)
    command = [sys.executable, "-m", "spark_jobs.cli", "run", str(definitions), "--lake", lake.uri]
    drivers: list[subprocess.Popen[str]] = []

    def start_driver() -> None:
        environment = {**os.environ, "TIDEMARK_MASTER": "local[1]"}
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        options["start_new_session"] = True
        drivers.append(subprocess.Popen(command, env=environment, **options))

    landed = 0

    def one_has_ended() -> bool:
        nonlocal landed
        if len(numbers(lake)) >= 3 * (landed - 1):
            # No more than they can read: what is left over would have to be read by one alone.
            landed += 1
            land(lake, landed)
        return any(driver.poll() is not None for driver in drivers)

    try:
        # At the same moment: they also meet where the tables and the epoch are made.
        start_driver()
        start_driver()
        await_that(lambda: exists(lake, "bronze.events") and bool(numbers(lake)), "the first batch")
        await_that(one_has_ended, "the end of the driver that lost")
        loser, winner = sorted(drivers, key=lambda driver: driver.poll() is None)
        text, _ = loser.communicate(timeout=30)
        assert loser.returncode not in (0, None), text
        assert "ingest_events failed: pipeline `ingest_events`: another driver" in " ".join(text.split()), text
        land(lake, landed + 1)
        everything = list(range(3 * (landed + 2)))
        await_that(lambda: numbers(lake)[-1:] == everything[-1:], "the last event")
        assert winner.poll() is None
        # Ctrl-C, as a terminal sends it: to the driver and its JVM.
        os.killpg(winner.pid, signal.SIGINT)
        text, _ = winner.communicate(timeout=60)
        assert winner.returncode == 0, text
        assert "done" in text
    finally:
        for driver in drivers:
            if driver.poll() is None:
                driver.kill()
                driver.wait()
    assert numbers(lake) == everything
    batches = [number for number, _ in lakes.ledger(lake, an_ingest())]
    assert batches == list(range(len(batches)))
    sequence = [row["_ingest_seq"] for row in lakes.rows(lake, "bronze.events")]
    assert len(set(sequence)) == len(sequence)
