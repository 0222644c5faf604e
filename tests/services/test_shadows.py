"""A changed version beside the one that runs, in a bucket; on a folder: tests/spark/test_shadows.py."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.operations.shadow import execute as shadows
from spark_jobs.operations.shadow.plan import plan_drop
from tests.spark.test_shadows import BEFORE, BESIDE, CHANGED
from tests.support import lakes
from tests.support.clicks import events, feed, merged, table
from tests.support.deploying import beside, deploy
from tests.support.minio import Minio


def test_a_shadow_dropped_in_a_bucket_leaves_nothing_and_is_begun_again(
    spark: SparkSession, minio: tuple[Minio, str]
) -> None:
    server, bucket = minio
    lake = Lake(f"s3a://{bucket}/lake")
    feed(lake, merged(events(7)[:2], 2))
    deploy(lake, [BEFORE])
    lakes.run_all(spark, lake, [BEFORE], close=False)
    beside(lake, CHANGED)
    lakes.run_all(spark, lake, [BESIDE], close=False)
    first = table(lake, BESIDE.sink.table)
    assert first
    shadows.drop(lake, plan_drop(lake, BEFORE.name), by="a test", timeout=timedelta(0), say=print)
    assert [key for key in server.keys(bucket) if BESIDE.name in key or BESIDE.sink.table in key] == []

    beside(lake, CHANGED)
    lakes.run_all(spark, lake, [BESIDE], close=False)
    assert table(lake, BESIDE.sink.table) == first
