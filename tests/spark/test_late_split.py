"""The late split against the pure-Python model of the late rules."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.spec import (
    Aggregate,
    Hopping,
    Late,
    Pipeline,
    Select,
    Session,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
    Where,
    Window,
)
from tests.support import lakes

MINUTE = 60_000
START = 1_767_225_600_000  # 2026-01-01


def pipeline(window: Window, *, delay: str = "1 minute", mode: str = "append", **watermark: object) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name="activity",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay=delay, **watermark),
            steps=(Aggregate(window=window, by=("k",), measures={"n": "count(*)", "total": "sum(v)"}),),
            sink=Sink("gold.activity", mode=mode),
        )
    )


def clicks(lake: Lake) -> lakes.Bronze:
    return lakes.Bronze(lake, "bronze.clicks", {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}, "t")


def event(minute: float, key: str = "a", value: int = 1) -> dict[str, object]:
    return {"k": key, "v": value, "t": lakes.at(START + int(minute * MINUTE))}


def test_a_late_event_is_kept_with_the_windows_that_it_missed(spark: SparkSession, lake: Lake) -> None:
    definition, bronze = pipeline(Tumbling("5 minutes")), clicks(lake)
    bronze.append([event(1), event(2)])
    bronze.append([event(7)])
    bronze.append([event(3, value=9)])
    bronze.append([event(3, value=7)])
    lakes.run(spark, lake, definition)

    late = lakes.rows(lake, "gold.activity__late")
    # Batch 2 is judged by the watermark of batch 1, which knows batch 0 only; batch 3 by that of batch 2.
    assert [row["v"] for row in late] == [7]
    assert late[0]["watermark"] == lakes.at(START + 6 * MINUTE)
    missed = {
        "window_start": lakes.at(START),
        "window_end": lakes.at(START + 5 * MINUTE),
        "late_by_ms": MINUTE,
    }
    assert late[0]["missed_windows"] == [missed]
    assert not late[0]["partly_late"]
    assert late[0]["late_by_ms"] == MINUTE
    lakes.assert_balanced(lake, definition)


# Read from files: test_a_folder_called_like_a_column_and_a_value_changes_no_column[False]
@pytest.mark.parametrize("in_memory", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_event_late_for_some_of_its_windows_is_counted_in_the_others(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr("spark_jobs.transforms.late.FEW", 0)
    definition, bronze = pipeline(Hopping("10 minutes", "5 minutes")), clicks(lake)
    bronze.append([event(12)])
    bronze.append([event(12.5)])
    bronze.append([event(7, value=100)])
    bronze.heartbeat(START + 60 * MINUTE)
    lakes.run(spark, lake, definition)

    late = lakes.rows(lake, "gold.activity__late")
    assert [(row["v"], row["partly_late"], len(row["missed_windows"])) for row in late] == [(100, True, 1)]
    totals = {lakes.ms(row["window_start"]): row["total"] for row in lakes.rows(lake, "gold.activity")}
    assert totals == {START + 5 * MINUTE: 102, START + 10 * MINUTE: 2}
    lakes.assert_balanced(lake, definition)


# In memory no path is read: test_a_late_event_is_kept_with_the_windows_that_it_missed
@pytest.mark.parametrize("few", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_folder_called_like_a_column_and_a_value_changes_no_column(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """Readers of Parquet take `store=berlin` in a path for a column, by themselves."""
    if not few:
        monkeypatch.setattr("spark_jobs.transforms.late.FEW", 0)
    columns = {"store": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
    ranking = pipeline(Tumbling("5 minutes"), mode="update")
    measures = Aggregate(window=Tumbling("5 minutes"), by=("store",), measures={"total": "sum(v)"})
    definition = ranking.model_copy(update={"steps": (measures, TopN(2, order_by="total DESC, store"))})
    lake = Lake(str(tmp_path / "store=berlin" / "v=77" / "window_end=2020-01-01" / "region=north")).ensure_exists()
    bronze = lakes.Bronze(lake, "bronze.clicks", columns, "t")
    for minutes in ({"paris": 1, "rome": 2}, {"rome": 7}, {"oslo": 8}, {"oslo": 3}):
        bronze.append(
            [{"store": k, "v": minute, "t": lakes.at(START + minute * MINUTE)} for k, minute in minutes.items()]
        )
    lakes.run(spark, lake, definition)

    lakes.assert_balanced(lake, definition)
    late, results = lakes.rows(lake, "gold.activity__late"), lakes.rows(lake, "gold.activity")
    assert [(row["store"], row["v"], lakes.ms(row["t"]) - START) for row in late] == [("oslo", 3, 3 * MINUTE)]
    assert [*late[0]][:6] == ["store", "v", "t", "_event_id", "_ingest_seq", "_ingest_time"]
    rankings = {(lakes.ms(row["window_end"]) - START, row["rank"], row["store"], row["total"]) for row in results}
    first, second = 5 * MINUTE, 10 * MINUTE
    assert rankings == {(first, 1, "rome", 2), (first, 2, "paris", 1), (second, 1, "oslo", 8), (second, 2, "rome", 7)}
    assert not {"region"} & {*late[0], *results[0]}


# Whether it is in a window is said before the mode matters: [update]
@pytest.mark.parametrize("mode", ["update", pytest.param("append", marks=pytest.mark.long)])
def test_an_event_without_event_time_is_in_no_window_and_in_the_ledger(
    spark: SparkSession, lake: Lake, mode: str
) -> None:
    columns = {"k": pa.string(), "v": pa.int64(), "seen": lakes.TIMESTAMP, "t": lakes.TIMESTAMP}
    bronze = lakes.Bronze(lake, "bronze.clicks", columns, "seen")
    without = {"k": "a", "v": 1000, "seen": lakes.at(START), "t": None}
    bronze.append([event(1), without, without])
    bronze.append([event(30, value=5), without])
    # It moves no watermark of this pipeline: it has the ingest's own time only.
    bronze.heartbeat(START + 600 * MINUTE)
    bronze.append([event(40), event(2, value=7)])
    definition = pipeline(Tumbling("5 minutes"), mode=mode)
    lakes.run(spark, lake, definition)

    figures = lakes.ledger(lake, definition)
    assert sum(row["timeless"] for _, row in figures) == 3
    assert sum(row["read"] for _, row in figures) == 7
    assert sum(row["heartbeats"] for _, row in figures) == 1
    results = lakes.rows(lake, "gold.activity")
    assert all(row["window_start"] is not None and row["total"] < 1000 for row in results)
    late = lakes.rows(lake, "gold.activity__late")
    assert [row["v"] for row in late] == [7]
    lakes.assert_balanced(lake, definition)


def test_a_running_total_counts_events_without_a_time(spark: SparkSession, lake: Lake) -> None:
    bronze = clicks(lake)
    bronze.append([event(1), {"k": "a", "v": 10, "t": None}])
    bronze.heartbeat(START)
    definition = Pipeline(
        name="totals",
        source=Table("bronze.clicks"),
        event_time="t",
        steps=(Aggregate(by=("k",), measures={"total": "sum(v)"}),),
        sink=Sink("gold.totals", mode="update"),
    )
    lakes.run(spark, lake, definition)
    assert [row["total"] for row in lakes.rows(lake, "gold.totals")] == [11]
    lakes.assert_balanced(lake, definition)


def test_a_deletion_in_bronze_does_not_hide_the_events_before_it(spark: SparkSession, lake: Lake) -> None:
    bronze = clicks(lake)
    bronze.append([event(1, "a", 1), event(1, "erased", 100)])
    bronze.append([event(2, "a", 2)])
    open_table(lake, "bronze.clicks").delete("k = 'erased'")
    bronze.append([event(30, "a", 4)])
    definition = pipeline(Tumbling("5 minutes"))
    lakes.run(spark, lake, definition)
    totals = {
        lakes.ms(row["window_start"]): row["total"] for row in lakes.rows(lake, "gold.activity") if row["k"] == "a"
    }
    assert totals[START] == 3
    lakes.assert_balanced(lake, definition)


def test_a_column_that_a_select_would_replace_is_refused(spark: SparkSession, lake: Lake) -> None:
    clicks(lake).append([event(1)])
    definition = pipeline(Tumbling("5 minutes"))
    doubled = definition.model_copy(update={"steps": (Select({"V": "v * 2"}), *definition.steps)})
    with pytest.raises(SchemaMismatchError, match=r"Select adds \['V'\], which bronze\.clicks has already"):
        lakes.run(spark, lake, doubled)


def test_a_column_of_bronze_with_a_name_of_tidemarks_is_refused(spark: SparkSession, lake: Lake) -> None:
    columns = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP, "_Source_Table": pa.string()}
    bronze = lakes.Bronze(lake, "bronze.clicks", columns, "t")
    bronze.append([{**event(1), "_Source_Table": "mine"}])
    with pytest.raises(SchemaMismatchError, match=r"bronze\.clicks has columns \['_Source_Table'\].*`select`"):
        lakes.run(spark, lake, pipeline(Tumbling("5 minutes")))
    assert not exists(lake, "gold.activity")


@pytest.mark.parametrize("step", [Where("user = 'ann'"), Select({"who": "upper(`User`)"})])
def test_a_user_that_is_no_column_is_not_the_one_who_runs_the_stream(
    spark: SparkSession, lake: Lake, step: Where | Select
) -> None:
    clicks(lake).append([event(1)])
    definition = pipeline(Tumbling("5 minutes"))
    with pytest.raises(SchemaMismatchError, match=r"expected a column `user` in bronze\.clicks"):
        lakes.run(spark, lake, definition.model_copy(update={"steps": (step, *definition.steps)}))


def test_a_narrower_limit_ends_what_a_wrong_time_has_begun(spark: SparkSession, lake: Lake) -> None:
    """As docs/operate/runbook.md says; a `Where` would not help."""
    bronze, century = clicks(lake), 100 * 365 * 24 * 60
    for minute in (century, 2, 3):
        bronze.append([event(minute)])
    definition = pipeline(Tumbling("5 minutes"), delay="0 seconds").model_copy(
        update={"max_future": timedelta(days=365_000)}
    )
    filtered = definition.model_copy(update={"steps": (Where("t < timestamp'2027-01-01'"), *definition.steps)})
    lakes.run(spark, lake, filtered)
    # The batch after the poisoned one does not know of it yet.
    assert len(lakes.rows(lake, "gold.activity__late")) == 1

    narrower = {"max_future": timedelta(hours=1), "name": "fixed", "sink": Sink("gold.fixed")}
    fixed = definition.model_copy(update=narrower)
    lakes.run(spark, lake, fixed)
    assert lakes.rows(lake, "gold.fixed__late") == []
    assert sum(row["timeless"] for _, row in lakes.ledger(lake, fixed)) == 1
    assert sum(row["on_time"] for _, row in lakes.ledger(lake, fixed)) == 2
    lakes.assert_balanced(lake, fixed)


# Rows are removed before the mode matters: [append]
@pytest.mark.parametrize("mode", ["append", pytest.param("update", marks=pytest.mark.long)])
def test_what_a_where_removes_stops_no_select_after_it(spark: SparkSession, lake: Lake, mode: str) -> None:
    bronze = clicks(lake)
    bronze.append([event(1, "7"), event(2, "none")])
    bronze.heartbeat(START + 20 * MINUTE)
    bronze.append([event(30, "none"), event(31, "8")])
    bronze.append([event(3, "9"), event(4, "none")])
    steps = (
        Where("k RLIKE '^[0-9]+$'"),
        Select({"number": "CAST(k AS INT)"}),
        Aggregate(window=Tumbling("5 minutes"), by=("number",), measures={"n": "count(*)"}),
    )
    definition = pipeline(Tumbling("5 minutes"), mode=mode).model_copy(update={"steps": steps})
    lakes.run(spark, lake, definition)
    assert [row["k"] for row in lakes.rows(lake, "gold.activity__late")] == ["9"]
    assert sum(row["filtered"] for _, row in lakes.ledger(lake, definition)) == 3
    lakes.assert_balanced(lake, definition)


def test_late_keys_that_differ_in_where_the_null_stands_are_two(spark: SparkSession, lake: Lake) -> None:
    columns = {"k": pa.string(), "other": pa.string(), "t": lakes.TIMESTAMP}
    bronze = lakes.Bronze(lake, "bronze.clicks", columns, "t")

    def moved(minute: int, source: str | None, target: str | None) -> dict[str, object]:
        return {"k": source, "other": target, "t": lakes.at(START + minute * MINUTE)}

    bronze.append([moved(1, "a", "b"), moved(60, "a", "b")])
    bronze.append([moved(61, "a", "b")])
    bronze.append([moved(2, None, "a"), moved(3, "a", None)])
    by_both = Aggregate(window=Tumbling("5 minutes"), by=("k", "other"), measures={"n": "count(*)"})
    definition = pipeline(Tumbling("5 minutes")).model_copy(update={"steps": (by_both,)})
    lakes.run(spark, lake, definition)
    late = {(row["k"], row["other"]) for row in lakes.rows(lake, "gold.activity__late")}
    assert late == {(None, "a"), ("a", None)}
    lakes.assert_balanced(lake, definition)


def test_a_dropped_late_event_is_counted_and_not_kept(spark: SparkSession, lake: Lake) -> None:
    definition, bronze = pipeline(Session("5 minutes"), late=Late.DROP), clicks(lake)
    bronze.append([event(1), event(30)])
    bronze.append([event(2)])
    bronze.append([event(2)])
    lakes.run(spark, lake, definition)

    figures = [row["late"] for _, row in lakes.ledger(lake, definition)]
    assert sum(figures) == 1
    with pytest.raises(LookupError, match="activity__late"):
        lakes.rows(lake, "gold.activity__late")
    lakes.assert_balanced(lake, definition)


def test_a_column_named_like_one_of_the_late_table_must_be_renamed(spark: SparkSession, lake: Lake) -> None:
    columns = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP, "watermark": pa.string()}
    bronze = lakes.Bronze(lake, "bronze.clicks", columns, "t")
    for minute in (30, 2, 2):
        bronze.append([{**event(minute), "watermark": "paper"}])
    definition = pipeline(Tumbling("5 minutes"))
    with pytest.raises(SchemaMismatchError, match=r"reads columns \['watermark'\]"):
        lakes.run(spark, lake, definition)

    select = {"k": "k", "v": "v", "t": "t", "mark": "watermark"}
    renamed = definition.source.model_copy(update={"select": select})
    lakes.run(spark, lake, definition.model_copy(update={"source": renamed}))
    assert [row["mark"] for row in lakes.rows(lake, "gold.activity__late")] == ["paper"]
