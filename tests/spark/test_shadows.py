"""A changed version beside the one that runs, from its start to its promotion: against DuckDB over all events."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.deployment import execute
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import swapping
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.ran import as_it_began
from spark_jobs.operations.shadow import execute as shadows
from spark_jobs.operations.shadow.compare import look
from spark_jobs.operations.shadow.plan import plan_drop, plan_promotion, plan_shadows
from spark_jobs.spec import Pipeline, Where
from spark_jobs.spec.shadows import shadow
from tests.support import lakes
from tests.support.clicks import (
    MEASURES,
    TUMBLING,
    assert_same,
    audited,
    by_duckdb,
    closed_ms,
    events,
    feed,
    pipeline,
    run_repair,
    table,
)
from tests.support.deploying import deploy

NOW = timedelta(0)


def with_more(definition: Pipeline) -> Pipeline:
    """The same with a measure more."""
    *others, aggregate = definition.steps
    return definition.model_copy(
        update={"steps": (*others, aggregate.model_copy(update={"measures": {**MEASURES, "most": "max(w)"}}))}
    )


CHANGED = with_more(pipeline())
BEFORE = pipeline().model_copy(update={"steps": (Where("v >= 2"), *pipeline().steps[1:])})
BESIDE = shadow(CHANGED)


def by_hand(lake: Lake, upto_ms: int) -> tuple[int, int, int, int]:
    """Rows the same, with other values, only in the table, only in the shadow; in plain Python."""
    old, new = (
        {
            (row["window_start"], row["k"]): (row["n"], row["total"], pytest.approx(row["mean"]))
            for row in lakes.rows(lake, name)
            if lakes.ms(row["window_end"]) <= upto_ms
        }
        for name in (BEFORE.sink.table, BESIDE.sink.table)
    )
    both = old.keys() & new.keys()
    same = sum(old[key][:2] == new[key][:2] and old[key][2] == new[key][2].expected for key in both)
    return same, len(both) - same, len(old.keys() - both), len(new.keys() - both)


def promote(spark: SparkSession, lake: Lake) -> int:
    said: list[str] = []

    def streams(work: Any) -> int:
        driver = work(spark, said.append, lambda _: nullcontext())
        return 0 if CHANGED.name in driver.histories else 1

    code, _ = shadows.promote(
        lake,
        CHANGED,
        plan_promotion(lake, CHANGED),
        streams,
        by="a test",
        timeout=NOW,
        stop=threading.Event(),
        say=said.append,
    )
    return code


def begin(spark: SparkSession, lake: Lake) -> None:
    execute(lake, plan_shadows(lake, [CHANGED])[0], by="a test")
    lakes.run_all(spark, lake, [BESIDE], close=False)


# In a bucket: tests/services/test_shadows.py
@pytest.mark.long
def test_a_shadow_is_dropped_and_begun_again(spark: SparkSession, lake: Lake) -> None:
    feed(lake, events(7)[:4])
    deploy(lake, [BEFORE])
    lakes.run_all(spark, lake, [BEFORE], close=False)
    begin(spark, lake)
    first = table(lake, BESIDE.sink.table)
    shadows.drop(lake, plan_drop(lake, BEFORE.name), by="a test", timeout=NOW, say=lambda _: None)
    begin(spark, lake)
    assert table(lake, BESIDE.sink.table) == first, "begun again in the same session, where there was one before"


def test_a_shadow_is_compared_and_promoted(spark: SparkSession, lake: Lake) -> None:
    batches = events(7)
    bronze = feed(lake, batches[:3])
    deploy(lake, [BEFORE])
    lakes.run_all(spark, lake, [BEFORE], close=False)
    rows_before = table(lake)
    begin(spark, lake)
    assert table(lake) == rows_before

    found = look(lake, BEFORE.name)
    seen = found.comparison
    assert seen is not None
    assert found.upto is not None
    assert found.changed == ("steps",)
    counts = (seen.same, seen.changed, seen.only_pipeline, seen.only_shadow)
    assert counts == by_hand(lake, lakes.ms(found.upto))
    assert min(counts[:2]) > 0, "some are the same, some are not"
    assert seen.columns_shadow == ("most",)
    # By its name alone, as the command line asks.
    its = as_it_began(lake, BESIDE.name)
    assert its == BESIDE
    lakes.assert_balanced(lake, BESIDE)

    # It dies in the swap, then before the shadow goes, and is carried on each time.
    with patch.object(swapping, "begin_next_epoch", side_effect=RuntimeError("killed")), pytest.raises(RuntimeError):
        promote(spark, lake)
    with patch.object(shadows, "remove_pipeline", side_effect=RuntimeError("killed")), pytest.raises(RuntimeError):
        promote(spark, lake)
    assert current_epoch(lake, BESIDE.name) is not None
    assert not plan_promotion(lake, CHANGED).swaps
    assert promote(spark, lake) == 0
    ordered = orders.all_desired(lake)[CHANGED.job].running
    assert {name: order.defines(CHANGED) for name, order in ordered.items()} == {CHANGED.name: True}
    assert current_epoch(lake, BESIDE.name) is None

    bronze.append(batches[3])
    lakes.run_all(spark, lake, [CHANGED], close=False)
    run_repair(spark, lake, CHANGED)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed_ms(lake, CHANGED)))
    assert all(row["most"] is not None for row in lakes.rows(lake, CHANGED.sink.table))
    lakes.assert_balanced(lake, CHANGED)
    assert audited(spark, lake, CHANGED).problems == ()
