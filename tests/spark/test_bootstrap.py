"""A history computed in batch, with the stream going on from there: against DuckDB over all events."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.batch import audit, bootstrap
from spark_jobs.batch.bootstrap import plan_bootstrap
from spark_jobs.engine.driver import Driver, Outcome
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import current_epoch, history_cut
from spark_jobs.spec import Hopping, Pipeline, Tumbling
from tests import lakes
from tests.spark.test_backfill import (
    HOPPING,
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

KINDS = {"top": pipeline(top=True), "hopping, updated": pipeline(HOPPING, mode="update")}


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
    planned = audit.plan_recount(lake, definition, None, audit.look(lake, definition))
    assert not isinstance(planned, audit.Audit), planned
    found = audit.recount(spark, *planned, audit.look(lake, definition))
    assert found.rows
    assert found.problems == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_history_in_batch_and_a_stream_from_its_cut_give_what_all_events_give(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    definition, batches = KINDS[kind], events(3)
    bronze = feed(lake, batches[:6])
    plan = plan_bootstrap(lake, definition)
    bootstrap.begin(lake, definition, plan)

    run(spark, lake, definition, only_history=True)
    terms = [row.terms for _, row in lakes.ledger(lake, definition)]
    assert sum(each["history"] for each in terms) > 50
    assert sum(each["late"] + each["partly_late"] for each in terms) == 0, "in whatever order the history is read"
    assert_same(table(lake), expected(lake, definition))
    assert_sound(spark, lake, definition)

    for batch in batches[6:]:
        bronze.append(batch)
    run(spark, lake, definition)
    late = lakes.rows(lake, "gold.activity__late")
    ends = [lakes.ms(missed["window_end"]) * 1000 for row in late for missed in row["missed_windows"]]
    assert min(ends) <= plan.cut_us < max(ends), "late on both sides of the cut"
    assert_sound(spark, lake, definition)

    assert run_repair(spark, lake, definition) is not None
    assert_same(table(lake), expected(lake, definition))
    assert_sound(spark, lake, definition)
    assert all(done.changed.rows == 0 for done in run_backfill(spark, lake, definition, force=True))


@pytest.mark.parametrize("point", ["result_committed", "history_read", "history_written"])
def test_a_bootstrap_that_is_interrupted_is_finished_by_the_next_driver(
    spark: SparkSession, lake: Lake, point: str
) -> None:
    definition, batches = KINDS["hopping, updated"], events(5)
    bronze = feed(lake, batches[:4])
    bootstrap.begin(lake, definition, plan_bootstrap(lake, definition))

    def die(reached: str, batch_id: int) -> None:
        if reached == point and batch_id >= 3:
            raise RuntimeError("killed")

    outcomes = a_driver(spark, lake, definition, reached=die).run_until_caught_up(close=False)
    assert "killed" in str(outcomes[definition.name].error)
    assert history_cut(lake, current_epoch(lake, definition.name)) is not None

    # What arrives meanwhile belongs to the history, or to the stream, and to one of them only.
    for batch in batches[4:6]:
        bronze.append(batch)
    run(spark, lake, definition)
    assert history_cut(lake, current_epoch(lake, definition.name)) is None
    assert_sound(spark, lake, definition)
    run_repair(spark, lake, definition)
    assert_same(table(lake), expected(lake, definition))
    assert_sound(spark, lake, definition)
