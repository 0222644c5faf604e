"""A history in batch and a rebuild, on a real MinIO: as tests/spark/test_bootstrap.py."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.swapping import built_beside, remove_built
from spark_jobs.operations.bootstrap import execute as bootstrap
from spark_jobs.operations.bootstrap.plan import plan_bootstrap
from spark_jobs.operations.rebuild import execute as rebuild
from spark_jobs.operations.rebuild.plan import plan_rebuild
from tests.spark.test_bootstrap import assert_sound, dies_after, expected, rebuilt, run, with_aggregate
from tests.support.clicks import HOPPING, MEASURES, assert_same, events, feed, pipeline, run_repair, table
from tests.support.minio import Minio


# On a folder: tests/spark/test_bootstrap.py::test_a_history_in_batch_and_a_stream_from_its_cut_count_all_events and
# ::test_a_swap_that_dies_after_any_of_its_steps_is_done_by_the_next. Commits to MinIO:
# tests/services/test_conditional_create.py::test_no_acknowledged_commit_of_two_processes_is_lost[minio]
@pytest.mark.long
def test_a_history_on_minio_goes_on_as_a_stream_and_is_rebuilt_and_swapped(
    spark: SparkSession, minio: tuple[Minio, str]
) -> None:
    server, bucket = minio
    lake, batches = Lake(f"s3a://{bucket}/lake"), events(3)
    before = pipeline(HOPPING, mode="update")
    bronze = feed(lake, batches[:3])
    bootstrap.begin(lake, before, plan_bootstrap(lake, before))
    run(spark, lake, before)
    bronze.append(batches[3])
    run(spark, lake, before)
    run_repair(spark, lake, before)
    assert_same(table(lake), expected(lake, before))
    assert_sound(spark, lake, before)

    # The swap dies once, after the result has its new rows.
    changed = with_aggregate(before, measures={**MEASURES, "most": "max(w)"})
    target, plan = plan_rebuild(lake, changed)
    rebuild.build(spark, target, plan)
    with dies_after("_overwrite", 1), pytest.raises(RuntimeError, match="killed"):
        rebuild.swap(spark, target, plan)
    found = rebuilt(spark, lake, changed)
    assert (found.same > 0, found.changed, found.new, found.gone) == (True, 0, 0, 0)
    remove_built(lake, changed, current_epoch(lake, changed.name).number, keep=timedelta(days=7))
    assert not built_beside(lake, "gold.activity")
    assert not any("__rebuilt" in key and key.endswith(".parquet") for key in server.keys(bucket, "lake/"))
    bronze.append(batches[4])
    run(spark, lake, changed)
    run_repair(spark, lake, changed)
    assert_same(table(lake), expected(lake, changed))
    assert_sound(spark, lake, changed)
