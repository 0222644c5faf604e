"""Audits: rows recounted from bronze, against tables that were damaged on purpose."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.audit.plan import Audit, look, plan_recount
from spark_jobs.operations.audit.text import audit_text, summary
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.spec import Deduplicate, Pipeline, Session, Sink, Table, Watermark
from tests.support import lakes
from tests.support.clicks import (
    BEGIN,
    COLUMNS,
    HOPPING,
    MINUTE,
    RANKING,
    START,
    TABLES,
    audited,
    events,
    feed,
    merged,
    pipeline,
    run_repair,
    with_duplicates,
)


def assert_stays_sound(spark: SparkSession, lake: Lake, kind: Pipeline, minutes: int) -> None:
    # A part of the range is corrected: late events with windows on both sides are counted in some of them. In the other
    # part is what the stream has written.
    target, plan = plan_backfill(lake, kind, BEGIN, lakes.at(START + minutes * MINUTE))
    backfill.execute(spark, target, plan)
    found = audited(spark, lake, kind)
    assert found.sound, audit_text(found)
    assert found.rows > 20


# After a repair of the rest: tests/spark/test_names.py::test_a_live_ranking_under_such_names_is_what_duckdb_says[mixed]
def test_what_stream_and_backfill_have_written_is_sound(spark: SparkSession, copy: Lake) -> None:
    bronze = lakes.Bronze(copy, "bronze.clicks", COLUMNS, "t", len(lakes.rows(copy, "bronze.clicks")))
    made, minutes = events(11, 7, minutes=20), 90
    bronze.append(made[-1])
    assert_stays_sound(spark, copy, RANKING, minutes)
    # Events count that the stream has not read yet.
    counted = {(lakes.ms(row["window_start"]), row["k"]): row["n"] for row in lakes.rows(copy, TABLES[1])}
    of_group = Counter(group(event) for batch in made for event in batch if event["v"] >= 0)
    unread = {group(event) for event in made[-1] if event["v"] >= 0}
    ahead = {each for each in unread if each[0] < START + (minutes - 10) * MINUTE}
    assert len(ahead) > 2
    assert {each: counted[each] for each in ahead} == {each: of_group[each] for each in ahead}


def group(event: dict[str, Any]) -> tuple[int, str | None]:
    """Window of ten minutes and key of an event."""
    return lakes.ms(event["t"]) // (10 * MINUTE) * (10 * MINUTE), event["k"]


# Of a ranking: test_what_stream_and_backfill_have_written_is_sound
@pytest.mark.long
def test_what_they_have_written_in_hopping_windows_is_sound(spark: SparkSession, lake: Lake) -> None:
    feed(lake, events(7, 6, minutes=20))
    lakes.run(spark, lake, pipeline(HOPPING))
    assert_stays_sound(spark, lake, pipeline(HOPPING), 25)
    assert run_repair(spark, lake, pipeline(HOPPING)) is not None
    found = audited(spark, lake, pipeline(HOPPING))
    assert found.sound, audit_text(found)


def test_an_audit_names_every_wrong_row_with_its_window_and_key(spark: SparkSession, windows: Lake) -> None:
    lake, definition = windows, pipeline()
    rows = sorted(lakes.rows(lake, "gold.activity"), key=lambda row: (row["window_start"], str(row["k"])))
    deleted, doubled, changed = (row for row in rows[4:7])
    table = open_table(lake, "gold.activity")

    def named(row: dict[str, object]) -> str:
        k = "null" if row["k"] is None else row["k"]
        bounds = ", ".join(f"{name}={row[name]:%Y-%m-%d %H:%M:%S}" for name in ("window_start", "window_end"))
        return f"gold.activity: {bounds}, k={k}"

    def where(row: dict[str, object]) -> str:
        key = "k IS NULL" if row["k"] is None else f"k = '{row['k']}'"
        return f"window_start = '{row['window_start']:%Y-%m-%dT%H:%M:%SZ}' AND {key}"

    table.delete(where(deleted))
    invented = {**deleted, "k": "nobody"}
    write_deltalake(
        table, pa.Table.from_pylist([doubled, invented], schema=pa.schema(table.schema().to_arrow())), mode="append"
    )
    table.update({"total": "total + 5"}, predicate=where(changed))

    found = audited(spark, lake, definition)
    assert not found.sound
    wrong = {(problem.row, problem.what) for problem in found.problems}
    should = ", ".join(f"{name}={deleted[name]}" for name in ("n", "total"))
    assert {row for row, _ in wrong} == {named(row) for row in (deleted, doubled, changed, invented)}
    by_row = dict(sorted(wrong))
    assert by_row[named(deleted)].startswith(f"missing; it should have {should}")
    assert by_row[named(doubled)] == "there 2 times"
    assert by_row[named(changed)] == f"total is {changed['total'] + 5}, should be {changed['total']}"
    assert by_row[named(invented)] == "must not be there: no event gives it"
    assert found.remedy is not None
    assert found.remedy.startswith("tidemark backfill activity --from ")
    assert found.remedy in summary(found)

    # That this puts it right, and that personal values are masked:
    # tests/spark/test_comparing.py::test_what_another_order_of_addition_gives_is_right


def test_data_files_that_are_gone_are_named_table_by_table(spark: SparkSession, windows: Lake) -> None:
    lake, definition = windows, pipeline()
    gone = {}
    for table in ("gold.activity", "bronze.clicks"):
        path = Path(open_table(lake, table).file_uris()[0].removeprefix("file://"))
        path.unlink()
        gone[table] = path.name
    found = audited(spark, lake, definition)
    assert not found.sound
    assert len(found.missing) == 2
    for table, name in gone.items():
        assert any(f"table {table}," in said and name in said for said in found.missing)


def test_rows_that_can_no_longer_be_recounted_are_not_sound(windows: Lake, spark: SparkSession) -> None:
    lake, definition = windows, pipeline()
    open_table(lake, "bronze.clicks").delete("v = 50")
    found = audited(spark, lake, definition)
    assert not found.sound
    assert "rows of its source bronze.clicks were taken away in version 4" in summary(found)


def test_a_range_before_the_first_event_is_not_recounted_and_says_so(windows: Lake, spark: SparkSession) -> None:
    lake, definition = windows, pipeline()
    from spark_jobs.recompute.ranges import Range

    asked = Range.between(datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC))
    planned = plan_recount(lake, definition, asked, look(lake, definition))
    assert isinstance(planned, Audit)
    assert "has no event" in str(planned.left_out)
    assert planned.sound


# What is said of wrong rows: test_an_audit_names_every_wrong_row_with_its_window_and_key. How sessions are recounted:
# tests/spark/test_shop_pipelines.py::test_repairs_and_backfills_of_shop_pipelines_count_all_events[page_sessions]
@pytest.mark.long
def test_sessions_are_recounted_as_the_stream_or_a_repair_made_them(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline(Session("2 minutes"))
    feed(lake, events(3, 7, size=16, minutes=20))
    lakes.run(spark, lake, definition)
    for repaired in (False, True):
        if repaired:
            assert run_repair(spark, lake, definition) is not None
        found = audited(spark, lake, definition)
        assert found.sound, audit_text(found)
        assert found.rows > 20
    chosen = [row for row in lakes.rows(lake, "gold.activity") if row["k"] is not None and row["n"] > 1]
    deleted, changed = sorted(chosen, key=lambda row: (row["window_start"], str(row["k"])))[5:7]
    for row, what in ((deleted, None), (changed, {"total": "total + 5"})):
        where = f"window_start = '{row['window_start']:%Y-%m-%dT%H:%M:%S.%fZ}' AND k = '{row['k']}'"
        table = open_table(lake, "gold.activity")
        table.delete(where) if what is None else table.update(what, predicate=where)
    found = audited(spark, lake, definition)
    said = [f"{problem.row} {problem.what}" for problem in found.problems]
    assert len(said) == 2, said
    assert any("missing; it should have" in each and f"k={deleted['k']}" in each for each in said)
    assert any(f"total is {changed['total'] + 5}, should be {changed['total']}" in each for each in said)


# tests/spark/test_deduplicate.py::test_batches_and_their_watermarks_tell_what_was_a_duplicate
@pytest.mark.long
def test_of_deduplicate_missing_and_changed_rows_are_named(spark: SparkSession, lake: Lake) -> None:
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="unique",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay="3 minutes"),
            steps=(Deduplicate("k", within="1 hour"),),
            sink=Sink("gold.activity"),
        )
    )
    feed(lake, merged(with_duplicates(5), 2, 1, 4, 2))
    lakes.run(spark, lake, definition)
    assert run_repair(spark, lake, definition) is not None
    found = audited(spark, lake, definition)
    assert found.sound, audit_text(found)
    assert found.rows > 40
    lost, changed = sorted(lakes.rows(lake, "gold.activity"), key=lambda row: str(row["t"]))[10:12]
    open_table(lake, "gold.activity").delete(f"k = '{lost['k']}'")
    open_table(lake, "gold.activity").update({"v": "v + 7"}, predicate=f"k = '{changed['k']}'")
    found = audited(spark, lake, definition)
    said = "\n".join(f"{problem.row} {problem.what}" for problem in found.problems)
    assert f"_event_id={lost['_event_id']}" in said
    assert f"v is {changed['v'] + 7}, should be {changed['v']}" in said
    assert found.differing == 2, said
