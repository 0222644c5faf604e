"""Visits a day and spending a week by the café's clock, through a change to summer time: against DuckDB over bronze.

Each query is written apart from the pipeline. What the stream has judged late is left out of it, by the event's number.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.pipelines import registry
from spark_jobs.pipelines._registry import with_sources
from spark_jobs.simulator import Disorder, Shop, simulate_files
from spark_jobs.spec import Files, Ingest, Pipeline
from tests.support import lakes
from tests.support.clicks import run_backfill, run_repair

BATCHES = {"ingest_visits": 3, "ingest_payments": 4}
"""An event can be late from the third one on; for a week one of the payments is in the fourth."""
PERIOD = "date_trunc('{unit}', {time} AT TIME ZONE 'Europe/Berlin')"
ON_TIME = "NOT _heartbeat AND _ingest_seq NOT IN (SELECT _ingest_seq FROM late)"
DAY, WEEK = PERIOD.format(unit="day", time="seated_at"), PERIOD.format(unit="week", time="paid_at")
ANSWERS = {
    "cafe_visits": (
        "SELECT window_start, guest_id, visits, last_seated_at, day FROM result ORDER BY ALL",
        f"SELECT {DAY} AT TIME ZONE 'Europe/Berlin', guest_id, count(DISTINCT visit_id), max(seated_at), {DAY}::DATE "
        f"FROM bronze_visits WHERE {ON_TIME} GROUP BY ALL ORDER BY ALL",
    ),
    "cafe_spending": (
        "SELECT window_start, guest_id, payments, spent, week FROM result ORDER BY ALL",
        "SELECT s, guest_id, count(*), sum(amount), week FROM (SELECT DISTINCT payment_id, guest_id, amount, "
        f"{WEEK} AT TIME ZONE 'Europe/Berlin' AS s, {WEEK}::DATE AS week FROM bronze_payments WHERE {ON_TIME}) "
        "GROUP BY ALL ORDER BY ALL",
    ),
}
"""Pipeline -> what is read of its result, and what that must be."""
LONG = ("cafe_spending",)
"""Runs in `make long` only. Of what it is made of, these ask:

- weeks: tests/spark/test_calendar.py::test_an_event_is_in_the_period_that_duckdb_says[week]; as streams [cafe_visits]
- first events before windows: tests/spark/test_deduplicate.py::test_before_windows_each_key_is_counted_once
"""


def but_long(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in names]


def in_batches(name: str, lake: Lake) -> Any:
    """A few files a batch, or one commit of bronze."""
    definition = registry()[name]
    if isinstance(definition, Ingest) and isinstance(definition.source, Files):
        files = len(list(Path(lake.path(definition.source.path)).iterdir()))
        few = definition.source.model_copy(update={"max_files_per_trigger": -(-files // BATCHES[name])})
        return definition.model_copy(update={"source": few})
    assert isinstance(definition, Pipeline)
    return lakes.one_file_a_batch(definition)


@pytest.fixture(scope="module")
def cafe(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Lake:
    """A lake with four days of the café, of which one has 23 hours and one is a Monday; what is asked for has run."""
    lake = Lake(str(tmp_path_factory.mktemp("cafe"))).ensure_exists()
    simulate_files(
        Shop(
            seed=5,
            start=datetime(2026, 3, 28, 4, tzinfo=UTC),
            rate=None,
            density=0.015,
            guests=12,
            streams=("visits", "payments"),
            disorder=Disorder(disorder=0.3, late=0.15, late_by="72 hours", duplicates=0.08, malformed=0.03, future=0),
        ),
        out=f"{lake.uri}/landing",
        rows=1_000,
        rows_per_file=30,
    )
    here = (item for item in request.session.items if item.path == request.path)
    asked = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    definitions = with_sources(registry()[name] for name in ANSWERS if name in asked)
    lakes.run_all(spark, lake, [in_batches(each.name, lake) for each in definitions], close=True)
    return lake


def answers(lake: Lake, name: str, sql: str, *, all_events: bool = False) -> list[tuple[Any, ...]]:
    """A query over the result, bronze, and `late`: the late events, or none where all are to count."""
    definition = registry()[name]
    assert isinstance(definition, Pipeline)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("result", open_table(lake, definition.sink.table).to_pyarrow_table())
        for table in definition.source_tables:
            connection.register(table.name.replace(".", "_"), open_table(lake, table.name).to_pyarrow_table())
        late = open_table(lake, f"{definition.sink.table}__late").to_pyarrow_table()
        connection.register("late", late.slice(0, 0) if all_events else late)
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize("name", but_long(*ANSWERS))
def test_guests_are_counted_by_the_clock_of_the_cafe(cafe: Lake, name: str) -> None:
    found, expected = (answers(cafe, name, sql) for sql in ANSWERS[name])
    assert found == expected
    lakes.assert_balanced(cafe, in_batches(name, cafe))
    assert answers(cafe, name, ANSWERS[name][1], all_events=True) != expected, "late events matter"


@pytest.mark.parametrize("name", ["cafe_visits"])
def test_the_day_of_23_hours_is_there(cafe: Lake, name: str) -> None:
    days = answers(cafe, name, "SELECT DISTINCT day, window_end - window_start FROM result ORDER BY day")
    assert (date(2026, 3, 29), timedelta(hours=23)) in days
    assert (date(2026, 3, 28), timedelta(hours=24)) in days


@pytest.mark.parametrize("name", but_long("cafe_spending"))
def test_the_turn_of_the_week_is_there(cafe: Lake, name: str) -> None:
    weeks = answers(cafe, name, "SELECT DISTINCT week FROM result ORDER BY week")
    assert weeks == [(date(2026, 3, 23),), (date(2026, 3, 30),)]


@pytest.mark.parametrize("name", but_long(*ANSWERS))
def test_bad_rows_are_set_aside_and_copies_count_once(cafe: Lake, name: str) -> None:
    table, key = {"cafe_visits": ("visits", "visit_id"), "cafe_spending": ("payments", "payment_id")}[name]
    assert len(lakes.rows(cafe, f"bronze.{table}__quarantine")) > 3
    ids = [row[key] for row in lakes.rows(cafe, f"bronze.{table}") if not row["_heartbeat"]]
    assert len(set(ids)) < len(ids)


# tests/spark/test_calendar.py::test_days_of_23_and_25_hours_are_counted_as_the_clock_says
@pytest.mark.long
@pytest.mark.parametrize("name", ANSWERS)
def test_late_guests_are_counted_by_a_repair_and_not_as_streamed(spark: SparkSession, cafe: Lake, name: str) -> None:
    definition = in_batches(name, cafe)
    everything = answers(cafe, name, ANSWERS[name][1], all_events=True)
    assert [done.changed.rows for done in run_backfill_of(spark, cafe, definition, "as-streamed")] == [0]
    assert run_repair(spark, cafe, definition) is not None
    assert answers(cafe, name, ANSWERS[name][0]) == everything
    lakes.assert_balanced(cafe, definition)


def run_backfill_of(spark: SparkSession, lake: Lake, definition: Pipeline, mode: str) -> list[Any]:
    begin, end = datetime(2026, 3, 20, tzinfo=UTC), datetime(2026, 4, 9, tzinfo=UTC)
    return run_backfill(spark, lake, definition, begin=begin, end=end, mode=mode, force=True)
