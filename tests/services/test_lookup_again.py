"""Events whose key came later on a real MinIO: as tests/spark/test_lookup_again.py, by the command's own functions."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.quarantine import Selection
from spark_jobs.operations.repair import execute as repair
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay.lookup import execute
from spark_jobs.operations.replay.lookup_plan import plan_lookup
from tests.spark.test_enrich import sales
from tests.spark.test_lookup_again import pipeline, set_aside, windows
from tests.support import lakes
from tests.support.minio import Minio


# In a folder: tests/spark/test_lookup_again.py. Another replay on MinIO: test_replay.py; a batch that dies before its
# commit: test_written_results.py.
@pytest.mark.long
def test_events_are_looked_up_again_on_minio(spark: SparkSession, minio: tuple[Minio, str]) -> None:
    _, bucket = minio
    lake, definition = Lake(f"s3a://{bucket}/lake"), pipeline("tumbling")

    def products(known: Mapping[str, str]) -> None:
        table = pa.table({"p": list(known), "category": list(known.values())})
        address = lake.table_uri("silver.products")
        write_deltalake(address, table, mode="overwrite", storage_options=lake.storage_options)

    def change(point: str, batch_id: int) -> None:
        if (point, batch_id) == ("result_committed", 1):
            products({"a": "tea", "x": "milk"})

    products({"a": "tea"})
    sales(lake, [(1, "a", 1), (2, "x", 2), (3, "y", 4)], [(30, "a", 8)], [(40, "a", 16)])
    driver = Driver(spark, lake, (definition,), failpoint=change)
    assert driver.run_until_caught_up(close=False)["by_category"].error is None

    assert execute(spark, plan_lookup(lake, definition, Selection()), by="ada").replayed == 1
    repair.execute(spark, *plan_repair(lake, definition))
    assert set_aside(lake) == [4]
    found = windows(lake)
    assert (found[1, "tea"], found[1, "milk"]) == ((1, 1), (2, 1))
    lakes.assert_balanced(lake, definition)
