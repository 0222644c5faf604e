"""Delta's checksum of a new table: Spark takes its columns and settings from there, and runs no job to find them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_jobs.commits.tables import create_table
from spark_jobs.lake import Lake
from spark_jobs.spark.java import java_class

COLUMNS = "k STRING, v DECIMAL(10, 2), t TIMESTAMP, s STRUCT<a: ARRAY<INT>>, m MAP<STRING, STRING>"


def known_to_spark(spark: SparkSession, path: str) -> tuple[str, str, int]:
    """What the table is to Delta, and how many jobs that took."""
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    group = uuid4().hex
    spark.sparkContext.setJobGroup(group, group)
    try:
        log = java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)
        snapshot = log.snapshot()
        found = str(snapshot.metadata().json()), str(snapshot.protocol().json())
        return *found, len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    finally:
        spark.sparkContext._jsc.clearJobGroup()


def test_spark_knows_a_new_table_without_a_job(spark: SparkSession, lake: Lake) -> None:
    create_table(lake, "bronze.sales", StructType.fromDDL(COLUMNS), statistics=("t",), comments={"k": "key, 'é'"})
    path = lake.table_path("bronze.sales")
    *known, jobs = known_to_spark(spark, path)
    Path(path, "_delta_log", f"{0:020d}.crc").unlink()
    *computed, jobs_without = known_to_spark(spark, path)
    assert known == computed
    assert (jobs, jobs_without) == (0, 1)
