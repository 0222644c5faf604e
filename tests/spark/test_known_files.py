"""A batch reads the files of Delta's that it was planned with; Spark is asked which only where partitions choose."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.spec import Pipeline, Sink, Table, Where
from tests.support import lakes

COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
LARGE = lakes.one_file_a_batch(
    Pipeline(
        name="large",
        source=Table("bronze.clicks"),
        event_time="t",
        steps=(Where("k = 'a' AND v > 1"),),
        sink=Sink("silver.large"),
    )
)


def indexes(query: PipelineQuery) -> set[str]:
    """The classes that name the files of the last batch."""
    plan = query.query._jsq.streamingQuery().lastExecution().executedPlan()  # type: ignore[attr-defined]
    leaves = plan.collectLeaves()
    scans = (leaves.apply(number) for number in range(leaves.size()))
    return {scan.relation().location().getClass().getName() for scan in scans}


@pytest.mark.parametrize("partitions", [[], ["k"]], ids=["not_partitioned", "partitioned_by_another_program"])
def test_a_filter_by_a_column_of_the_folders_names_finds_its_rows(
    spark: SparkSession, lake: Lake, partitions: list[str]
) -> None:
    schema = pa.schema([*COLUMNS.items(), *lakes.METADATA])
    DeltaTable.create(lake.table_uri("bronze.clicks"), schema=schema, partition_by=partitions)
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    for first in (1, 2):
        bronze.append([{"k": k, "v": v, "t": lakes.at(v)} for k in "ab" for v in range(first, first + 3)])
    query = lakes.run(spark, lake, LARGE)
    assert indexes(query) == {"io.tidemark.planning.KnownFiles$Index"}
    rows = sorted((row["k"], row["v"]) for row in lakes.rows(lake, "silver.large"))
    assert rows == [("a", 2), ("a", 2), ("a", 3), ("a", 3), ("a", 4)]
    lakes.assert_balanced(lake, LARGE)
