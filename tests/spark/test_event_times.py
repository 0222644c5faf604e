"""A time that cannot be believed moves no watermark, also in a column that no ingest has judged."""

from datetime import UTC, datetime

import duckdb
import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.watermarks import published
from spark_jobs.spec import Aggregate, Deduplicate, Join, Pipeline, Sink, Table, Tumbling, Watermark
from tests.support import lakes
from tests.support.clicks import run_backfill

MINUTE, HOUR = 60_000, 3_600_000
ARRIVED = 1_767_225_600_000  # 2026-01-01
YEAR_9999 = datetime(9999, 12, 31, tzinfo=UTC)
LAST_BELIEVED = ARRIVED + HOUR
IN_MS = ARRIVED  # a number of milliseconds, where seconds are read: the year 57970
SELECTED = {"k": "k", "seconds": "seconds"}


def reader(name: str, sql: str | None, **fields: object) -> Pipeline:
    """Counts an hour's visits by the time `t`, or by one that is computed."""
    steps = (Aggregate(window=Tumbling("1 hour"), by=("k",), measures={"n": "count(*)"}),)
    return lakes.one_file_a_batch(
        Pipeline(
            name=name,
            source=Table("bronze.visits", select=None if sql is None else {**SELECTED, "t": sql}),
            event_time="t",
            watermark=Watermark(delay="10 minutes"),
            **{"steps": steps, "sink": Sink(f"gold.{name}"), **fields},
        )
    )


BY_TIME = reader("by_time", None)
BY_SECONDS = reader("by_seconds", "timestamp_seconds(seconds)")
A_DAY = reader("a_day", "timestamp_seconds(seconds)", max_future="1 day")
ONCE = reader("once", None, steps=(Deduplicate("k", within="1 hour"),))


def bronze_of(lake: Lake) -> None:
    """Three batches: sound events, those whose times cannot be believed, and sound ones again, which are not late."""
    bronze = lakes.Bronze(
        lake,
        "bronze.visits",
        {"k": pa.string(), "t": lakes.TIMESTAMP, "seconds": pa.int64()},
        "t",
        arrived_ms=ARRIVED,
    )

    def visit(minutes: float, key: str = "a") -> dict[str, object]:
        ms = ARRIVED + int(minutes * MINUTE)
        return {"k": key, "t": lakes.at(ms), "seconds": ms // 1000}

    bronze.append([visit(-200), visit(-100), visit(-95)])
    bronze.append(
        [
            {"k": "wrong", "t": YEAR_9999, "seconds": IN_MS},
            {"k": "wrong", "t": datetime(1, 1, 1, tzinfo=UTC), "seconds": -IN_MS},
            visit(61, "wrong"),
        ]
    )
    bronze.append([visit(-103), visit(-99), visit(-98, "b")])


def counted(lake: Lake, table: str) -> set[tuple[object, ...]]:
    return {(row["k"], lakes.ms(row["window_start"]), row["n"]) for row in lakes.rows(lake, table)}


def expected(lake: Lake, latest_ms: int) -> set[tuple[object, ...]]:
    """The same by DuckDB, over all events that bronze has between 2025 and an instant."""
    bronze = pa.Table.from_pylist([row for row in lakes.rows(lake, "bronze.visits") if not row["_heartbeat"]])
    first_ms = ARRIVED - 366 * 24 * HOUR
    with duckdb.connect() as connection:
        connection.register("bronze", bronze)
        found = connection.sql(
            f"SELECT k, seconds // 3600 * 3600000 AS hour, count(*) FROM bronze "
            f"WHERE seconds * 1000 BETWEEN {first_ms} AND {latest_ms} GROUP BY ALL"
        )
        return set(found.fetchall())


def test_a_time_that_cannot_be_believed_makes_no_other_event_late(spark: SparkSession, lake: Lake) -> None:
    bronze_of(lake)
    lakes.run_all(spark, lake, [BY_TIME, BY_SECONDS, A_DAY, ONCE], close=True)

    # 0001-01-01 is a time of the calendar, and late; what no calendar has is none.
    timeless = {"by_time": 2, "by_seconds": 3, "a_day": 2, "once": 2}
    for definition in (BY_TIME, BY_SECONDS, A_DAY, ONCE):
        lakes.assert_balanced(lake, definition)
        terms = [row for _, row in lakes.ledger(lake, definition)]
        assert sum(row["timeless"] for row in terms) == timeless[definition.name], definition.name
    for name in ("by_time", "by_seconds"):
        assert counted(lake, f"gold.{name}") == expected(lake, LAST_BELIEVED)
    assert counted(lake, "gold.a_day") == expected(lake, ARRIVED + 24 * HOUR)
    assert {row["t"] for row in lakes.rows(lake, "gold.by_time__late")} == {datetime(1, 1, 1, tzinfo=UTC)}
    assert lakes.rows(lake, "gold.by_seconds__late") == []
    # Closing moves a table to behind its newest event that is believed, for those that take the most.
    assert max(published(lake).values()) < lakes.at(ARRIVED + 4 * HOUR)

    # A batch believes the same times.
    begin, end = lakes.at(ARRIVED - 24 * HOUR), lakes.at(ARRIVED + 48 * HOUR)
    (again,) = run_backfill(spark, lake, A_DAY, begin=begin, end=end, force=True)
    assert again.changed.rows == 0


def test_of_a_join_each_side_is_looked_at(spark: SparkSession, lake: Lake) -> None:
    orders = lakes.Bronze(lake, "bronze.orders", {"k": pa.string(), "t": lakes.TIMESTAMP}, "t", arrived_ms=ARRIVED)
    paid = lakes.Bronze(lake, "bronze.payments", {"k": pa.string(), "u": lakes.TIMESTAMP}, "u", arrived_ms=ARRIVED)
    soon, later = lakes.at(ARRIVED - 2 * HOUR), lakes.at(ARRIVED - HOUR)
    for at in (soon, later):
        orders.append([{"k": f"{at:%H}", "t": at}, {"k": "wrong", "t": YEAR_9999}])
        paid.append([{"k": f"{at:%H}", "u": at}, {"k": "wrong", "u": YEAR_9999}])
    join = Join(Table("bronze.payments"), on=("k",), event_time="u", within="10 minutes", how="full")
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="paid",
            source=Table("bronze.orders"),
            event_time="t",
            watermark=Watermark(delay="1 minute"),
            steps=(join,),
            sink=Sink("gold.paid"),
        )
    )
    lakes.run_all(spark, lake, [definition], close=True)
    assert sorted((row["k"], row["_side"]) for row in lakes.rows(lake, "gold.paid")) == [("22", "both"), ("23", "both")]
    assert lakes.rows(lake, "gold.paid__late") == []
    assert sum(row["timeless"] for _, row in lakes.ledger(lake, definition)) == 4
    lakes.assert_balanced(lake, definition)
