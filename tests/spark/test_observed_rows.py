"""Figures that Spark takes in passing count each row once, or say that they do not."""

from __future__ import annotations

import operator
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from spark_jobs.spark.observed_rows import Figure, Figures, ObservedRows
from spark_jobs.spark.progress import StateFigures, state_figures

pytestmark = pytest.mark.usefixtures("divided")

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS = 40
FIGURES = (
    Figure("rows", "1"),
    Figure("total", "id"),
    Figure("hashes", "id * 97", mixed=True),
    Figure.count("odd", "id % 2 = 1"),
    Figure("large", "CASE WHEN id > 30 THEN id END"),
)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file for which the last task of a stage waits."""
    return tmp_path / "gate"


def passes(gate: Path, partitions: int) -> Column:
    """Holds for each row; in the last partition it is only known when the gate is open."""

    def wait(partition):
        while partition == partitions - 1 and not gate.exists():
            time.sleep(0.01)
        return True

    return F.udf(wait, "boolean")(F.spark_partition_id())


def open_after_a_loss(spark: SparkSession, gate: Path, *, partitions: int, shuffle: int) -> None:
    """Opens the gate when the output of the other tasks is lost, as it is with the worker that has run them.

    Args:
        spark: the session.
        gate: what one task waits for.
        partitions: of its stage.
        shuffle: which that stage writes.
    """
    tracker = spark.sparkContext._jsc.sc().env().mapOutputTracker()
    deadline = time.monotonic() + 60
    try:
        while not (tracker.containsShuffle(shuffle) and tracker.getNumAvailableOutputs(shuffle) == partitions - 1):
            assert time.monotonic() < deadline, f"shuffle {shuffle} has never lacked one output"
            time.sleep(0.01)
        tracker.unregisterAllMapAndMergeOutput(shuffle)
    finally:
        gate.touch()


def next_shuffle(spark: SparkSession) -> int:
    """The number of the next one that a plan makes."""
    return int(spark.sparkContext._jsc.sc().newShuffleId()) + 1


def observed(spark: SparkSession, gate: Path) -> tuple[ObservedRows, DataFrame]:
    """Figures over the numbers below forty, of which the even ones are kept; a partition is empty."""
    numbers = spark.range(0, ROWS, 1, 4).where(f"id >= {ROWS // 4}").where(passes(gate, 4))
    found = ObservedRows(numbers, Figures(FIGURES))
    return found, found.rows.where("id % 2 = 0").agg(F.count(F.lit(1)))


@pytest.mark.parametrize("compiled", [True, False])
def test_each_row_is_counted_once(spark: SparkSession, gate: Path, *, compiled: bool) -> None:
    gate.touch()
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", str(compiled).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY" if compiled else "NO_CODEGEN")
    found, kept = observed(session, gate)
    assert found.rows.columns == ["id"]
    assert kept.collect()[0][0] == 15
    ids = range(10, 40)
    hashes = reduce(operator.xor, (97 * number for number in ids))
    expected = {"rows": 30, "total": sum(ids), "hashes": hashes, "odd": 15, "large": sum(range(31, 40))}
    assert (found.figures, found.repeated_tasks) == (expected, 0)


def test_nothing_is_counted_where_there_are_no_rows(spark: SparkSession, gate: Path) -> None:
    found = ObservedRows(spark.range(0), Figures(FIGURES))
    assert found.rows.collect() == []
    assert (found.figures, found.repeated_tasks) == (dict.fromkeys(("rows", "total", "hashes", "odd", "large"), 0), 0)


def test_rows_that_a_task_read_again_after_its_output_was_lost_are_told(spark: SparkSession, gate: Path) -> None:
    found, kept = observed(spark, gate)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(open_after_a_loss, spark, gate, partitions=4, shuffle=next_shuffle(spark))
        assert kept.collect()[0][0] == 15
        lost.result()
    # The first partition is empty; the second and the third ran twice.
    assert found.repeated_tasks == 2
    assert found.figures["rows"] == 50


def test_stores_that_a_task_opened_again_are_told(spark: SparkSession, gate: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    spark.range(ROWS).write.parquet(str(landing))
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or "0")
    seen: list[StateFigures] = []

    def count(batch: DataFrame, _: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(open_after_a_loss, spark, gate, partitions=partitions, shuffle=next_shuffle(spark))
            assert batch.where(passes(gate, partitions)).agg(F.count(F.lit(1))).collect()[0][0] == ROWS
            lost.result()
        (query,) = spark.streams.active
        seen.append(state_figures(spark, query))

    groups = spark.readStream.schema("id BIGINT").parquet(str(landing)).groupBy("id").count()
    writer = groups.writeStream.outputMode("update").foreachBatch(count).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert [figures.repeated_tasks for figures in seen] == [partitions - 1]
    assert seen[0].rows > ROWS
