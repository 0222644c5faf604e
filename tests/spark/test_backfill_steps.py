"""Backfills and repairs of each kind of step: joins, `Deduplicate`, sessions, `Enrich`, and none."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.maintenance.retention import cut_log
from spark_jobs.lake.tables.files import MissingFilesError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.audit import execute as audit
from spark_jobs.operations.audit.plan import look, plan_recount
from spark_jobs.recompute.target import BackfillRefusedError, NotComparableError
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Enrich,
    Join,
    Pipeline,
    Select,
    Session,
    Sink,
    Table,
    Watermark,
    Where,
)
from tests.support import lakes
from tests.support.clicks import (
    BEGIN,
    COLUMNS,
    END,
    MINUTE,
    START,
    TUMBLING,
    backfill_in_parts,
    closed_ms,
    copy_of,
    events,
    feed,
    merged,
    pipeline,
    repaired_ids,
    run_backfill,
    run_repair,
    with_duplicates,
)


def test_rows_of_single_events_come_back_and_the_stream_goes_on(spark: SparkSession, lake: Lake) -> None:
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="valid",
            source=Table("bronze.clicks"),
            event_time="t",
            steps=(Where("v >= 0"), Select({"w": "v * 2"})),
            sink=Sink("gold.valid"),
        )
    )
    batches = events(2, batches=3)
    bronze = feed(lake, batches[:2])
    lakes.run(spark, lake, definition)
    before = lakes.comparable(lakes.rows(lake, "gold.valid"))
    open_table(lake, "gold.valid").delete("v = 50")
    # What the stream has not read yet it will write itself.
    bronze.append(batches[2])
    (done,) = run_backfill(spark, lake, definition, force=True)
    assert (done.changed.updated, done.changed.deleted) == (0, 0)
    assert lakes.comparable(lakes.rows(lake, "gold.valid")) == before
    lakes.run(spark, lake, definition)
    kept = sorted(row["v"] for batch in batches for row in batch if row["v"] >= 0)
    assert sorted(row["v"] for row in lakes.rows(lake, "gold.valid")) == kept


PAID = {"k": pa.string(), "p": pa.int64(), "u": lakes.TIMESTAMP}


def both_sides(seed: int, batches: int = 7, size: int = 20) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Batches of two disordered streams, a fifth of each late by up to an hour."""
    chance, made = random.Random(seed), []

    def moment(batch: int) -> datetime:
        minutes = batch * 20 + chance.uniform(0, 20) - chance.choice([0, 0, 0, 0, 40])
        return lakes.at(START + round(minutes * MINUTE))

    for batch in range(batches):
        keys = [*"abcdefgh", None]
        left = [{"k": chance.choice(keys), "v": 1, "d": 0.5, "t": moment(batch)} for _ in range(size)]
        right = [{"k": chance.choice(keys), "p": 1, "u": moment(batch)} for _ in range(size)]
        made.append((left, right))
    return made


def in_four(
    batches: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]],
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """The same events of both sides in four batches."""
    left, right = ([batch[side] for batch in batches] for side in (0, 1))
    return zip(merged(left, *IN_FOUR), merged(right, *IN_FOUR), strict=True)


IN_FOUR = (2, 1, 2, 2)
"""How seven batches become four; an event can be late from the third one on."""
WITHIN, BEFORE = 10, 4


def joined(how: str) -> Pipeline:
    bounds = {"within": f"{WITHIN} minutes", "before": f"{BEFORE} minutes"}
    return lakes.one_file_a_batch(
        Pipeline(
            name="paid",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay="3 minutes"),
            steps=(Join(Table("bronze.paid"), on=("k",), event_time="u", how=how, **bounds),),
            sink=Sink("gold.paid"),
        )
    )


@pytest.fixture(scope="module")
def streamed_join(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Lake, Pipeline]:
    """A lake with a join of this kind; copied, never changed."""
    lake, definition = Lake(str(tmp_path_factory.mktemp("join"))).ensure_exists(), joined(request.param)
    clicks = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    paid = lakes.Bronze(lake, "bronze.paid", PAID, "u")
    for left, right in in_four(both_sides(4)):
        clicks.append(left, ids=[f"l{clicks._next + i}" for i in range(len(left))])
        paid.append(right, ids=[f"r{paid._next + i}" for i in range(len(right))])
    lakes.run(spark, lake, definition)
    return lake, definition


def unchangeable_ms(lake: Lake, definition: Pipeline) -> int:
    """Before it lie the rows that nothing can change any more, and that no event can which is open itself."""
    return closed_ms(lake, definition) - 2 * WITHIN * MINUTE


def pairs_by_duckdb(lake: Lake, definition: Pipeline) -> list[str]:
    """The pairs of all events of both sides."""
    (step,) = definition.stateful_steps
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in ("clicks", "paid"):
            connection.register(name, open_table(lake, f"bronze.{name}").to_pyarrow_dataset())
        found = connection.execute(
            f"""
            SELECT c._event_id, p._event_id
            FROM clicks c {"INNER" if step.how == "inner" else "FULL OUTER"} JOIN paid p ON c.k = p.k
            AND u >= t - INTERVAL {BEFORE} MINUTE AND u <= t + INTERVAL {WITHIN} MINUTE
            WHERE epoch_ms(coalesce(t, u)) < {unchangeable_ms(lake, definition)}
            """
        ).fetchall()
    return sorted(map(repr, found))


def pairs(lake: Lake, definition: Pipeline) -> list[str]:
    rows = [(row["_event_id"], row["_other_event_id"], row["t"] or row["u"]) for row in lakes.rows(lake, "gold.paid")]
    return sorted(repr(row[:2]) for row in rows if lakes.ms(row[2]) < unchangeable_ms(lake, definition))


# A full join has what each of the others has, and more.
@pytest.mark.parametrize("streamed_join", [pytest.param("inner", marks=pytest.mark.long), "full"], indirect=True)
def test_late_events_of_both_sides_of_a_join_are_repaired(
    spark: SparkSession, streamed_join: tuple[Lake, Pipeline], tmp_path: Path
) -> None:
    lake, definition = copy_of(streamed_join[0], tmp_path / "copy"), streamed_join[1]
    expected = pairs_by_duckdb(lake, definition)
    assert pairs(lake, definition) != expected
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0

    assert {row["_side"] for row in lakes.rows(lake, "gold.paid__late")} == {"left", "right"}
    assert run_repair(spark, lake, definition) is not None
    assert pairs(lake, definition) == expected
    lakes.assert_balanced(lake, definition)


# What is computed as streamed, and what is repaired: test_late_events_of_both_sides_of_a_join_are_repaired. That a
# backfill takes out again what was repaired: tests/spark/test_identity.py::
# test_two_late_events_of_one_number_are_repaired_and_given_back
@pytest.mark.long
@pytest.mark.parametrize("streamed_join", ["full"], indirect=True)
def test_a_repaired_join_is_given_back_and_computed_in_parts(
    spark: SparkSession, streamed_join: tuple[Lake, Pipeline], tmp_path: Path
) -> None:
    lake, definition = copy_of(streamed_join[0], tmp_path / "copy"), streamed_join[1]

    def found() -> list[str]:
        return pairs(lake, definition)

    streamed, done = found(), run_repair(spark, lake, definition)
    assert done is not None
    expected = found()
    (undone,) = run_backfill(spark, lake, definition, mode="as-streamed")
    assert undone.taken_out == done.repaired
    assert found() == streamed
    backfill_in_parts(spark, lake, definition, (31, 74), random.Random(5))
    assert found() == expected
    lakes.assert_balanced(lake, definition)


# Of windows: tests/spark/test_backfill.py::test_an_interrupted_backfill_goes_on_with_the_slices_that_are_left
@pytest.mark.long
@pytest.mark.parametrize("streamed_join", ["full"], indirect=True)
def test_any_split_of_a_range_gives_the_same_pairs(
    spark: SparkSession, streamed_join: tuple[Lake, Pipeline], tmp_path: Path
) -> None:
    streamed, definition = streamed_join
    chance, found, repaired_late = random.Random(5), [], []
    for number, cuts in enumerate((0, 3)):
        lake = copy_of(streamed, tmp_path / str(number))
        backfill_in_parts(spark, lake, definition, (chance.uniform(-20, 110) for _ in range(cuts)), chance)
        assert pairs(lake, definition) == pairs_by_duckdb(lake, definition)
        lakes.assert_balanced(lake, definition)
        found.append(lakes.comparable(lakes.rows(lake, "gold.paid")))
        # An event whose pairs lie on both sides of a cut is repaired by neither part: a repair finds nothing to change.
        run_repair(spark, lake, definition)
        assert lakes.comparable(lakes.rows(lake, "gold.paid")) == found[-1]
        repaired_late.append(repaired_ids(lake, "gold.paid"))
    assert found[0] == found[1]
    assert repaired_late[0] == repaired_late[1]
    assert found[0] != lakes.comparable(lakes.rows(streamed, "gold.paid"))


# tests/spark/test_deduplicate.py::test_batches_and_their_watermarks_tell_what_was_a_duplicate
@pytest.mark.long
def test_late_events_come_in_where_no_event_of_their_key_has(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
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
    feed(lake, with_duplicates(5))
    lakes.run(spark, lake, definition)
    closed = closed_ms(lake, definition) - 60 * MINUTE

    def found(here: Lake) -> list[tuple[Any, ...]]:
        return sorted((r["k"], r["_event_id"], r["v"]) for r in lakes.rows(here, "gold.activity"))

    streamed = found(lake)
    every_key = {(f"k{number}") for number in range(120)}
    assert {row[0] for row in streamed if row[0] in every_key} < every_key
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0

    copied = Lake(str(tmp_path / "copy"))
    shutil.copytree(lake.uri, copied.uri)
    done = run_repair(spark, lake, definition)
    assert done is not None
    keys = [row[0] for row in found(lake) if row[0] in every_key]
    assert sorted(keys) == sorted(every_key)
    # What the stream let through is still there, and of the late ones the first that came.
    late = {r["_event_id"]: r for r in lakes.rows(lake, "gold.activity__late")}
    added = set(found(lake)) - set(streamed)
    assert set(streamed) < set(found(lake))
    for key, event_id, _ in added:
        assert event_id == min((i for i, r in late.items() if r["k"] == key), key=lambda i: late[i]["_ingest_seq"])
    assert {r["settled_version"] is None for r in late.values() if lakes.ms(r["t"]) < closed} == {False}
    lakes.assert_balanced(lake, definition)

    for begin, end in pairwise([BEGIN, lakes.at(START), lakes.at(START + 30 * MINUTE), END]):
        run_backfill(spark, copied, definition, begin=begin, end=end)
    assert found(copied) == found(lake)
    lakes.assert_balanced(copied, definition)

    # A row that is gone is let through again; then the stream's own rows.
    open_table(lake, "gold.activity").delete("k = 'k7'")
    (again,) = run_backfill(spark, lake, definition, force=True)
    assert again.changed.inserted == 1
    assert sorted(row[0] for row in found(lake) if row[0] in every_key) == sorted(every_key)
    assert run_repair(spark, copied, definition) is not None
    (undone,) = run_backfill(spark, copied, definition, mode="as-streamed")
    assert undone.taken_out == done.repaired
    assert found(copied) == streamed
    lakes.assert_balanced(copied, definition)


def sessions_by_python(batches: Sequence[Sequence[dict[str, Any]]], gap_ms: int) -> list[tuple[Any, ...]]:
    """The sessions of all events: those that touch are one."""
    found = []
    for key in {event["k"] for batch in batches for event in batch}:
        mine = sorted(
            (lakes.ms(event["t"]), 2 * event["v"])
            for batch in batches
            for event in batch
            if event["k"] == key and event["v"] >= 0
        )
        begin, values = mine[0][0], [mine[0][1]]
        for (before, _), (at, value) in pairwise(mine):
            if at > before + gap_ms:
                found.append((begin, before + gap_ms, key, len(values), sum(values)))
                begin, values = at, []
            values.append(value)
        found.append((begin, mine[-1][0] + gap_ms, key, len(values), sum(values)))
    return sorted(found, key=repr)


GAP = 2
SESSIONS = pipeline(Session(f"{GAP} minutes"))


@pytest.fixture(scope="module")
def streamed_sessions(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Lake, list[list[dict[str, Any]]]]:
    """A lake with the sessions of these events, and the events; copied, never changed."""
    lake = Lake(str(tmp_path_factory.mktemp("sessions"))).ensure_exists()
    batches = merged(events(request.param, 7, size=16, minutes=20), *IN_FOUR)
    feed(lake, batches)
    lakes.run(spark, lake, SESSIONS)
    return lake, batches


def sessions(lake: Lake) -> list[tuple[Any, ...]]:
    rows = lakes.rows(lake, "gold.activity")
    bounds = ("window_start", "window_end")
    return sorted(((*(lakes.ms(r[b]) for b in bounds), r["k"], r["n"], r["total"]) for r in rows), key=repr)


def first_open_ms(lake: Lake, batches: Sequence[Sequence[dict[str, Any]]]) -> int:
    """Where the first session begins that the stream may hold open."""
    closed = closed_ms(lake, SESSIONS)
    return min(row[0] for row in sessions_by_python(batches, GAP * MINUTE) if row[1] > closed)


@pytest.mark.parametrize("streamed_sessions", [3, pytest.param(8, marks=pytest.mark.long)], indirect=True)
def test_late_events_draw_sessions_together(
    spark: SparkSession, streamed_sessions: tuple[Lake, list[list[dict[str, Any]]]], tmp_path: Path
) -> None:
    lake, batches = copy_of(streamed_sessions[0], tmp_path / "lake"), streamed_sessions[1]
    definition, found = SESSIONS, sessions
    closed = closed_ms(lake, definition)
    expected = [row for row in sessions_by_python(batches, GAP * MINUTE) if row[1] <= closed]
    late = lakes.rows(lake, "gold.activity__late")
    assert found(lake) != expected
    # What would be joined to a session that the stream holds open waits until it is closed.
    last_open = first_open_ms(lake, batches)
    waiting = {row["_event_id"] for row in late if lakes.ms(row["t"]) >= last_open}

    # The stream closes a session, and begins another one that touches it: only its batches tell.
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0

    done = run_repair(spark, lake, definition)
    assert done is not None
    assert done.repaired >= len(late) - len(waiting)
    assert [row for row in found(lake) if row[1] < last_open] == [row for row in expected if row[1] < last_open]
    lakes.assert_balanced(lake, definition)


# What is computed as streamed, and what is repaired: test_late_events_draw_sessions_together. That a backfill takes out
# again what was repaired: tests/spark/test_identity.py::test_two_late_events_of_one_number_are_repaired_and_given_back
@pytest.mark.long
@pytest.mark.parametrize("streamed_sessions", [3, 8], indirect=True)
def test_repaired_sessions_are_given_back_and_computed_in_parts(
    spark: SparkSession, streamed_sessions: tuple[Lake, list[list[dict[str, Any]]]], tmp_path: Path
) -> None:
    lake, definition, found = copy_of(streamed_sessions[0], tmp_path / "lake"), SESSIONS, sessions
    late, streamed, copied = lakes.rows(lake, "gold.activity__late"), found(lake), copy_of(lake, tmp_path / "copy")
    done = run_repair(spark, lake, definition)
    assert done is not None

    # Backfills of its parts, in any order, give what the repair gives.
    backfill_in_parts(spark, copied, definition, (7, 31, 55, 81), random.Random(len(late)))
    assert found(copied) == found(lake)
    lakes.assert_balanced(copied, definition)
    assert repaired_ids(copied) == repaired_ids(lake)

    (undone,) = run_backfill(spark, lake, definition, mode="as-streamed")
    assert undone.taken_out == done.repaired
    assert found(lake) == streamed
    lakes.assert_balanced(lake, definition)


# Of windows: tests/spark/test_backfill.py::test_an_interrupted_backfill_goes_on_with_the_slices_that_are_left
@pytest.mark.long
@pytest.mark.parametrize("streamed_sessions", [3], indirect=True)
def test_any_split_of_a_range_gives_the_same_sessions(
    spark: SparkSession, streamed_sessions: tuple[Lake, list[list[dict[str, Any]]]], tmp_path: Path
) -> None:
    streamed, batches = streamed_sessions
    open_ms = first_open_ms(streamed, batches)
    expected = [row for row in sessions_by_python(batches, GAP * MINUTE) if row[1] < open_ms]
    chance, found, repaired_late = random.Random(2), [], []
    for number, cuts in enumerate((0, 3)):
        lake = copy_of(streamed, tmp_path / str(number))
        backfill_in_parts(spark, lake, SESSIONS, (chance.uniform(-20, 120) for _ in range(cuts)), chance)
        assert [row for row in sessions(lake) if row[1] < open_ms] == expected
        lakes.assert_balanced(lake, SESSIONS)
        found.append(lakes.comparable(lakes.rows(lake, "gold.activity"), without=("mean",)))
        repaired_late.append(repaired_ids(lake))
    assert found[0] == found[1]
    assert repaired_late[0] == repaired_late[1]
    assert found[0] != lakes.comparable(lakes.rows(streamed, "gold.activity"), without=("mean",))


CATEGORIES = ({"a": "tea", "b": "tea"}, {"a": "milk", "b": "tea", "c": "milk"}, {"b": "milk", "c": "tea"})


def categories(lake: Lake, version: int) -> None:
    rows = CATEGORIES[version]
    table = pa.table({"k": list(rows), "category": list(rows.values())})
    write_deltalake(lake.table_uri("silver.categories"), table, mode="overwrite")


# Those without a key: tests/spark/test_enrich.py::test_an_event_whose_key_is_missing_ends_as_the_pipeline_says
@pytest.mark.parametrize("missing", ["null", pytest.param("drop", marks=pytest.mark.long)])
def test_events_are_looked_up_in_the_versions_that_the_stream_has_taken(
    spark: SparkSession, lake: Lake, missing: str
) -> None:
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="activity",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay="3 minutes"),
            steps=(
                Enrich("silver.categories", on=("k",), columns={"category": "category"}, missing=missing),
                Aggregate(window=TUMBLING, by=("category",), measures={"n": "count(*)", "total": "sum(v)"}),
            ),
            sink=Sink("gold.activity"),
        )
    )
    batches = events(7, 4, minutes=20)
    feed(lake, batches)
    categories(lake, 0)
    # From the batch after: a version is taken before a batch is read.
    changes = {1: 1, 2: 2}

    def change(point: str, batch_id: int) -> None:
        if point == "result_committed" and batch_id in changes:
            categories(lake, changes.pop(batch_id))

    driver = Driver(spark, lake, (definition,), failpoint=change)
    assert driver.run_until_caught_up(close=False)["activity"].error is None
    assert not changes

    def found() -> list[tuple[Any, ...]]:
        rows = lakes.rows(lake, "gold.activity")
        return sorted((lakes.ms(r["window_start"]), str(r["category"]), r["n"], r["total"]) for r in rows)

    closed = closed_ms(lake, definition)
    expected: dict[tuple[int, str], list[int]] = {}
    for number, batch in enumerate(batches):
        known = CATEGORIES[0 if number <= 1 else 1 if number <= 2 else 2]
        for event in batch:
            start = lakes.ms(event["t"]) // (10 * MINUTE) * (10 * MINUTE)
            category = known.get(event["k"])
            if start + 10 * MINUTE <= closed and (category or missing == "null"):
                expected.setdefault((start, str(category)), []).append(event["v"])
    all_events = sorted((*key, len(values), sum(values)) for key, values in expected.items())

    streamed = found()
    assert streamed != all_events
    # A table that has changed since is of no matter.
    categories(lake, 0)
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0
    assert found() == streamed
    assert run_repair(spark, lake, definition) is not None
    assert found() == all_events
    lakes.assert_balanced(lake, definition)
    # Of the versions only those are needed in which the events of the range were looked up.
    (oldest,) = open_table(lake, "silver.categories", version=0).file_uris()
    Path(oldest.removeprefix("file://")).unlink()
    (same,) = run_backfill(spark, lake, definition, begin=lakes.at(START + 60 * MINUTE), force=True)
    assert same.changed.rows == 0
    assert found() == all_events

    def recounted() -> audit.Audit:
        looked = look(lake, definition)
        planned = plan_recount(lake, definition, None, looked)
        assert not isinstance(planned, audit.Audit)
        return audit.recount(spark, *planned, looked)

    with pytest.raises(MissingFilesError, match=r"table silver\.categories, version 0: 1 data file is gone"):
        run_backfill(spark, lake, definition, force=True)
    assert recounted().refused
    # What maintenance has removed is nobody's fault.
    cut_log(lake, "silver.categories", 1)
    with pytest.raises(NotComparableError, match=r"version 0 of silver\.categories.* is not kept any more.*--from"):
        run_backfill(spark, lake, definition, force=True)
    assert found() == all_events
    told = recounted()
    assert told.sound
    assert "version 0 of silver.categories" in str(told.left_out)
    # Where the whole table is gone, that is somebody's fault again.
    categories_folder = Path(lake.table_path("silver.categories"))
    categories_folder.rename(categories_folder.with_name("moved"))
    # One that was written anew has versions of these numbers, too: they are other ones.
    for number in (2, 1, 0):
        categories(lake, number)
    with pytest.raises(NotComparableError, match=r"silver\.categories, in which .* was removed and made anew since"):
        run_backfill(spark, lake, definition, begin=lakes.at(START + 60 * MINUTE), force=True)
    assert found() == all_events
    told = recounted()
    assert told.sound
    assert told.remedy is None
    assert "was removed and made anew" in str(told.left_out)
    shutil.rmtree(categories_folder)
    with pytest.raises(BackfillRefusedError, match=r"silver\.categories, which it reads, is not in the lake"):
        run_backfill(spark, lake, definition, force=True)
    refused = plan_recount(lake, definition, None, look(lake, definition))
    assert isinstance(refused, audit.Audit)
    assert not refused.sound
