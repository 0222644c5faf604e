"""Days, weeks and months of a time zone, through both changes of its clocks: against DuckDB and plain Python."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.driver import Driver, Outcome
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.bootstrap import execute as bootstrap
from spark_jobs.operations.bootstrap.plan import plan_bootstrap
from spark_jobs.operations.state.execute import read_state
from spark_jobs.operations.state.plan import plan_state
from spark_jobs.plan.windowing import CalendarPeriods
from spark_jobs.spark.columns import EVENT_TIME_MARK
from spark_jobs.spec import Aggregate, Calendar, Deduplicate, Pipeline, Sink, Table, Watermark
from spark_jobs.spec.zones import zones
from spark_jobs.transforms.aggregation import window_column
from tests.support import lakes
from tests.support.clicks import merged, run_repair

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3_600_000
# Clocks change at one, two or three o'clock, at midnight, by half an hour, by two hours, not at all; a day left out.
ODD_ZONES = (
    *("Europe/Berlin", "America/New_York", "America/Havana", "Africa/Cairo", "Asia/Beirut", "America/Santiago"),
    *("Australia/Lord_Howe", "Antarctica/Troll", "Asia/Kathmandu", "Pacific/Apia", "America/Nuuk", "UTC"),
)


def test_the_mark_of_an_event_time_is_the_one_that_spark_looks_for(spark: SparkSession) -> None:
    logical = spark._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
    assert logical.EventTimeWatermark.delayKey() == EVENT_TIME_MARK


def instants() -> list[int]:
    """Microseconds since 1970: some of all years, and each half hour around the changes of a year."""
    chance = random.Random(3)
    found = {chance.randrange(0, 2_100_000_000) * 1_000_000 + chance.choice([0, 1, 999_999]) for _ in range(300)}
    for day in (date(2011, 12, 29), date(2026, 3, 8), date(2026, 3, 29), date(2026, 4, 24), date(2026, 10, 25)):
        first = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000 - 20 * HOUR * 1000
        found |= {first + half * HOUR * 500 - before for half in range(120) for before in (0, 1)}
    return sorted(found)


def wrong_bounds(unit: str, zone: str, us: int, start_us: int, end_us: int) -> list[str]:
    """What the clocks of a zone say against the bounds of an event's period: the next instant would be another one."""

    def period(at_us: int) -> object:
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)).astimezone(ZoneInfo(zone))
        return {"day": local.date(), "week": local.isocalendar()[:2], "month": (local.year, local.month)}[unit]

    own = period(us)
    inside = {f"{start_us} {us}": start_us, f"{us} {end_us - 1}": end_us - 1}
    outside = {f"{start_us - 1} {us}": start_us - 1, f"{us} {end_us}": end_us}
    return [name for name, at in inside.items() if period(at) != own] + [
        name for name, at in outside.items() if period(at) == own
    ]


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_an_event_is_in_the_period_that_duckdb_says(spark: SparkSession, unit: str) -> None:
    frame = spark.createDataFrame([(us,) for us in instants()], "us BIGINT").coalesce(1)
    frame = frame.withColumn("t", F.timestamp_micros("us"))
    windows = {zone: Calendar(unit, tz=zone) for zone in ODD_ZONES}
    bounds = [
        F.struct(F.unix_micros(f"{name}.start"), F.unix_micros(f"{name}.end"))
        for name in (f"w{number}" for number in range(len(windows)))
    ]
    given = [window_column("t", window).alias(f"w{number}") for number, window in enumerate(windows.values())]
    found = frame.select("us", *given).select("us", *bounds).collect()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("events", pa.table({"us": instants()}))
        for place, (zone, window) in enumerate(windows.items(), 1):
            local = f"date_trunc('{unit}', make_timestamptz(us) AT TIME ZONE '{zone}')"
            expected = connection.execute(
                f"SELECT us, epoch_us({local} AT TIME ZONE '{zone}'), "
                f"epoch_us(({local} + INTERVAL 1 {unit}) AT TIME ZONE '{zone}') FROM events ORDER BY us"
            ).fetchall()
            ours = [(row[0], *row[place]) for row in found]
            # Where midnight comes twice, DuckDB takes the second for the start of the day, as if the first were none.
            if zone != "America/Havana":
                assert set(ours) ^ set(expected) == set(), zone
            assert [name for row in ours for name in wrong_bounds(unit, zone, *row)] == [], zone
            # Of instants that are no event's, the plan says it: here of these.
            periods = CalendarPeriods(window)
            assert [periods.last_end_upto(us) for us, _, _ in ours] == [start for _, start, _ in ours], zone


def test_spark_knows_each_zone_as_the_plan_does(spark: SparkSession) -> None:
    moments = [datetime(2024, month, day, 11, tzinfo=UTC) for month in range(1, 13) for day in (3, 29)]
    known = set(spark._jvm.java.time.ZoneId.getAvailableZoneIds())  # type: ignore[union-attr]
    # All but those that were founded since this Java was made.
    assert len(zones() - known) <= 3
    frame = spark.createDataFrame([(zone,) for zone in sorted(zones() & known)], "zone STRING").coalesce(1)
    shown = [F.from_utc_timestamp(F.lit(moment), F.col("zone")).cast("string") for moment in moments]
    for zone, *locals_ in frame.select("zone", *shown).collect():
        expected = [moment.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S") for moment in moments]
        assert locals_ == expected, zone


# --- a stream ---

COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
DELAY = timedelta(hours=3)


def pipeline(unit: str = "day", **more: Any) -> Pipeline:
    definition = Pipeline(
        name="days",
        source=Table("bronze.visits"),
        event_time="t",
        watermark=Watermark(delay=DELAY),
        steps=(
            Aggregate(window=Calendar(unit, tz="Europe/Berlin"), by=("k",), measures={"n": "count(*)", "v": "sum(v)"}),
        ),
        sink=Sink("gold.days"),
    )
    return lakes.one_file_a_batch(definition.model_copy(update=more))


def batches() -> list[list[dict[str, Any]]]:
    """Half a day each, over the days of 23 and of 25 hours; a third of the events come up to two days later."""
    chance, made = random.Random(5), []
    for first in (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)):
        for half in range(6):
            now = first + timedelta(hours=12 * half)
            behind = [timedelta(hours=chance.uniform(0, 12) - chance.choice([0, 0, 20, 40])) for _ in range(30)]
            made.append(
                [{"k": chance.choice(["a", "b", None]), "v": chance.randrange(9), "t": now + shift} for shift in behind]
            )
    # The last hour of each of these days, and the first of the next one: by the clock of the café.
    for batch, day in ((2, date(2026, 3, 29)), (8, date(2026, 10, 25))):
        midnight = datetime(day.year, day.month, day.day + 1, tzinfo=BERLIN)
        made[batch] += [
            {"k": "edge", "v": 1, "t": midnight - timedelta(microseconds=1)},
            {"k": "edge", "v": 1, "t": midnight},
        ]
    return made


def day_of(instant: datetime) -> tuple[datetime, datetime]:
    """When the day of an instant begins and ends in Berlin, in plain Python."""
    day = instant.astimezone(BERLIN).date()
    begin, end = (datetime(each.year, each.month, each.day, tzinfo=BERLIN) for each in (day, day + timedelta(days=1)))
    return begin.astimezone(UTC), end.astimezone(UTC)


def rows_of(events: list[dict[str, Any]], closed: datetime) -> list[tuple[Any, ...]]:
    """A row for each day that has ended, and key."""
    count: Counter[Any] = Counter()
    total: Counter[Any] = Counter()
    for event in events:
        group = (*day_of(event["t"]), event["k"])
        count[group] += 1
        total[group] += event["v"]
    return sorted(((*group, n, total[group]) for group, n in count.items() if group[1] <= closed), key=repr)


def table(lake: Lake) -> list[tuple[Any, ...]]:
    names = ("window_start", "window_end", "k", "n", "v")
    return sorted((tuple(row[name] for name in names) for row in lakes.rows(lake, "gold.days")), key=repr)


def split(made: list[list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events that were on time, and those that were late, by the rule in words: the batch before last decides."""
    on_time, late = [], []
    for number, batch in enumerate(made):
        known = [event["t"] for each in made[: max(number - 1, 0)] for event in each]
        watermark = max(known) - DELAY if known else datetime(1970, 1, 1, tzinfo=UTC)
        for event in batch:
            (late if day_of(event["t"])[1] <= watermark else on_time).append(event)
    return on_time, late


def test_days_of_23_and_25_hours_are_counted_as_the_clock_says(spark: SparkSession, lake: Lake) -> None:
    made, definition = merged(batches(), 1, 1, 2, 2, 1, 1, 2, 2), pipeline()
    bronze = lakes.Bronze(lake, "bronze.visits", COLUMNS, "t")
    for batch in made:
        bronze.append(batch)
    lakes.run(spark, lake, definition)
    closed = lakes.at(lakes.ledger(lake, definition)[-1][1].watermark_ms)
    on_time, late = split(made)
    assert table(lake) == rows_of(on_time, closed)
    lengths = {(end - start) // timedelta(hours=1) for start, end, *_ in table(lake)}
    assert lengths == {23, 24, 25}
    lakes.assert_balanced(lake, definition)
    kept = lakes.rows(lake, "gold.days__late")
    assert len(late) > 20
    missed = [
        (row["t"], [(each["window_start"], each["window_end"]) for each in row["missed_windows"]]) for row in kept
    ]
    assert sorted(missed) == sorted((event["t"], [day_of(event["t"])]) for event in late)
    assert verify(checkpoint_of(lake, "days"), definition) == []
    (state,) = read_state(spark, lake, plan_state(lake, "days", keys=(), open_windows=True, at=None, limit=100))
    waiting = rows_of(on_time, datetime(9999, 1, 1, tzinfo=UTC))
    assert state.columns == ("window_start", "window_end", "k", "n", "v", "__events")
    assert sorted((row[:5] for row in state.rows), key=repr) == [row for row in waiting if row[1] > closed]
    # What a batch computes over a range is of the same days.
    run_repair(spark, lake, definition)
    everything = [event for batch in made for event in batch]
    assert table(lake) == rows_of(everything, closed)


# The same of windows on a grid: tests/spark/test_deduplicate.py::test_before_windows_each_key_is_counted_once
@pytest.mark.long
def test_days_of_first_events_are_final_once_the_day_is_over(spark: SparkSession, lake: Lake) -> None:
    days = pipeline().steps[0]
    definition = pipeline(steps=(Deduplicate("v", within="6 hours"), days))
    bronze = lakes.Bronze(lake, "bronze.visits", COLUMNS, "t")
    evening = datetime(2026, 3, 29, 21, 30, tzinfo=UTC)  # half an hour before midnight in Berlin
    for batch in ([(1, 0), (2, 10), (1, 20)], [(3, 40), (2, 50)], [(4, 300)], [(5, 400)], [(1, 25)]):
        bronze.append([{"k": "a", "v": v, "t": evening + timedelta(minutes=minutes)} for v, minutes in batch])
    lakes.run(spark, lake, definition)
    # What is late is an event behind the watermark: the last one. Those of the next day are not over yet.
    assert [(row[1], row[2], row[3], row[4]) for row in table(lake)] == [(day_of(evening)[1], "a", 2, 3)]
    assert [row["v"] for row in lakes.rows(lake, "gold.days__late")] == [1]
    lakes.assert_balanced(lake, definition)


# Where it goes on: tests/unit/test_bootstrap.py::TestTheCut::
# test_is_the_last_midnight_of_the_zone_that_the_watermark_has_passed; that all events are counted, of other windows:
# tests/spark/test_bootstrap.py::test_a_history_in_batch_and_a_stream_from_its_cut_count_all_events; days in batch:
# test_days_of_23_and_25_hours_are_counted_as_the_clock_says
@pytest.mark.long
def test_a_history_of_days_in_batch_goes_on_as_a_stream_at_midnight(spark: SparkSession, lake: Lake) -> None:
    made, definition = batches()[:6], pipeline()
    bronze = lakes.Bronze(lake, "bronze.visits", COLUMNS, "t")
    for batch in made[:4]:
        bronze.append(batch)
    plan = plan_bootstrap(lake, definition)
    assert day_of(lakes.at(plan.cut_us // 1000))[0] == lakes.at(plan.cut_us // 1000)
    bootstrap.begin(lake, definition, plan)

    def go_on() -> datetime:
        driver = Driver(spark, lake, [definition], compute_history=bootstrap.compute_history)
        assert driver.run_until_caught_up(close=False) == {definition.name: Outcome(definition.name)}
        lakes.assert_balanced(lake, definition)
        return lakes.at(lakes.ledger(lake, definition)[-1][1].watermark_ms)

    closed = go_on()
    history = [event for batch in made[:4] for event in batch]
    assert table(lake) == rows_of(history, closed), "in whatever order the history is read, none of it is late"
    # What comes after it for a day of the history is late; its other days are counted.
    bronze.append(made[4])
    closed = go_on()
    beyond = [event for event in made[4] if day_of(event["t"])[1] > lakes.at(plan.cut_us // 1000)]
    assert 0 < len(beyond) < len(made[4])
    assert table(lake) == rows_of(history + beyond, closed)
