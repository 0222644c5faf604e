"""A history computed in batch, with the stream going on from there: against DuckDB over all events."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver, Outcome
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import swapping
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import current_epoch, history_cut
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.checkpoints.swapping import built_beside, remove_built
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.lake.commit_records.basis import OutdatedPlanError
from spark_jobs.lake.commit_records.revisions import revisions
from spark_jobs.lake.errors import CutNotReachedError
from spark_jobs.operations.audit import execute as audit
from spark_jobs.operations.audit.plan import look, plan_recount
from spark_jobs.operations.bootstrap import execute as bootstrap
from spark_jobs.operations.bootstrap.plan import BootstrapRefusedError, plan_bootstrap
from spark_jobs.operations.rebuild import execute as rebuild
from spark_jobs.operations.rebuild.plan import plan_rebuild, unfinished
from spark_jobs.spec import Hopping, Pipeline, Session, Tumbling
from tests.support import lakes
from tests.support.clicks import (
    HOPPING,
    MEASURES,
    MINUTE,
    assert_same,
    by_duckdb,
    closed_ms,
    events,
    feed,
    pipeline,
    run_backfill,
    run_repair,
    table,
)

UPDATED = pipeline(HOPPING, mode="update")


def a_driver(spark: SparkSession, lake: Lake, definition: Pipeline, **more: Any) -> Driver:
    return Driver(spark, lake, [definition], compute_history=bootstrap.compute_history, **more)


def run(spark: SparkSession, lake: Lake, definition: Pipeline, **more: Any) -> Driver:
    driver = a_driver(spark, lake, definition, **more)
    assert driver.run_until_caught_up(close=False) == {definition.name: Outcome(definition.name)}
    return driver


def expected(lake: Lake, definition: Pipeline) -> list[tuple[Any, ...]]:
    """All rows that the table must have when every late event is counted: open ones, too, where they are updated."""
    window = definition.stateful_steps[0].window
    assert isinstance(window, Tumbling | Hopping)
    closed = closed_ms(lake, definition) if definition.sink.mode == "append" else 2**50
    return by_duckdb(lake, window, closed_ms=closed, top=definition.top_n is not None)


def assert_sound(spark: SparkSession, lake: Lake, definition: Pipeline) -> None:
    lakes.assert_balanced(lake, definition)
    planned = plan_recount(lake, definition, None, look(lake, definition))
    assert not isinstance(planned, audit.Audit), planned
    found = audit.recount(spark, *planned, look(lake, definition))
    assert found.rows
    assert found.problems == ()


def window_ends_us(late: list[dict[str, Any]]) -> list[int]:
    """When the windows end that late events have missed."""
    return [lakes.ms(missed["window_end"]) * 1000 for row in late for missed in row["missed_windows"]]


# A ranking with a history is swapped in test_a_swap_that_dies_after_any_of_its_steps_is_done_by_the_next.
def test_a_history_in_batch_and_a_stream_from_its_cut_count_all_events(spark: SparkSession, lake: Lake) -> None:
    definition, batches = UPDATED, events(3)
    bronze = feed(lake, batches[:4])
    plan = plan_bootstrap(lake, definition)
    bootstrap.begin(lake, definition, plan)
    # Events come meanwhile: the watermark passes windows beyond the cut, and one for windows on both sides of it
    # follows.
    for batch in batches[4:6]:
        bronze.append(batch)
    meanwhile = lakes.at(plan.cut_us // 1000 - 2 * MINUTE)
    bronze.append([{"k": "a", "v": 7, "d": 0.5, "t": meanwhile}])

    def die(reached: str, _: int) -> None:
        if reached == "history_written":
            raise RuntimeError("killed")

    outcomes = a_driver(spark, lake, definition, failpoint=die).run_until_caught_up(close=False)
    assert "killed" in str(outcomes[definition.name].error)
    assert history_cut(lake, current_epoch(lake, definition.name)) is not None
    run(spark, lake, definition, only_history=True)
    assert history_cut(lake, current_epoch(lake, definition.name)) is None
    assert sum(row.terms["history"] for _, row in lakes.ledger(lake, definition)) > 40
    late = lakes.rows(lake, "gold.activity__late")
    assert min(row["_ingest_seq"] for row in late) >= sum(map(len, batches[:4])), "in whatever order it is read"
    assert min(window_ends_us(late)) > plan.cut_us, "the history counts what is there when it is computed"
    assert (meanwhile, 7) in {(row["t"], row["v"]) for row in late}
    # Whether an audit agrees: tests/spark/test_shadows.py
    assert verify(checkpoint_of(lake, definition.name), definition) == []

    bronze.append(batches[6])
    run(spark, lake, definition)
    assert min(window_ends_us(lakes.rows(lake, "gold.activity__late"))) <= plan.cut_us, "late for the history"
    lakes.assert_balanced(lake, definition)

    assert run_repair(spark, lake, definition) is not None
    assert_same(table(lake), expected(lake, definition))
    lakes.assert_balanced(lake, definition)


# After its commit, which is one, it dies in test_a_history_in_batch_and_a_stream_from_its_cut_count_all_events, where
# events arrive meanwhile, too.
@pytest.mark.long
@pytest.mark.parametrize("point", ["history_read", "history_written"])
def test_a_bootstrap_that_is_interrupted_is_finished_by_the_next_driver(
    spark: SparkSession, lake: Lake, point: str
) -> None:
    definition, batches = UPDATED, events(5)
    bronze = feed(lake, batches[:3])
    bootstrap.begin(lake, definition, plan_bootstrap(lake, definition))

    def die(reached: str, _: int) -> None:
        if reached == point:
            raise RuntimeError("killed")

    outcomes = a_driver(spark, lake, definition, failpoint=die).run_until_caught_up(close=False)
    assert "killed" in str(outcomes[definition.name].error)
    assert history_cut(lake, current_epoch(lake, definition.name)) is not None

    # What arrives meanwhile belongs to the history, or to the stream, and to one of them only.
    bronze.append(batches[3])
    run(spark, lake, definition)
    assert history_cut(lake, current_epoch(lake, definition.name)) is None
    run_repair(spark, lake, definition)
    assert_same(table(lake), expected(lake, definition))
    lakes.assert_balanced(lake, definition)


def rebuilt(spark: SparkSession, lake: Lake, definition: Pipeline) -> rebuild.Comparison:
    target, plan = plan_rebuild(lake, definition)
    rebuild.build(spark, target, plan)
    found = rebuild.compare(spark, target, plan)
    rebuild.swap(spark, target, plan)
    return found


# Interrupted: test_a_swap_that_dies_after_any_of_its_steps_is_done_by_the_next
def test_a_rebuild_for_a_changed_measure_says_what_it_changes_and_swaps_it(spark: SparkSession, lake: Lake) -> None:
    before, batches = pipeline(), events(7)
    bronze = feed(lake, batches[:3])
    lakes.run(spark, lake, before)
    rows_before = table(lake)
    changed = with_aggregate(before, measures={**MEASURES, "total": "sum(w) + 0", "most": "max(w)"})
    target, plan = plan_rebuild(lake, changed)
    assert plan.changed == ("steps",)
    rebuild.build(spark, target, plan)
    # Meanwhile somebody looks what another change would give.
    beside, dry = plan_rebuild(lake, with_aggregate(before, measures={**MEASURES, "least": "min(w)"}))
    shutil.copytree(lake.table_path(plan.aside), lake.table_path(dry.aside))
    found = rebuild.compare(spark, target, plan)
    assert table(lake) == rows_before, "what is built aside changes nothing"
    assert (found.added, found.same > 0) == (("most",), True)
    assert found.changed + found.new > 0, "late events count now"
    assert re.search(r"window_start=.*, k=", found.examples[0].row)

    rebuild.swap(spark, target, plan)
    bronze.append(batches[3])
    assert unfinished(lake, changed) is not None
    run(spark, lake, changed, only_history=True)
    assert unfinished(lake, changed) is None
    assert_same(table(lake), expected(lake, changed))
    lakes.assert_balanced(lake, changed)
    assert built_beside(lake, "gold.activity") == (dry.aside,), "of a run that did not end"
    with pytest.raises(OutdatedPlanError, match=r"epoch 1 of it is over"):
        rebuild.swap(spark, beside, dry)
    assert_same(table(lake), expected(lake, changed))
    remove_built(lake, changed, current_epoch(lake, changed.name).number, keep=timedelta(days=7))
    assert built_beside(lake, "gold.activity") == (dry.aside,), "it may wait for an answer"
    with pytest.raises(BootstrapRefusedError, match="nothing has to be built anew"):
        plan_rebuild(lake, changed)


# With its deaths: test_a_swap_that_dies_after_any_of_its_steps_is_done_by_the_next.
@pytest.mark.long
def test_a_changed_window_of_a_live_ranking_is_swapped_with_its_groups(spark: SparkSession, lake: Lake) -> None:
    before, batches = pipeline(mode="update", top=True), events(7)
    bronze = feed(lake, batches[:3])
    lakes.run(spark, lake, before)
    changed = with_aggregate(before, window=HOPPING)
    found = rebuilt(spark, lake, changed)
    assert (found.same, found.changed, found.new > 0, found.gone > 0) == (0, 0, True, True), "no key is one of before"
    bronze.append(batches[3])
    run(spark, lake, changed)
    run_repair(spark, lake, changed)
    assert_same(table(lake), expected(lake, changed))
    assert_sound(spark, lake, changed)


SWAP = (("take_over", 1), ("empty", 1), ("_overwrite", 1), ("_overwrite", 2), ("withdraw", 1), ("begin_next_epoch", 1))
"""Steps of the swap of a live ranking, and which call of each is the last one that is done."""


def dies_after(step: str, call: int) -> Any:
    done, calls = getattr(swapping, step), count(1)

    def and_dies(*arguments: Any, **named: Any) -> None:
        done(*arguments, **named)
        if next(calls) == call:
            raise RuntimeError("killed")

    return patch.object(swapping, step, and_dies)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(SWAP[1::2], id="every other"),
        # What is in the tables changes at these: [every other]
        pytest.param(SWAP, id="each", marks=pytest.mark.long),
    ],
)
def test_a_swap_that_dies_after_any_of_its_steps_is_done_by_the_next(
    spark: SparkSession, lake: Lake, steps: Sequence[tuple[str, int]]
) -> None:
    before, batches = pipeline(mode="update", top=True), events(7)
    bronze = feed(lake, batches[:2])
    lakes.run(spark, lake, before)
    old, changed = table(lake), with_aggregate(before, window=HOPPING)
    first = plan_rebuild(lake, changed)
    rebuild.build(spark, *first)
    swapped = False
    for step, call in steps:
        # The next command builds the same rows again: here it takes those that are there.
        target, plan = plan_rebuild(lake, changed)
        plan = plan.model_copy(update={"run": first[1].run, "aside": first[1].aside})
        with dies_after(step, call), pytest.raises(RuntimeError, match="killed"):
            rebuild.swap(spark, target, plan)
        swapped |= (step, call) == ("_overwrite", 2)
        assert (table(lake) == old) != swapped, "the result has its old rows or its new ones, never a part"
        assert (unfinished(lake, changed) is None) == (step != "begin_next_epoch")
    remove_built(lake, changed, current_epoch(lake, changed.name).number, keep=timedelta(days=7))
    assert not built_beside(lake, "gold.activity")
    bronze.append(batches[2])
    run(spark, lake, changed)
    run_repair(spark, lake, changed)
    assert_same(table(lake), expected(lake, changed))
    lakes.assert_balanced(lake, changed)


def with_aggregate(definition: Pipeline, **changes: Any) -> Pipeline:
    steps = [step.model_copy(update=changes) if step.kind == "aggregate" else step for step in definition.steps]
    return definition.model_copy(update={"steps": tuple(steps)})


# test_a_history_in_batch_and_a_stream_from_its_cut_count_all_events; as streamed, of what no history was computed for:
# tests/spark/test_backfill_steps.py
@pytest.mark.long
def test_events_that_come_during_a_bootstrap_are_late_only_beyond_the_cut(spark: SparkSession, lake: Lake) -> None:
    definition, batches = UPDATED, events(11)
    bronze = feed(lake, batches[:2])
    plan = plan_bootstrap(lake, definition)
    bootstrap.begin(lake, definition, plan)
    # The watermark passes windows beyond the cut, and events for windows on both sides of it follow.
    for batch in batches[2:5]:
        bronze.append(batch)
    first = lakes.at(plan.cut_us // 1000 - 2 * MINUTE)
    bronze.append([{"k": "a", "v": 7, "d": 0.5, "t": first}])

    run(spark, lake, definition, only_history=True)
    (late,) = (row for row in lakes.rows(lake, "gold.activity__late") if row["t"] == first and row["v"] == 7)
    assert [lakes.ms(each["window_end"]) * 1000 > plan.cut_us for each in late["missed_windows"]] == [True]
    assert [done.changed.rows for done in run_backfill(spark, lake, definition, mode="as-streamed", force=True)] == [0]
    run_repair(spark, lake, definition)
    assert_same(table(lake), expected(lake, definition))
    lakes.assert_balanced(lake, definition)


def test_a_watermark_that_has_not_reached_the_cut_is_waited_for(spark: SparkSession, lake: Lake) -> None:
    definition, batches = pipeline(), events(13)
    bronze = feed(lake, batches[:3])
    bootstrap.begin(lake, definition, plan_bootstrap(lake, definition))

    def die(point: str, batch_id: int) -> None:
        # Spark has finished the last batch with events, and never plans the one that only moves the watermark again.
        if (point, batch_id) == ("planned", 3):
            handle = current_epoch(lake, definition.name)
            assert handle is not None
            lake.store.delete(f"{handle.folder}/offsets/3")
            raise RuntimeError("killed")

    driver = a_driver(spark, lake, definition, failpoint=die)
    assert "killed" in str(driver.run_until_caught_up(close=False)[definition.name].error)
    outcome = a_driver(spark, lake, definition).run_until_caught_up(close=False)[definition.name]
    assert isinstance(outcome.error, CutNotReachedError)
    assert revisions(lake, "gold.activity", "activity", 1) == [], "nothing of the history was written"

    bronze.append(batches[3])
    run(spark, lake, definition)
    run_repair(spark, lake, definition)
    assert_same(table(lake), expected(lake, definition))
    lakes.assert_balanced(lake, definition)


def test_what_cannot_be_bootstrapped_or_rebuilt_is_refused(spark: SparkSession, lake: Lake) -> None:
    bronze = feed(lake, events(9)[:2])
    with pytest.raises(BootstrapRefusedError, match=r"a session may reach across every cut.*tidemark run activity"):
        plan_bootstrap(lake, pipeline(Session("5 minutes")))
    definition = pipeline()
    with pytest.raises(BootstrapRefusedError, match=r"has not run .*tidemark bootstrap activity"):
        plan_rebuild(lake, definition)
    lakes.run(spark, lake, definition)
    with pytest.raises(BootstrapRefusedError, match="epoch 1 of it has begun as a stream"):
        plan_bootstrap(lake, definition)

    # Right after a reset there is a history again; a stream that was faster is not passed over.
    reset(lake, definition, empty_tables=True)
    plan = plan_bootstrap(lake, definition)
    assert plan.epoch == 3
    bootstrap.begin(lake, definition, plan)
    assert plan_bootstrap(lake, definition).begun
    bronze.append(events(9)[2])
    run(spark, lake, definition)
    assert_same(table(lake), expected(lake, definition))
    kinds = [each.ledger.kind for _, each in revisions(lake, "gold.activity", "activity", 3) if each.ledger]
    assert kinds == ["bootstrap"]
