"""A batch reads the files of Delta's that it was planned with; Spark is asked which only where partitions choose."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.lake import Lake
from tests.support import lakes

COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}


@pytest.mark.parametrize("partitions", [[], ["k"]], ids=["not_partitioned", "partitioned_by_another_program"])
def test_a_filter_by_the_column_of_partitions_finds_its_rows_alone(
    spark: SparkSession, lake: Lake, tmp_path: Path, partitions: list[str]
) -> None:
    schema = pa.schema([*COLUMNS.items(), *lakes.METADATA])
    DeltaTable.create(lake.table_uri("bronze.clicks"), schema=schema, partition_by=partitions)
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    for first in (1, 2):
        bronze.append([{"k": k, "v": v, "t": lakes.at(v)} for k in "ab" for v in range(first, first + 3)])
    found: list[tuple[str, int]] = []
    # Spark leaves the question for the partition to the names of the files, and does not ask it of rows.
    stream = spark.readStream.format("delta").load(lake.table_path("bronze.clicks")).where("k = 'a'").select("k", "v")

    def take(batch: DataFrame, _: int) -> None:
        found.extend((row["k"], row["v"]) for row in batch.collect())

    started = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = started.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(found) == [("a", 1), ("a", 2), ("a", 2), ("a", 3), ("a", 3), ("a", 4)]
    plan = query._jsq.streamingQuery().lastExecution().executedPlan()  # type: ignore[attr-defined]
    scan = plan.collectLeaves().head()
    assert scan.relation().location().getClass().getName() == "io.tidemark.planning.KnownFiles$Index"
