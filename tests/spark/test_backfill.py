"""Results computed again in batch: against the table that the stream wrote, and against DuckDB over all events."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from spark_jobs.commits.changes import Revise
from spark_jobs.commits.large import LargeCommits
from spark_jobs.commits.small import SmallCommits
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import repaired
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.commit_records.basis import OutdatedPlanError
from spark_jobs.lake.errors import ConflictError
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill import plan as backfill_plan
from spark_jobs.operations.backfill.plan import Slice, plan_backfill
from spark_jobs.recompute import target as recomputed
from spark_jobs.recompute.differences import TableComparison
from spark_jobs.recompute.revising import RevisionOutcome
from tests.support import lakes
from tests.support.clicks import (
    BEGIN,
    COLUMNS,
    END,
    HOPPING,
    KINDS,
    MINUTE,
    RANKING,
    START,
    TABLES,
    TUMBLING,
    are_repaired,
    assert_same,
    by_duckdb,
    closed_ms,
    contents,
    events,
    feed,
    pipeline,
    run_backfill,
    run_repair,
    table,
)


# Each part is asked below, and all of it of the shop's pipelines:
# tests/spark/test_shop_pipelines.py::test_repairs_and_backfills_of_shop_pipelines_count_all_events
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_repair_and_backfill_count_every_event_unless_as_streamed(spark: SparkSession, lake: Lake, kind: str) -> None:
    definition = KINDS[kind]
    window, top = definition.stateful_steps[0].window, definition.top_n is not None
    feed(lake, events(7, 6, minutes=20))
    lakes.run(spark, lake, definition)
    closed = closed_ms(lake, definition)
    streamed = [row for row in table(lake) if row[0] + window.size // timedelta(milliseconds=1) <= closed]
    opened = [row for row in table(lake) if row not in streamed]
    expected = by_duckdb(lake, window, closed_ms=closed, top=top)
    assert streamed != expected, "late events matter"
    assert are_repaired(lake) == {False}

    # Nothing but late events distinguishes the stream from the batch.
    assert [done.changed.rows for done in run_backfill(spark, lake, definition, mode="as-streamed", force=True)] == [0]

    done = run_repair(spark, lake, definition)
    assert done is not None
    assert done.changed.rows
    assert_same(table(lake), expected + opened)
    assert are_repaired(lake) == {True}
    lakes.assert_balanced(lake, definition)
    assert run_repair(spark, lake, definition) is None

    (undone,) = run_backfill(spark, lake, definition, mode="as-streamed")
    assert undone.taken_out == done.repaired
    assert_same(table(lake), streamed + opened)
    assert are_repaired(lake) == {False}
    lakes.assert_balanced(lake, definition)

    (again,) = run_backfill(spark, lake, definition)
    assert again.repaired == done.repaired
    assert_same(table(lake), expected + opened)
    assert run_backfill(spark, lake, definition) == []
    lakes.assert_balanced(lake, definition)


# Slices that follow one another are parts: test_an_interrupted_backfill_goes_on_with_the_slices_that_are_left
@pytest.mark.long
def test_any_split_of_a_range_gives_the_same_tables(spark: SparkSession, streamed: Lake, tmp_path: Path) -> None:
    chance, found = random.Random(3), []
    for number, cuts in enumerate((0, 3)):
        shutil.copytree(streamed.uri, tmp_path / str(number))
        lake = Lake(str(tmp_path / str(number))).ensure_exists()
        edges = [START - 60 * MINUTE, *sorted(START + chance.randrange(90 * MINUTE) for _ in range(cuts)), None]
        for begin, end in pairwise(edges):
            run_backfill(spark, lake, RANKING, begin=lakes.at(begin), end=END if end is None else lakes.at(end))
        found.append(contents(lake))
        # An event whose windows lie on both sides of an edge is left for the repair, which finds nothing to change.
        if (done := run_repair(spark, lake, RANKING)) is not None:
            assert done.changed.rows == 0
        assert are_repaired(lake) == {True}
        lakes.assert_balanced(lake, RANKING)
    assert found[0] == found[1]
    assert found[0] != contents(streamed)


# What has not marked the late events is finished in test_where_another_writer_is_always_faster_both_are_named; before
# the result nothing is done.
@pytest.mark.long
@pytest.mark.parametrize("point", ["before the result", "before the late events are marked"])
def test_a_repair_that_is_cut_off_is_finished_by_the_next(
    spark: SparkSession, copy: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    closed, size = closed_ms(copy, RANKING), TUMBLING.size // timedelta(milliseconds=1)
    opened = [row for row in table(copy) if row[0] + size > closed]

    def cut(*_: Any, **__: Any) -> None:
        raise RuntimeError("cut off")

    if point == "before the result":
        monkeypatch.setattr(TableComparison, "results", cut)
    else:
        monkeypatch.setattr(recomputed, "mark_repaired", cut)
    with pytest.raises(RuntimeError, match="cut off"):
        run_repair(spark, copy, RANKING)
    monkeypatch.undo()
    assert are_repaired(copy) == {False}
    assert run_repair(spark, copy, RANKING) is not None
    assert_same(table(copy), by_duckdb(copy, TUMBLING, closed_ms=closed, top=True) + opened)
    assert are_repaired(copy) == {True}
    lakes.assert_balanced(copy, RANKING)


# After the result, before the late events are marked: test_where_another_writer_is_always_faster_both_are_named
@pytest.mark.long
@pytest.mark.parametrize("point", ["before the groups", "before the result"])
def test_an_as_streamed_backfill_that_is_cut_off_is_finished_by_the_next(
    spark: SparkSession, copy: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def values() -> dict[str, list[tuple[Any, ...]]]:
        columns = ("mean", "revision", "revised_at")
        return {name: lakes.comparable(lakes.rows(copy, name), without=columns) for name in TABLES}

    streamed = values()
    run_repair(spark, copy, RANKING)
    corrected = values()

    def cut(*_: Any, **__: Any) -> None:
        raise RuntimeError("cut off")

    place = (backfill, "revise_tables") if point == "before the groups" else (TableComparison, "results")
    monkeypatch.setattr(*place, cut)
    with pytest.raises(RuntimeError, match="cut off"):
        run_backfill(spark, copy, RANKING, mode="as-streamed")
    monkeypatch.undo()
    # A repair may be the next as well: whatever is not in the results for certain must be open to it.
    assert are_repaired(copy) == {False}

    assert run_backfill(spark, copy, RANKING, mode="as-streamed") != []
    assert values() == streamed
    lakes.assert_balanced(copy, RANKING)
    run_repair(spark, copy, RANKING)
    assert values() == corrected
    assert are_repaired(copy) == {True}


def test_where_another_writer_is_always_faster_both_are_named(
    spark: SparkSession, copy: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, closed, size = contents(copy), closed_ms(copy, RANKING), TUMBLING.size // timedelta(milliseconds=1)
    opened = [row for row in table(copy) if row[0] + size > closed]
    target, plan = plan_backfill(copy, RANKING, BEGIN, END)

    def refused(*_: Any, **__: Any) -> None:
        raise CommitFailedError("Transaction failed: a concurrent transaction deleted data this operation read")

    with monkeypatch.context() as patched:
        patched.setattr(SmallCommits, "commit", refused)
        with pytest.raises(ConflictError, match=rf"{plan.run}.*the stream of `activity`, batch 5 .*same command again"):
            backfill.execute(spark, target, plan)
    assert contents(copy) == before
    assert are_repaired(copy) == {False}

    with monkeypatch.context() as patched:
        patched.setattr(repaired, "_update", refused)
        with pytest.raises(ConflictError, match=r"gold\.activity__late.*the stream of `activity`.*not marked yet"):
            backfill.execute(spark, target, plan)
    assert contents(copy) != before
    assert are_repaired(copy) == {False}
    # What it has not marked the next run marks.
    assert run_repair(spark, copy, RANKING) is not None
    assert_same(table(copy), by_duckdb(copy, TUMBLING, closed_ms=closed, top=True) + opened)
    assert are_repaired(copy) == {True}
    lakes.assert_balanced(copy, RANKING)


def test_a_stream_goes_on_after_a_repair_and_the_next_one_counts_the_rest(spark: SparkSession, lake: Lake) -> None:
    definition, batches = KINDS["hopping"], events(5, 4, minutes=20)
    bronze = feed(lake, batches[:3])
    lakes.run(spark, lake, definition)
    first = run_repair(spark, lake, definition)
    bronze.append(batches[3])
    lakes.run(spark, lake, definition)
    lakes.assert_balanced(lake, definition)
    second = run_repair(spark, lake, definition)
    assert first is not None
    assert second is not None
    assert first.repaired + second.repaired == len(lakes.rows(lake, "gold.activity__late"))
    assert_same(table(lake), by_duckdb(lake, HOPPING, closed_ms=closed_ms(lake, definition)))
    lakes.assert_balanced(lake, definition)


# A large commit is refused by a newer one, too:
# tests/spark/test_commits.py::test_a_large_upsert_is_tried_again_where_the_table_changed_meanwhile
@pytest.mark.parametrize(
    "large", [pytest.param(False, id="few rows"), pytest.param(True, id="many rows", marks=pytest.mark.long)]
)
def test_of_two_runs_over_the_same_rows_the_second_has_nothing_to_change(
    spark: SparkSession, windows: Lake, large: bool
) -> None:
    lake, definition = windows, pipeline()
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t", len(lakes.rows(lake, "bronze.clicks")))
    target, plan = plan_backfill(lake, definition, BEGIN, END)
    backend = LargeCommits if large else SmallCommits
    commit, done = backend.commit, []

    def after_the_repair(*arguments: Any) -> None:
        """Both have found what differs when the first one commits, which counts an event more that came late since."""
        if not done:
            done.append(None)
            bronze.append([{"k": "a", "v": 1000, "d": 1.0, "t": lakes.at(START + 11 * MINUTE)}])
            lakes.run(spark, lake, definition)
            done[0] = run_repair(spark, lake, definition)
        commit(*arguments)

    with patch.object(Revise, "few", not large), patch.object(backend, "commit", after_the_repair):
        (second,) = backfill.execute(spark, target, plan)
    assert done[0].changed.rows > 0
    assert second.changed.rows == 0
    closed = closed_ms(lake, definition)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed))
    assert are_repaired(lake) == {True}
    lakes.assert_balanced(lake, definition)


# While it commits: test_of_two_runs_over_the_same_rows_the_second_has_nothing_to_change[few rows]
@pytest.mark.long
def test_a_backfill_keeps_what_another_run_has_counted_meanwhile(spark: SparkSession, windows: Lake) -> None:
    lake, definition = windows, pipeline()
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t", len(lakes.rows(lake, "bronze.clicks")))
    target, plan = plan_backfill(lake, definition, BEGIN, END)
    # An event comes late and is repaired; the plan knows an older version of bronze.
    bronze.append([{"k": "a", "v": 1000, "d": 1.0, "t": lakes.at(START + 11 * MINUTE)}])
    lakes.run(spark, lake, definition)
    assert run_repair(spark, lake, definition) is not None
    backfill.execute(spark, target, plan)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed_ms(lake, definition)))
    assert are_repaired(lake) == {True}
    lakes.assert_balanced(lake, definition)


# tests/unit/test_repair_marks.py::test_a_slow_run_marks_nothing_that_was_taken_out_since
@pytest.mark.long
def test_a_slow_repair_marks_nothing_that_a_backfill_took_out_since(
    spark: SparkSession, windows: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, definition = windows, pipeline()
    before, undone = table(lake), []

    def after_a_backfill(*arguments: Any, **named: Any) -> None:
        """What the repair has counted is taken out again before it marks that."""
        if not undone:
            undone.append(None)
            undone[0] = run_backfill(spark, lake, definition, mode="as-streamed")
        repaired.mark_repaired(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(recomputed, "mark_repaired", after_a_backfill)
        with pytest.raises(OutdatedPlanError, match=r"--as-streamed has taken.*run the same command again"):
            run_repair(spark, lake, definition)
    assert sum(done.changed.rows for done in undone[0]) > 0
    assert_same(table(lake), before)
    assert are_repaired(lake) == {False}
    lakes.assert_balanced(lake, definition)


# What one that changed everything leaves: test_where_another_writer_is_always_faster_both_are_named
@pytest.mark.long
def test_a_repair_that_was_cut_off_before_it_changed_anything_is_finished(spark: SparkSession, windows: Lake) -> None:
    lake, definition = windows, pipeline()
    assert run_repair(spark, lake, definition) is not None
    target, _ = plan_backfill(lake, definition, BEGIN, END, mode="as-streamed")
    known = target.take_out()
    assert known is not None
    target.mark_repaired(known.events, None)
    finished = run_repair(spark, lake, definition)
    assert finished is not None
    assert (finished.changed.rows, are_repaired(lake)) == (0, {True})
    lakes.assert_balanced(lake, definition)


def test_a_backfill_that_was_planned_before_a_reset_writes_nothing(spark: SparkSession, windows: Lake) -> None:
    lake, definition = windows, pipeline()
    target, plan = plan_backfill(lake, definition, BEGIN, END, force=True)
    meanwhile, commit = [], LargeCommits.commit

    def after_a_reset(*arguments: Any) -> None:
        """All that was planned was there when the commit began."""
        if not meanwhile:
            meanwhile.append(reset(lake, definition, empty_tables=True))
        commit(*arguments)

    # Late events differ, so that something has to be written; here by Spark.
    with (
        patch.object(Revise, "few", False),
        patch.object(LargeCommits, "commit", after_a_reset),
        pytest.raises(OutdatedPlanError, match=r"what was planned does not hold any more.*Run the same command again"),
    ):
        backfill.execute(spark, target, plan)
    assert meanwhile
    assert lakes.rows(lake, "gold.activity") == []
    # Nor what was planned in the epoch before and begins only now.
    with pytest.raises(OutdatedPlanError, match=r"a reset or a rebuild has taken gold\.activity since"):
        backfill.execute(spark, target, plan)
    assert lakes.rows(lake, "gold.activity") == []


def test_an_interrupted_backfill_goes_on_with_the_slices_that_are_left(
    spark: SparkSession, windows: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, definition = windows, pipeline()
    _, whole = plan_backfill(lake, definition, BEGIN, END)
    monkeypatch.setattr(backfill_plan, "_BYTES_A_SLICE", sum(read.bytes for read in whole.reads) // 8)
    target, plan = plan_backfill(lake, definition, lakes.at(START), lakes.at(START + 120 * MINUTE))
    assert len(plan.slices) > 2

    def stop(part: Slice, done: RevisionOutcome | None) -> None:
        if done is not None and part.number == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill.execute(spark, target, plan, on_progress=stop)
    lakes.assert_balanced(lake, definition)
    _, rest = plan_backfill(lake, definition, lakes.at(START), lakes.at(START + 120 * MINUTE))
    left = [part.number for part in rest.slices if not part.nothing_to_do]
    # An event with windows in two slices is left to the next run over both.
    assert any(number > 0 for number in left)

    run_backfill(spark, lake, definition)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed_ms(lake, definition)))
    lakes.assert_balanced(lake, definition)
