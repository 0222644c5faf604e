"""Delta's checksum of a new table: Spark takes its columns and settings from there, and runs no job to find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from obstore.exceptions import GenericError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_jobs.commits.tables import create_table
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.swapping import remove_table
from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.lake.tables import checksums
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.spark.java import java_class
from tests.support.spark import listeners_are_told

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
        listeners_are_told(spark)
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


@pytest.mark.parametrize("error", [GenericError("503"), OSError("no space left"), LakeUnavailableError("gone")])
def test_a_table_without_a_checksum_is_a_table(lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(checksums, "create_object", refused)
    create_table(lake, "bronze.sales", StructType.fromDDL(COLUMNS))
    assert open_table(lake, "bronze.sales").version() == 0


class Dying:
    """A store whose process is killed at one of its deletes."""

    def __init__(self, store: Any, after: int) -> None:
        self._store, self._left = store, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def delete(self, paths: list[str]) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        self._store.delete(paths)


@pytest.mark.parametrize("after", [0, 1])
def test_a_removal_that_is_cut_off_leaves_a_table_to_be_removed_again(lake: Lake, after: int) -> None:
    create_table(lake, "gold.sales", StructType.fromDDL(COLUMNS))
    whole = lake.store
    lake.__dict__["store"] = Dying(whole, after)
    with pytest.raises(KeyboardInterrupt):
        remove_table(lake, "gold.sales")
    lake.__dict__["store"] = whole
    assert exists(lake, "gold.sales")
    remove_table(lake, "gold.sales")
    create_table(lake, "gold.sales", StructType.fromDDL("other INT"))
