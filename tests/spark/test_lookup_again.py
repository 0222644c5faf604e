"""Events that a lookup had no key for, replayed once the table has it: against plain Python over all events."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.tables import decisions
from spark_jobs.lake.tables.quarantine import QuarantineError, Selection, counted
from spark_jobs.operations.audit import execute as audit
from spark_jobs.operations.audit.plan import look, plan_recount
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.repair import execute as repair
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay.lookup import execute
from spark_jobs.operations.replay.lookup_plan import plan_lookup
from spark_jobs.operations.replay.outcome import LookupOutcome
from spark_jobs.recompute.ranges import EPOCH
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Enrich,
    Hopping,
    Join,
    Late,
    Pipeline,
    Session,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
    Where,
)
from spark_jobs.spec.steps import StepSpec
from tests.spark.test_enrich import COLUMNS, MINUTE, START, products, sales
from tests.support import lakes

GROUPS = {"total": "sum(v)", "n": "count(*)"}
AFTER: dict[str, tuple[StepSpec, ...]] = {
    "stateless": (),
    "deduplicate": (Deduplicate("p", within="60 minutes"),),
    "tumbling": (Aggregate(window=Tumbling("5 minutes"), by=("category",), measures=GROUPS),),
    "hopping": (Aggregate(window=Hopping("10 minutes", "5 minutes"), by=("category",), measures=GROUPS),),
    "session": (Aggregate(window=Session("3 minutes"), by=("category",), measures=GROUPS),),
    "join": (Join(Table("bronze.paid"), on=("p",), event_time="u", how="full", within="3 minutes"),),
    "ranking": (
        Aggregate(window=Tumbling("5 minutes"), by=("category",), measures=GROUPS),
        TopN(1, order_by="total DESC, category"),
    ),
}
MARK = 40 * MINUTE
"""Windows up to here are closed once all was read, less the delay."""


def pipeline(kind: str, *, mode: str = "append") -> Pipeline:
    windowed = kind != "stateless"
    return lakes.one_file_a_batch(
        Pipeline(
            name="by_category",
            source=Table("bronze.sales"),
            event_time="t",
            watermark=Watermark(delay="1 minute") if windowed else None,
            steps=(
                Where("v > 0"),
                Enrich("silver.products", on=("p",), columns={"category": "category"}, missing="quarantine"),
                *AFTER[kind],
            ),
            sink=Sink("gold.by_category", mode=mode),
        )
    )


EVENTS = [
    [
        *((1, "a", 1), (2, "x", 2), (3, "y", 4), (9, "x", 8)),
        *((10, "a", 16), (11, "x", 32), (12, None, 64), (13, "x", -1)),
    ],
    [(24, "b", 128), (25, "x", 256)],
    [
        *((2, "a", 512), (3, "x", 1024)),  # late, for the windows; the second has no key, either
        *((40, "a", 2048), (40, "x", 4096)),  # its window stays open
    ],
    [(41, "a", 8192)],
]
BEFORE, AFTERWARDS = {"a": "tea", "b": "tea"}, {"a": "tea", "b": "tea", "x": "milk"}


def sources(lake: Lake, kind: str) -> list[lakes.Bronze]:
    """All events; for a join those of the other side, too."""
    found = [sales(lake, *EVENTS)]
    if kind == "join":
        found.append(lakes.Bronze(lake, "bronze.paid", {"p": pa.string(), "w": pa.int64(), "u": lakes.TIMESTAMP}, "u"))
        rows = [(2, "a", 1), (3, "x", 2), (10, "x", 3), (26, "x", 4), (30, "z", 5)]
        found[1].append([{"p": p, "w": w, "u": lakes.at(START + m * MINUTE)} for m, p, w in rows])
        found[1].heartbeat(START + 100 * MINUTE)
    return found


def close(bronze: Iterable[lakes.Bronze]) -> None:
    """Moves the watermark past all events; a batch without rows writes what it has closed."""
    for each in bronze:
        each.heartbeat(START + 1000 * MINUTE)


def stream(spark: SparkSession, lake: Lake, definition: Pipeline, *, closed: bool = False) -> None:
    """The stream over all events; from the last batch with some it looks up in a table that has one key more."""
    products(lake, BEFORE)
    bronze = sources(lake, "join" if definition.tables[1:] else "")

    def change(point: str, batch_id: int) -> None:
        if (point, batch_id) == ("result_committed", len(EVENTS) - 2):
            products(lake, AFTERWARDS)

    driver = Driver(spark, lake, (definition,), failpoint=change)
    assert driver.run_until_caught_up(close=False)[definition.name].error is None
    if closed:
        # Not before: a query that starts again, as this one does, has forgotten how far the single inputs were.
        close(bronze)
        lakes.run(spark, lake, definition)


Streamed = Callable[[str], Lake]


@pytest.fixture(scope="module")
def once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lake]:
    """The stream of a kind of pipeline over all events, computed once; copied, never changed."""

    @cache
    def made(kind: str) -> Lake:
        lake = Lake(str(tmp_path_factory.mktemp(kind))).ensure_exists()
        stream(spark, lake, pipeline(kind))
        return lake

    return made


@pytest.fixture
def streamed(once: Callable[[str], Lake], tmp_path: Path) -> Streamed:
    """Gives a lake of the test's own in which the stream of a kind of pipeline has read all events."""

    def copied(kind: str) -> Lake:
        shutil.copytree(once(kind).uri, tmp_path / "streamed")
        return Lake(str(tmp_path / "streamed"))

    return copied


def replay(spark: SparkSession, lake: Lake, definition: Pipeline) -> LookupOutcome:
    plan = plan_lookup(lake, definition, Selection())
    assert plan.nothing_to_do is None
    done = execute(spark, plan, by="ada", comment="x is milk")
    target, planned = plan_repair(lake, definition)
    if not planned.nothing_to_do:
        repair.execute(spark, target, planned)
    return done


def set_aside(lake: Lake) -> list[int]:
    """What is in the quarantine, less what was replayed."""
    rows = lakes.rows(lake, "gold.by_category__quarantine")
    return sorted(row["v"] for row in rows if row["replayed_batch"] is None)


def content(lake: Lake) -> set[tuple[Any, ...]]:
    """The rows of the result, without when they were written."""
    left_out = {"revision", "revised_at", "final_after", "_ingest_time"}
    return {
        tuple(str(value) for name, value in sorted(row.items()) if name not in left_out)
        for row in lakes.rows(lake, "gold.by_category")
    }


def windows(lake: Lake) -> dict[tuple[int, str], tuple[int, int]]:
    """(minute at which the window starts, category) -> total and count."""
    return {
        ((lakes.ms(row["window_start"]) - START) // MINUTE, row["category"]): (row["total"], row["n"])
        for row in lakes.rows(lake, "gold.by_category")
    }


def grid(size: int, every: int, events: Iterable[tuple[float, str | None, int]]) -> dict[tuple[int, str], Any]:
    """The same in plain Python, for closed windows; the grid begins at 1970, so that one starts at minute 1."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for minute, product, value in events:
        category = AFTERWARDS.get(str(product))
        if value <= 0 or category is None:
            continue
        start = (int(minute) - 1) // every * every + 1
        while start + size > minute:
            if start + size <= 40:
                total, count = found.get((start, category), (0, 0))
                found[start, category] = (total + value, count + 1)
            start -= every
    return found


def everything() -> list[tuple[float, str | None, int]]:
    return [event for batch in EVENTS for event in batch]


def sound(spark: SparkSession, lake: Lake, definition: Pipeline) -> bool:
    """Whether an audit finds nothing: the ledger, and all rows recounted."""
    found = look(lake, definition)
    planned = plan_recount(lake, definition, None, found)
    assert not isinstance(planned, audit.Audit)
    found = audit.recount(spark, *planned, found)
    assert found.rows
    assert found.sound, found
    return True


@pytest.fixture(scope="module")
def twice(
    spark: SparkSession, once: Callable[[str], Lake], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lake, list[LookupOutcome]]:
    """A lake in which two replays by one plan, and a repair, have followed the stateless stream; never changed."""
    definition, folder = pipeline("stateless"), tmp_path_factory.mktemp("twice") / "lake"
    shutil.copytree(once("stateless").uri, folder)
    lake = Lake(str(folder))
    assert set_aside(lake) == [2, 4, 8, 32, 64, 256, 1024, 4096]
    plan = plan_lookup(lake, definition, Selection())
    assert plan.nothing_to_do is None
    replays = [execute(spark, plan, by=name) for name in ("ada", "bob")]
    repair.execute(spark, *plan_repair(lake, definition))
    return lake, replays


def test_without_windows_each_event_is_in_the_result_once(
    spark: SparkSession, twice: tuple[Lake, list[LookupOutcome]]
) -> None:
    (lake, (done, _)), definition = twice, pipeline("stateless")
    assert (done.replayed, done.kept, done.open) == (6, 2, 0)
    assert set_aside(lake) == [4, 64]
    rows = sorted((row["v"], row["category"]) for row in lakes.rows(lake, "gold.by_category"))
    expected = [(v, AFTERWARDS[str(p)]) for _, p, v in everything() if v > 0 and p in AFTERWARDS]
    assert rows == sorted(expected)
    lakes.assert_balanced(lake, definition)
    assert sound(spark, lake, definition)


def test_two_replays_of_the_same_rows_mark_each_once(twice: tuple[Lake, list[LookupOutcome]]) -> None:
    lake, replays = twice
    assert [done.replayed for done in replays] == [6, 0]
    assert len(lakes.rows(lake, "gold.by_category")) == 12
    assert [row["decided_by"] for row in decisions.decisions_of(lake, "by_category")] == ["bob", "ada"]


@pytest.fixture(scope="module")
def replayed_once(
    spark: SparkSession, once: Callable[[str], Lake], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Lake, LookupOutcome]]:
    """The lakes of `once`, in which a replay and a repair have followed; copied, never changed."""

    @cache
    def made(kind: str) -> tuple[Lake, LookupOutcome]:
        folder = tmp_path_factory.mktemp(kind) / "replayed"
        shutil.copytree(once(kind).uri, folder)
        lake = Lake(str(folder))
        return lake, replay(spark, lake, pipeline(kind))

    return made


ReplayedLakes = Callable[[str], tuple[Lake, LookupOutcome]]


@pytest.fixture
def replayed(replayed_once: ReplayedLakes, tmp_path: Path) -> ReplayedLakes:
    """Gives a lake of the test's own after a replay, and what the replay did."""

    def copied(kind: str) -> tuple[Lake, LookupOutcome]:
        lake, done = replayed_once(kind)
        shutil.copytree(lake.uri, tmp_path / "replayed")
        return Lake(str(tmp_path / "replayed")), done

    return copied


@pytest.mark.parametrize(
    "kind",
    [
        "tumbling",
        # Late events of hopping windows: tests/spark/test_bootstrap.py::
        # test_a_history_in_batch_and_a_stream_from_its_cut_count_all_events
        pytest.param("hopping", marks=pytest.mark.long),
    ],
)
def test_in_closed_windows_replayed_events_count_like_late_events(
    spark: SparkSession, replayed: ReplayedLakes, kind: str
) -> None:
    (lake, done), definition = replayed(kind), pipeline(kind)
    # Of the event at minute 40 the window is open in the stream, which has not counted it.
    assert (done.replayed, done.kept, done.open) == (5, 2, 1)
    assert set_aside(lake) == [4, 64, 4096]
    size, every = (5, 5) if kind == "tumbling" else (10, 5)
    assert windows(lake) == grid(size, every, everything())
    # Whether an audit agrees: test_without_windows_each_event_is_in_the_result_once.
    lakes.assert_balanced(lake, definition)


# Once its window is closed it is as one of another closed window:
# test_in_closed_windows_replayed_events_count_like_late_events
@pytest.mark.long
def test_an_event_of_an_open_window_is_replayed_once_that_is_closed(
    spark: SparkSession, replayed: ReplayedLakes
) -> None:
    (lake, _), definition = replayed("tumbling"), pipeline("tumbling")
    close([lakes.Bronze(lake, "bronze.sales", COLUMNS, "t")])
    lakes.run(spark, lake, definition)
    assert replay(spark, lake, definition).replayed == 1
    assert set_aside(lake) == [4, 64]
    assert windows(lake)[36, "milk"] == (4096, 1)
    lakes.assert_balanced(lake, definition)


def test_a_backfill_counts_what_was_replayed_and_as_streamed_does_not(
    spark: SparkSession, once: Callable[[str], Lake], replayed: ReplayedLakes
) -> None:
    (lake, _), definition = replayed("tumbling"), pipeline("tumbling")
    before, counted_after_all = windows(once("tumbling")), windows(lake)
    assert counted_after_all != before

    def backfilled(mode: Any) -> int:
        target, plan = plan_backfill(lake, definition, EPOCH, lakes.at(START + 1000 * MINUTE), mode=mode, force=True)
        return sum(done.changed.rows for done in backfill.execute(spark, target, plan))

    assert backfilled("as-streamed") > 0
    assert windows(lake) == before
    lakes.assert_balanced(lake, definition)
    assert backfilled("corrected") > 0
    assert windows(lake) == counted_after_all
    lakes.assert_balanced(lake, definition)


# Where nothing was marked, the next one is the first: test_in_closed_windows_replayed_events_count_like_late_events.
# Before they are marked a repair of late events dies at the same step:
# tests/spark/test_backfill.py::test_a_repair_that_is_cut_off_is_finished_by_the_next
@pytest.mark.long
@pytest.mark.parametrize("point", ["mark as replayed", "mark as repaired"])
def test_a_replay_that_dies_anywhere_is_ended_by_the_next(
    spark: SparkSession, streamed: Streamed, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    lake, definition = streamed("tumbling"), pipeline("tumbling")

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    if point == "mark as replayed":
        monkeypatch.setattr("spark_jobs.operations.replay.lookup.mark_replayed", dies)
    else:
        # The result has the events, and nothing says so yet.
        monkeypatch.setattr("spark_jobs.recompute.target.mark_repaired", dies)
    with pytest.raises(KeyboardInterrupt):
        replay(spark, lake, definition)
    monkeypatch.undo()
    if point == "mark as repaired":
        # Neither a repair nor an audit in between takes them for wrong.
        assert sound(spark, lake, definition)
        again = plan_lookup(lake, definition, Selection())
        assert (again.found.rows, again.uncounted) == (3, 5)
        target, planned = plan_repair(lake, definition)
        repair.execute(spark, target, planned)
    else:
        replay(spark, lake, definition)
    assert windows(lake) == grid(5, 5, everything())
    assert set_aside(lake) == [4, 64, 4096]
    lakes.assert_balanced(lake, definition)


# Sessions in batch: tests/spark/test_backfill_steps.py::test_late_events_draw_sessions_together; without a table of
# late events: tests/spark/test_late_split.py::test_a_dropped_late_event_is_counted_and_not_kept
@pytest.mark.long
def test_sessions_that_drop_late_events_are_backfilled_without_a_replay(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline("session")
    definition = definition.model_copy(update={"watermark": Watermark(delay="1 minute", late=Late.DROP)})
    products(lake, BEFORE)
    close([sales(lake, *EVENTS[:2])])
    lakes.run(spark, lake, definition)
    streamed = windows(lake)
    target, plan = plan_backfill(lake, definition, EPOCH, lakes.at(START + 1000 * MINUTE), force=True)
    assert [done.changed.rows for done in backfill.execute(spark, target, plan)] == [0]
    assert windows(lake) == streamed != {}


# Of repaired events: tests/spark/test_backfill.py::test_a_backfill_keeps_what_another_run_has_counted_meanwhile
@pytest.mark.long
def test_a_backfill_planned_before_a_replay_keeps_what_it_has_counted(spark: SparkSession, streamed: Streamed) -> None:
    lake, definition = streamed("tumbling"), pipeline("tumbling")
    target, plan = plan_backfill(lake, definition, EPOCH, lakes.at(START + 1000 * MINUTE), force=True)
    replay(spark, lake, definition)
    assert [done.changed.rows for done in backfill.execute(spark, target, plan)] == [0]
    assert windows(lake) == grid(5, 5, everything())
    lakes.assert_balanced(lake, definition)
    assert sound(spark, lake, definition)


def test_an_event_leaves_the_quarantine_only_with_all_its_keys(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline("stateless")
    taxes = Enrich("silver.taxes", on=("category",), columns={"tax": "tax"}, missing="drop")
    definition = definition.model_copy(update={"steps": (definition.steps[1], taxes, Where("tax < 50"))})

    def rates(**of: int) -> None:
        rows = pa.table({"category": list(of), "tax": list(of.values())})
        write_deltalake(lake.table_uri("silver.taxes"), rows, mode="overwrite")

    def change(point: str, batch_id: int) -> None:
        if (point, batch_id) == ("result_committed", 0):
            products(lake, {"a": "tea", "x": "milk", "z": "gin"})
            rates(tea=7, gin=60)

    products(lake, {"a": "tea"})
    rates(tea=7)
    sales(lake, [(1, "a", 1), (2, "x", 2), (3, "z", 4)], [(4, "a", 8)])
    driver = Driver(spark, lake, (definition,), failpoint=change)
    assert driver.run_until_caught_up(close=False)["by_category"].error is None
    assert set_aside(lake) == [2, 4]

    done = replay(spark, lake, definition)
    assert (done.replayed, done.kept) == (1, 1)
    # Of the other one the second table has no key yet.
    assert set_aside(lake) == [2]
    assert sorted(row["v"] for row in lakes.rows(lake, "gold.by_category")) == [1, 8]
    assert plan_lookup(lake, definition, Selection()).uncounted == 0
    lakes.assert_balanced(lake, definition)


def sessions(events: Iterable[tuple[float, str | None, int]]) -> dict[tuple[int, str], tuple[int, int]]:
    """As `windows`, in plain Python: a session goes on while the next event comes within three minutes."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    begun: dict[str, tuple[int, float]] = {}
    for minute, product, value in sorted(events, key=lambda event: event[0]):
        category = AFTERWARDS.get(str(product))
        if value <= 0 or category is None:
            continue
        start, newest = begun.get(category, (0, -100.0))
        if minute - newest > 3:
            start = int(minute)
        begun[category] = (start, minute)
        total, count = found.get((start, category), (0, 0))
        found[start, category] = (total + value, count + 1)
    return found


# In windows: test_in_closed_windows_replayed_events_count_like_late_events. How late events move bounds of sessions:
# tests/spark/test_backfill_steps.py::test_late_events_draw_sessions_together
@pytest.mark.long
def test_sessions_are_what_they_would_have_been_with_the_key(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline("session")
    stream(spark, lake, definition, closed=True)
    replay(spark, lake, definition)
    assert set_aside(lake) == [4, 64]
    assert windows(lake) == sessions(everything())
    lakes.assert_balanced(lake, definition)


# In windows: test_in_closed_windows_replayed_events_count_like_late_events. What other steps make of late events:
# tests/spark/test_backfill_steps.py::test_late_events_of_both_sides_of_a_join_are_repaired,
# tests/spark/test_deduplicate.py::test_batches_and_their_watermarks_tell_what_was_a_duplicate and
# tests/spark/test_audit.py::test_what_stream_and_backfill_have_written_is_sound
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("session", "append"),
        ("ranking", "update"),
        ("deduplicate", "append"),
        ("join", "append"),
        ("ranking", "append"),
    ],
)
def test_every_kind_of_step_gives_what_it_would_have_given_with_the_key(
    spark: SparkSession, lake: Lake, kind: str, mode: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    definition = pipeline(kind, mode=mode)
    if mode == "update":
        watermark = Watermark(delay="1 minute", late=Late.UPDATE, grace="1 minute")
        definition = definition.model_copy(update={"watermark": watermark})
    stream(spark, lake, definition, closed=True)
    replay(spark, lake, definition)
    assert set_aside(lake) == [4, 64]
    lakes.assert_balanced(lake, definition)
    assert sound(spark, lake, definition)

    # The same events where the table had the key from the start, and the late ones counted.
    other = Lake(str(tmp_path_factory.mktemp("other")))
    products(other, AFTERWARDS)
    close(sources(other, kind))
    lakes.run(spark, other, definition)
    target, planned = plan_repair(other, definition)
    if not planned.nothing_to_do:
        repair.execute(spark, target, planned)
    assert content(lake) == content(other)


def test_what_cannot_be_found_yet_is_said_before_anything_is_done(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline("stateless")
    products(lake, BEFORE)
    sales(lake, everything())
    lakes.run(spark, lake, definition)
    # No batch has taken another version: there is nothing to find.
    plan = plan_lookup(lake, definition, Selection())
    assert plan.nothing_to_do is not None
    products(lake, AFTERWARDS)
    plan = plan_lookup(lake, definition, Selection())
    assert plan.nothing_to_do is not None
    assert plan.newer == {"silver.products": 1}
    (found,) = counted(lake, definition, Selection())
    assert (found.reason, found.rows) == ("no such key", 8)
    with pytest.raises(QuarantineError, match=r"got none.* There is: `no such key`"):
        plan_lookup(lake, definition, Selection(reasons=("future",)))
    with pytest.raises(QuarantineError, match="--earlier-epochs is for ingests"):
        plan_lookup(lake, definition, Selection(earlier_epochs=True))
