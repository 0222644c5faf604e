"""The arithmetic of windows against Spark's own `window()`."""

import random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.plan.windowing import Grid, Sessions
from spark_jobs.spec import GridWindow, Hopping, Session, Tumbling
from spark_jobs.transforms.aggregation import window_column

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
# The year 1677, before 1970, around 1970, now, and 2262, where nanoseconds in 64 bits end.
AROUND_US = (-9_223_372_036_854_775, -14 * DAY_US, 0, 1_767_225_600 * SECOND_US, 9_223_372_036_854_775)


def some_windows() -> list[GridWindow]:
    """Common ones, the smallest, odd ones, and random ones with offsets."""
    chosen: list[GridWindow] = [
        Tumbling("1 hour"),
        Tumbling("1 day", offset="6 hours"),
        Tumbling("1 ms"),
        Tumbling("7 seconds 13 ms", offset="3 seconds 1 ms"),
        Hopping("10 minutes", "5 minutes"),
        Hopping("10 seconds", "3 seconds"),
        Hopping("10 seconds", "7 seconds", offset="6 seconds 999 ms"),
        Hopping("5 ms", "1 ms"),
        Hopping("1 week", "1 day", offset="23 hours 59 minutes"),
        Hopping("1 day", "1 day", offset="1 ms"),
    ]
    chance = random.Random(20)
    for _ in range(15):
        every = chance.randrange(1, 10 ** chance.randrange(1, 9))
        size = every * chance.randrange(1, 8) + chance.randrange(every)
        chosen.append(Hopping(f"{size} ms", f"{every} ms", offset=f"{chance.randrange(every)} ms"))
    return chosen


@pytest.fixture(scope="module")
def instants(spark: SparkSession) -> DataFrame:
    chance = random.Random(1970)
    values = {around + step for around in AROUND_US for step in (-1_000_001, -1000, -1, 0, 1, 999, 1000)}
    values |= {
        around + chance.randrange(-(10**power), 10**power)
        for around in AROUND_US
        for power in (3, 7, 10, 13)
        for _ in range(6)
    }
    # On the edges of whole hours and days as well.
    values |= {day * DAY_US + step for day in (-3, -1, 1, 20_454) for step in (-1, 0, 1, 3600 * SECOND_US)}
    frame = spark.createDataFrame([(value,) for value in sorted(values)], "us BIGINT")
    return frame.withColumn("t", F.timestamp_micros("us")).coalesce(1).cache()


@pytest.mark.parametrize("window", some_windows(), ids=repr)
def test_the_arithmetic_gives_the_windows_that_spark_gives(instants: DataFrame, window: GridWindow) -> None:
    grid = Grid(window)
    ours = [grid.last_start_us("t"), grid.first_end_us("t"), grid.last_end_us("t"), grid.count("t")]
    start, end = F.unix_micros("w.start"), F.unix_micros("w.end")
    # With two or more windows Spark's `window()` is a generator: one row for each window of the event.
    columns = [F.expr(sql).alias(f"c{index}") for index, sql in enumerate(ours)]
    exploded = instants.select("us", *columns, window_column("t", window).alias("w"))
    found = exploded.groupBy("us", "c0", "c1", "c2", "c3").agg(F.max(start), F.min(end), F.max(end), F.count("w"))
    rows = found.collect()
    assert len(rows) == instants.count()
    assert [tuple(row[:5]) for row in rows] == [(row[0], *row[5:]) for row in rows]


def test_a_session_of_one_event_ends_a_gap_after_it(instants: DataFrame) -> None:
    window = Session("5 minutes 1 ms")
    sessions = Sessions(window)
    figures = [sessions.first_end_us("t"), sessions.last_end_us("t"), sessions.count("t")]
    measures = [F.max(F.expr(sql)).alias(f"c{index}") for index, sql in enumerate(figures)]
    grouped = instants.groupBy("us", window_column("t", window).alias("w")).agg(*measures)
    rows = grouped.select("us", F.unix_micros("w.end"), *grouped.columns[2:]).collect()
    assert len(rows) == instants.count()
    end = 300_001_000
    assert [tuple(row) for row in rows] == [(row[0], *[row[0] + end] * 3, 1) for row in rows]
