"""Pipelines whose steps look at one event each, and what stands behind a stateful step: nothing is lost unseen."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Aggregate, Pipeline, Select, Session, Sink, Table, TopN, Tumbling, Watermark, Where
from tests.support import lakes

MINUTE = 60_000
START = 1_700_000_040_000
COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}


def readings(lake: Lake) -> None:
    bronze = lakes.Bronze(lake, "bronze.readings", COLUMNS, "t")
    minutes = [(1, "a", 5), (2, "b", None), (3, None, 50), (4, "a", 70), (90, "c", 8), (1, "a", 99), (None, "d", 60)]
    for batch in (minutes[:3], minutes[3:5], minutes[5:]):
        bronze.append([{"k": k, "v": v, "t": None if m is None else lakes.at(START + m * MINUTE)} for m, k, v in batch])
    bronze.heartbeat(START + 1000 * MINUTE)


def in_duckdb(lake: Lake, sql: str) -> list[tuple[object, ...]]:
    readings = open_table(lake, "bronze.readings").to_pyarrow_table()
    assert readings.num_rows
    return duckdb.sql("SET TimeZone = 'UTC'; " + sql).fetchall()


def test_rows_that_pass_are_written_once_and_the_others_are_counted(spark: SparkSession, lake: Lake) -> None:
    readings(lake)
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="high",
            source=Table("bronze.readings"),
            event_time="t",
            steps=(Select({"twice": "v * 2"}), Where("twice >= 100"), Select({"label": "concat(k, '!')"})),
            sink=Sink("gold.high"),
        )
    )
    lakes.run(spark, lake, definition)
    lakes.run(spark, lake, definition)
    rows = lakes.rows(lake, "gold.high")
    found = sorted(((row["_event_id"], row["v"], row["twice"], row["label"]) for row in rows), key=str)
    assert found == in_duckdb(
        lake,
        "SELECT _event_id, v, v * 2, k || '!' FROM readings WHERE v * 2 >= 100 AND NOT _heartbeat ORDER BY _event_id",
    )
    assert {row["revision"] for row in rows} == {1}
    terms = ("read", "on_time", "filtered", "late", "rows", "heartbeats")
    sums = {term: sum(entry[term] for _, entry in lakes.ledger(lake, definition)) for term in terms}
    assert sums == {"read": 7, "on_time": 4, "filtered": 3, "late": 0, "rows": 4, "heartbeats": 1}
    lakes.assert_balanced(lake, definition)


# Without a ranking less is withheld: [True]
@pytest.mark.parametrize("ranked", [True, pytest.param(False, marks=pytest.mark.long)])
def test_results_that_a_filter_withholds_are_counted(spark: SparkSession, lake: Lake, ranked: bool) -> None:
    readings(lake)
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="busy",
            source=Table("bronze.readings"),
            event_time="t",
            watermark=Watermark(delay="5 minutes"),
            steps=(
                Aggregate(window=Tumbling("1 hour"), by=("k",), measures={"readings": "count(*)", "most": "max(v)"}),
                Where("readings > 1 OR most >= 50"),
                *([TopN(1, order_by="readings DESC")] if ranked else []),
            ),
            sink=Sink("gold.busy"),
        )
    )
    lakes.run(spark, lake, definition)
    found = {(row["k"], row["readings"], row["most"]) for row in lakes.rows(lake, "gold.busy")}
    # The 99 comes in the batch after the one that moves the watermark: its window is still open.
    assert found == ({("a", 3, 99)} if ranked else {("a", 3, 99), (None, 1, 50)})
    entries = lakes.ledger(lake, definition)
    sums = {term: sum(entry[term] for _, entry in entries) for term in ("pairs", "pairs_result", "pairs_withheld")}
    assert sums == {"pairs": 6, "pairs_result": 4, "pairs_withheld": 2}
    lakes.assert_balanced(lake, definition)


def test_a_result_that_changes_leaves_the_table_when_it_passes_no_more(spark: SparkSession, lake: Lake) -> None:
    bronze = lakes.Bronze(lake, "bronze.readings", COLUMNS, "t")
    for batch in ([("a", 1), ("b", 60)], [("a", 70), ("b", -50)], [("a", -1)]):
        bronze.append([{"k": k, "v": v, "t": lakes.at(START + MINUTE)} for k, v in batch])
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="busy",
            source=Table("bronze.readings"),
            event_time="t",
            watermark=Watermark(delay="5 minutes"),
            steps=(
                Aggregate(window=Tumbling("1 hour"), by=("k",), measures={"total": "sum(v)"}),
                Where("total >= 50"),
            ),
            sink=Sink("gold.busy", mode="update"),
        )
    )
    lakes.run(spark, lake, definition)
    assert [(row["k"], row["total"]) for row in lakes.rows(lake, "gold.busy")] == [("a", 70)]
    lakes.assert_balanced(lake, definition)


def test_each_event_may_say_how_long_it_keeps_its_session_open(spark: SparkSession, lake: Lake) -> None:
    bronze = lakes.Bronze(lake, "bronze.readings", COLUMNS, "t")
    events = [(0, "a", 10), (9, "a", 1), (11, "a", 5), (30, "a", 99), (44, "a", 1), (5, "b", 0), (6, "b", None)]
    events.append((200, "z", 1))
    bronze.append([{"k": k, "v": v, "t": lakes.at(START + m * MINUTE)} for m, k, v in events])
    bronze.append([{"k": "z", "v": 1, "t": lakes.at(START + 210 * MINUTE)}])
    bronze.append([{"k": "a", "v": 3, "t": lakes.at(START + 100 * MINUTE)}])
    bronze.heartbeat(START + 1000 * MINUTE)
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="visits",
            source=Table("bronze.readings"),
            event_time="t",
            watermark=Watermark(delay="1 minute"),
            steps=(
                Aggregate(
                    window=Session("15 minutes", gap_sql="concat(v, ' minutes')"),
                    by=("k",),
                    measures={"readings": "count(*)"},
                ),
            ),
            sink=Sink("gold.visits"),
        )
    )
    lakes.run(spark, lake, definition)
    found = sorted(
        (row["k"], (lakes.ms(row["window_start"]) - START) // MINUTE, (lakes.ms(row["window_end"]) - START) // MINUTE)
        for row in lakes.rows(lake, "gold.visits")
    )
    # The gap of 99 minutes is cut to the longest, 15; none and nothing belong to no session.
    assert found == [("a", 0, 10), ("a", 11, 16), ("a", 30, 45), ("z", 200, 201), ("z", 210, 211)]
    (late,) = lakes.rows(lake, "gold.visits__late")
    assert (late["v"], lakes.ms(late["missed_windows"][0]["window_end"]) - START) == (3, 103 * MINUTE)
    assert sum(entry["timeless"] for _, entry in lakes.ledger(lake, definition)) == 2
    lakes.assert_balanced(lake, definition)
