"""Steps that keep state by key, in a bucket: they go on, go back and show their state."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.savepoint.execute import take_savepoint
from spark_jobs.operations.state.execute import read_state
from spark_jobs.operations.state.plan import plan_state
from tests.spark.test_restore import HIDDEN, KINDS, pay, restored, tables_of
from tests.support import lakes
from tests.support.clicks import events, feed
from tests.support.minio import Minio


# Sliding measures and processors keep their state as an as-of join does, and read one table instead of two: [held].
# That drivers write to a bucket what they write to a folder: tests/control/test_zombies.py::
# test_a_driver_that_is_killed_and_one_that_wakes_change_nothing; that this is right: tests/spark/test_ordered.py::
# test_rows_are_those_of_events_in_order
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("held",), id="held"),
        pytest.param(("before", "pauses"), id="before, pauses", marks=pytest.mark.long),
    ],
)
def test_keyed_steps_in_a_bucket_go_on_go_back_and_end_undisturbed(
    spark: SparkSession, minio: tuple[Minio, str], names: tuple[str, ...]
) -> None:
    lake, keyed = Lake(f"s3a://{minio[1]}/lake"), [KINDS[name] for name in names]
    batches = events(7, batches=3, size=20)

    def go_on() -> dict[str, dict[str, Any]]:
        """Reads what is there; the rows, less in which batch they came: behind a restore one more may read nothing."""
        lakes.run_all(spark, lake, keyed, close=False)
        without = (*HIDDEN, "_batch_id")
        return {
            each.name: {table: lakes.comparable(lakes.rows(lake, table), without=without) for table in tables_of(each)}
            for each in keyed
        }

    pay(lake, range(2))
    bronze = feed(lake, batches[:2])
    before = go_on()
    for each in keyed:
        take_savepoint(lake, each.name, print, name="before", by="tests")
    pay(lake, range(2, 3))
    bronze.append(batches[2])
    undisturbed = go_on()
    assert all(undisturbed[each.name] != before[each.name] for each in keyed)
    assert all(lakes.rows(lake, f"gold.{each.name}__late") for each in keyed)

    for each in keyed:
        restored(lake, each, to="before")
    assert go_on() == undisturbed
    for each in keyed:
        lakes.assert_balanced(lake, each)
        checkpoint = checkpoint_of(lake, each.name)
        assert checkpoint.epoch.number == 2
        assert verify(checkpoint, begun_with(checkpoint.epoch)) == []
        asked = plan_state(lake, each.name, keys=(), open_windows=False, at=None, limit=1_000)
        kept = {state.side: len(state.rows) for state in read_state(spark, lake, asked)}
        assert kept["waiting"] > 0
        assert kept["kept"] > 0
