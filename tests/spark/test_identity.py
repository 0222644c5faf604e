"""Tables whose events have the same ids and the same numbers: each event is counted, repaired and found as itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.engine.reading import BronzeReader
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.quarantine import Selection
from spark_jobs.operations.audit.text import audit_text
from spark_jobs.operations.repair import execute as repair
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay.lookup import execute
from spark_jobs.operations.replay.lookup_plan import plan_lookup
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Enrich,
    Join,
    Pipeline,
    Sink,
    Table,
    Tumbling,
    Union,
    Watermark,
    Where,
)
from spark_jobs.spec.steps import StepSpec
from tests.spark.test_audit import audited
from tests.spark.test_enrich import products
from tests.support import lakes
from tests.support.clicks import MINUTE, START, copy_of, run_backfill, run_repair

SHOPS, WEB = "bronze.shops", "bronze.web"
COLUMNS = {"g": pa.string(), "k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
BATCHES: dict[str, list[list[tuple[int, int]]]] = {
    SHOPS: [[(1, 1), (2, 2), (6, 3), (6, 5), (6, 6), (6, 7)], [(40, 4)], [(41, 8)], [(3, 16), (5, 32)]],
    WEB: [[(1, 100), (4, 200)], [(40, 400)], [(41, 800)], [(43, n) for n in (3200, 3300, 3400, 3500, 3600, 3700)]],
}
"""Minute and value of each event. In the fourth batch both of the shops are late, and of the web two.

Of these, number 9 is one of both tables, number 8 of the web is in time, and number 5 of the web is late for a window
in which number 5 of the shops was in time.
"""
BATCHES[WEB][3][1], BATCHES[WEB][3][5] = (7, 3300), (6, 3700)
LATE = {(SHOPS, 16), (SHOPS, 32), (WEB, 3300), (WEB, 3700)}


def events() -> set[tuple[str, int, int]]:
    return {(table, minute, v) for table, batches in BATCHES.items() for batch in batches for minute, v in batch}


def fill(lake: Lake) -> None:
    """The tables differ in when their events arrived, and in nothing else that Tidemark gives them."""
    for hours, (table, batches) in enumerate(BATCHES.items()):
        bronze = lakes.Bronze(lake, table, COLUMNS, "t", arrived_ms=4_102_444_800_000 + hours * 60 * MINUTE)
        for batch in batches:
            bronze.append(
                [{"g": "g", "k": f"{table} {v}", "v": v, "t": lakes.at(START + m * MINUTE)} for m, v in batch]
            )
        bronze.heartbeat(START + 1000 * MINUTE)


def of_both(name: str, *steps: StepSpec, delay: str | None = "1 minute") -> Pipeline:
    select = {name: name for name in COLUMNS}
    definition = Pipeline(
        name=name,
        source=Union(Table(SHOPS, select=select), Table(WEB, select=select)),
        event_time="t",
        watermark=Watermark(delay=delay) if delay else None,
        steps=steps,
        sink=Sink(f"gold.{name}"),
    )
    return lakes.one_file_a_batch(definition)


SUMS = Aggregate(window=Tumbling("10 minutes"), by=("g",), measures={"n": "count(*)", "total": "sum(v)"})
WINDOWS = of_both("windows", SUMS)
FIRST = of_both("first", Deduplicate("k", within="5 minutes"))
ROWS = of_both("valid", Where("v > 0"), delay=None)
PAID = {"g": pa.string(), "p": pa.int64(), "u": lakes.TIMESTAMP}


@pytest.fixture(scope="module")
def once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with two streams over both tables; copied, never changed."""
    lake = Lake(str(tmp_path_factory.mktemp("both"))).ensure_exists()
    fill(lake)
    for definition in (WINDOWS, ROWS):
        lakes.run(spark, lake, definition)
    return lake


@pytest.fixture
def both(once: Lake, tmp_path: Path) -> Lake:
    return copy_of(once, tmp_path / "copy")


def windows(lake: Lake) -> dict[int, tuple[int, int]]:
    return {
        (lakes.ms(row["window_start"]) - START) // MINUTE: (row["n"], row["total"])
        for row in lakes.rows(lake, "gold.windows")
    }


def by_python(counted: set[tuple[str, int, int]]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for _, minute, v in counted:
        n, total = found.get(minute // 10 * 10, (0, 0))
        found[minute // 10 * 10] = n + 1, total + v
    return found


def kept(lake: Lake, table: str) -> list[tuple[str, int]]:
    return sorted((row["_source_table"], row["v"]) for row in lakes.rows(lake, table))


def forget_sources(lake: Lake, table: str) -> None:
    """As an earlier version wrote its rows."""
    open_table(lake, table).update({"_source_table": "NULL"})


IN_TIME = {event for event in events() if (event[0], event[2]) not in LATE}


def test_late_events_of_two_tables_are_known_by_their_table(both: Lake) -> None:
    assert kept(both, "gold.windows__late") == sorted(LATE)
    assert windows(both) == by_python(IN_TIME)
    # Otherwise nothing below is asked: two of them have one id and one number, and one has those of an event in time.
    ids = [(row["_batch_id"], row["_event_id"], row["_ingest_seq"]) for row in lakes.rows(both, "gold.windows__late")]
    assert len(set(ids)) == 3


# Where it is named: test_two_late_events_of_one_number_are_repaired_and_given_back[named]
@pytest.mark.parametrize(
    "named",
    [
        pytest.param(True, id="named", marks=pytest.mark.long),
        pytest.param(False, id="of an earlier version"),
    ],
)
def test_an_event_in_time_stays_beside_a_late_one_of_its_number(spark: SparkSession, both: Lake, named: bool) -> None:
    if not named:
        forget_sources(both, "gold.windows__late")
    (same,) = run_backfill(spark, both, WINDOWS, mode="as-streamed", force=True)
    assert same.changed.rows == 0
    # An audit computes what this backfill does, and compares.
    assert windows(both) == by_python(IN_TIME)


# Of an earlier version: test_an_event_in_time_stays_beside_a_late_one_of_its_number[of an earlier version]
@pytest.mark.parametrize(
    "named",
    [
        pytest.param(True, id="named"),
        pytest.param(False, id="of an earlier version", marks=pytest.mark.long),
    ],
)
def test_two_late_events_of_one_number_are_repaired_and_given_back(
    spark: SparkSession, both: Lake, named: bool
) -> None:
    if not named:
        forget_sources(both, "gold.windows__late")
    done = run_repair(spark, both, WINDOWS)
    assert done is not None
    assert done.repaired == 4
    assert windows(both) == by_python(events())
    assert {row["settled_version"] is None for row in lakes.rows(both, "gold.windows__late")} == {False}
    lakes.assert_balanced(both, WINDOWS)
    assert run_repair(spark, both, WINDOWS) is None
    (undone,) = run_backfill(spark, both, WINDOWS, mode="as-streamed")
    assert undone.taken_out == 4
    assert windows(both) == by_python(IN_TIME)
    lakes.assert_balanced(both, WINDOWS)


# In windows: test_two_late_events_of_one_number_are_repaired_and_given_back; that the rows of single events have their
# table in their key: tests/unit/test_identity.py::TestPlans::test_rows_of_several_tables_have_their_table_in_their_key
@pytest.mark.long
def test_the_first_event_of_each_key_is_told_from_others_of_its_number(spark: SparkSession, both: Lake) -> None:
    lakes.run(spark, both, FIRST)
    assert kept(both, "gold.first__late") == sorted(LATE)
    assert kept(both, "gold.first") == sorted((table, v) for table, _, v in IN_TIME)
    (same,) = run_backfill(spark, both, FIRST, mode="as-streamed", force=True)
    assert same.changed.rows == 0
    done = run_repair(spark, both, FIRST)
    assert done is not None
    assert (done.repaired, done.changed.inserted, done.changed.rows) == (4, 4, 4)
    assert kept(both, "gold.first") == sorted((table, v) for table, _, v in events())
    lakes.assert_balanced(both, FIRST)


# Of an earlier version: test_an_event_in_time_stays_beside_a_late_one_of_its_number[of an earlier version]
@pytest.mark.parametrize(
    "named",
    [
        pytest.param(True, id="named"),
        pytest.param(False, id="of an earlier version", marks=pytest.mark.long),
    ],
)
def test_rows_of_two_tables_are_sound_and_only_a_lost_one_comes_back(
    spark: SparkSession, both: Lake, named: bool
) -> None:
    assert kept(both, "gold.valid") == sorted((table, v) for table, _, v in events())
    if not named:
        forget_sources(both, "gold.valid")
    open_table(both, "gold.valid").delete("v = 200")
    open_table(both, "gold.valid").update({"k": "'?'"}, predicate="v = 1")
    found = audited(spark, both, ROWS)
    assert found.differing == 2, audit_text(found)
    (done,) = run_backfill(spark, both, ROWS, force=True)
    assert (done.changed.inserted, done.changed.updated, done.changed.deleted) == (1, 1, 0)
    rows = lakes.rows(both, "gold.valid")
    assert sorted(row["v"] for row in rows) == sorted(v for _, _, v in events())
    assert {row["k"] for row in rows if row["v"] in (1, 100)} == {f"{SHOPS} 1", f"{WEB} 100"}


def paid(source: Table | Union, how: str) -> Pipeline:
    other = Table("bronze.paid", select={name: name for name in PAID})
    definition = Pipeline(
        name="joined",
        source=source,
        event_time="t",
        watermark=Watermark(delay="1 minute"),
        steps=(Join(other, on=("g",), event_time="u", within="10 minutes", how=how),),
        sink=Sink("gold.joined"),
    )
    return lakes.one_file_a_batch(definition)


def append_left(bronze: lakes.Bronze, *batches: tuple[str, int]) -> None:
    for g, minute in batches:
        bronze.append([{"g": g, "k": g, "v": minute, "t": lakes.at(START + minute * MINUTE)}])


def append_right(bronze: lakes.Bronze, *batches: tuple[str, int]) -> None:
    for g, minute in batches:
        bronze.append([{"g": g, "p": minute, "u": lakes.at(START + minute * MINUTE)}])


def test_a_repair_marks_the_late_event_of_its_side_alone(spark: SparkSession, lake: Lake) -> None:
    left, right = lakes.Bronze(lake, SHOPS, COLUMNS, "t"), lakes.Bronze(lake, "bronze.paid", PAID, "u")
    # Both come late in the third batch, with one id and one number; what the right one can change is still open.
    append_left(left, ("b", 41), ("c", 41), ("late", 2))
    append_right(right, ("b", 41), ("c", 41), ("recent", 38))
    definition = paid(Table(SHOPS), "full")
    lakes.run(spark, lake, definition)

    def repaired() -> dict[str, tuple[str, bool]]:
        rows = lakes.rows(lake, "gold.joined__late")
        return {row["_side"]: (row["_source_table"], row["settled_version"] is not None) for row in rows}

    assert {(r["_batch_id"], r["_event_id"], r["_ingest_seq"]) for r in lakes.rows(lake, "gold.joined__late")} == {
        (2, "e2", 2)
    }
    assert repaired() == {"left": (SHOPS, False), "right": ("bronze.paid", False)}
    done = run_repair(spark, lake, definition)
    assert done is not None
    assert done.repaired == 1
    assert repaired() == {"left": (SHOPS, True), "right": ("bronze.paid", False)}
    assert ("left", "late") in {(row["_side"], row["g"]) for row in lakes.rows(lake, "gold.joined")}
    lakes.assert_balanced(lake, definition)


# Rows without a source: test_an_event_in_time_stays_beside_a_late_one_of_its_number[of an earlier version]
@pytest.mark.parametrize(
    "begun_before",
    [
        pytest.param(False, id=""),
        pytest.param(True, id="begun by an earlier version", marks=pytest.mark.long),
    ],
)
def test_a_join_over_two_tables_tells_their_events_apart(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, begun_before: bool
) -> None:
    shops, web = (
        lakes.Bronze(lake, table, COLUMNS, "t", arrived_ms=4_102_444_800_000 + hours * 60 * MINUTE)
        for hours, table in enumerate((SHOPS, WEB))
    )
    right = lakes.Bronze(lake, "bronze.paid", PAID, "u")
    select = {name: name for name in COLUMNS}
    definition = paid(Union(Table(SHOPS, select=select), Table(WEB, select=select)), "left")
    append_left(shops, ("a", 1), ("c", 40))
    append_left(web, ("b", 1), ("c", 41))
    append_right(right, ("a", 2), ("c", 42))
    if begun_before:
        # Its state has no place for the table of an event.
        with monkeypatch.context() as patched:
            patched.setattr(BronzeReader, "state_knows_no_sources", property(lambda _: True))
            lakes.run(spark, lake, definition)
    append_left(shops, ("c", 43), ("late", 3), ("z", 1000))
    append_left(web, ("c", 43), ("d", 43), ("z", 1000))
    append_right(right, ("c", 43), ("d", 44), ("z", 1000))
    lakes.run(spark, lake, definition)
    columns = {field.name for field in open_table(lake, "gold.joined").schema().fields}
    assert ("_source_table" in columns) is not begun_before
    assert [row["_source_table"] for row in lakes.rows(lake, "gold.joined__late")] == [SHOPS]
    lakes.assert_balanced(lake, definition)

    def pairs() -> set[tuple[Any, ...]]:
        return {(row["g"], row["v"], row["p"]) for row in lakes.rows(lake, "gold.joined") if row["g"] != "z"}

    matches = {(left, right) for left in (40, 41, 43) for right in (42, 43) if right >= left}
    expected = {("a", 1, 2), ("b", 1, None), ("d", 43, 44)} | {("c", *match) for match in matches}
    assert pairs() == expected
    # As streamed: test_an_event_in_time_stays_beside_a_late_one_of_its_number[of an earlier version]; of one table:
    # tests/spark/test_backfill_steps.py::test_late_events_of_both_sides_of_a_join_are_repaired
    assert run_repair(spark, lake, definition) is not None
    assert pairs() == expected | {("late", 3, None)}
    lakes.assert_balanced(lake, definition)


# Which event a replay marks: tests/unit/test_identity.py::TestSettling::
# test_a_replay_marks_the_event_of_its_table_alone; what it counts: tests/spark/test_lookup_again.py::
# test_without_windows_each_event_is_in_the_result_once
@pytest.mark.long
def test_a_replayed_event_is_looked_up_anew_and_none_of_its_number(spark: SparkSession, lake: Lake) -> None:
    enrich = Enrich("silver.products", on=("p",), columns={"category": "category"}, missing="quarantine")
    select = {"p": "k", "v": "v", "t": "t"}
    source = Union(Table(SHOPS, select=select), Table(WEB, select=select))
    definition = Pipeline(name="looked_up", source=source, event_time="t", steps=(enrich,), sink=Sink("gold.looked_up"))
    definition = lakes.one_file_a_batch(definition)
    for table, key in ((SHOPS, "x"), (WEB, "a")):
        bronze = lakes.Bronze(lake, table, COLUMNS, "t")
        append_left(bronze, (key, 1), ("a", 2), ("a", 3))
    products(lake, {"a": "tea"})

    def change(point: str, batch_id: int) -> None:
        if (point, batch_id) == ("result_committed", 1):
            products(lake, {"a": "coffee", "x": "milk"})

    driver = Driver(spark, lake, (definition,), failpoint=change)
    assert driver.run_until_caught_up(close=False)["looked_up"].error is None

    def categories() -> list[tuple[str, int, str]]:
        return sorted((row["_source_table"], row["v"], row["category"]) for row in lakes.rows(lake, "gold.looked_up"))

    streamed = [(SHOPS, 2, "tea"), (SHOPS, 3, "coffee"), (WEB, 1, "tea"), (WEB, 2, "tea"), (WEB, 3, "coffee")]
    assert categories() == streamed
    (aside,) = lakes.rows(lake, "gold.looked_up__quarantine")
    assert (aside["_source_table"], aside["_event_id"]) == (SHOPS, "e0")
    plan = plan_lookup(lake, definition, Selection())
    assert execute(spark, plan, by="ada").replayed == 1
    target, planned = plan_repair(lake, definition)
    assert repair.execute(spark, target, planned).repaired == 1
    assert categories() == sorted([*streamed, (SHOPS, 1, "milk")])
    # The other one with its id and number is still looked up as its own batch did.
    (same,) = run_backfill(spark, lake, definition, force=True)
    assert same.changed.rows == 0
    lakes.assert_balanced(lake, definition)
