"""A table as a stream of ours: Delta's batches, without a look at the whole log for each of them."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_jobs.lake import Lake
from spark_jobs.spark.growing import STREAMED
from spark_jobs.spark.java import java_class
from tests.support.waiting import PATIENCE_S, await_that

START = {"startingVersion": "0"}


def numbers(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


def append(path: str, *files: pa.Table) -> None:
    """One commit with a file for each table."""
    for table in files:
        write_deltalake(path, table, mode="append", target_file_size=1)


@pytest.fixture
def path(lake: Lake) -> str:
    """A table of every kind of commit that a stream meets; its rows are numbered by when they came."""
    path = lake.table_path("bronze.clicks")
    append(path, numbers(0, 1), numbers(2))
    DeltaTable(path).delete("v = 1")  # passed over
    append(path, numbers(3))
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "100"})  # no file
    append(path, numbers(4), numbers(5), numbers(6))
    DeltaTable(path).optimize.compact()  # moves rows
    append(path, numbers(7))
    return path


def read(
    spark: SparkSession, form: str, path: str, checkpoint: Path, found: list[Any], **options: str
) -> StreamingQuery:
    stream = spark.readStream.format(form).options(skipChangeCommits="true", **options).load(path)

    def take(batch: DataFrame, number: int) -> None:
        found.extend((number, row["v"]) for row in batch.collect())

    started = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    return started.trigger(availableNow=True).start()


def offsets(checkpoint: Path) -> list[Any]:
    """What each batch's entry says of the table, but for the id that a query gives its plan."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [json.loads(file.read_text().splitlines()[-1]) for file in files]


@pytest.mark.parametrize(
    ("start", "most"),
    [(START, "1"), (START, "2"), (START, "100"), ({}, "2"), ({"startingVersion": "3"}, "1")],
    ids=["file_by_file", "two_files", "all_at_once", "from_what_it_holds", "from_a_later_version"],
)
def test_its_batches_and_their_offsets_are_delta_s(
    spark: SparkSession, path: str, tmp_path: Path, start: dict[str, str], most: str
) -> None:
    batches: dict[str, list[Any]] = {"delta": [], STREAMED: []}
    for form, found in batches.items():
        copy = str(tmp_path / f"{form}-table")
        shutil.copytree(path, copy)
        for more in ((), (8, 9)):
            if more:
                append(copy, *map(numbers, more))
            options = {**start, "maxFilesPerTrigger": most}
            read(spark, form, copy, tmp_path / form, found, **options).awaitTermination()
    assert batches[STREAMED] == batches["delta"]
    assert {value for _, value in batches[STREAMED]} >= {4, 5, 6, 7, 8, 9}
    assert offsets(tmp_path / STREAMED) == offsets(tmp_path / "delta")


def follow(
    spark: SparkSession, path: str, checkpoint: Path, found: list[Any], *, taken: Callable[[], object] = lambda: None
) -> StreamingQuery:
    """As a continuous run does; `taken` is called at the end of each batch."""

    def take(batch: DataFrame, _: int) -> None:
        found.extend(row["v"] for row in batch.collect())
        taken()

    stream = spark.readStream.format(STREAMED).options(**START).load(path)
    return stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()


def test_a_stream_that_keeps_up_has_delta_look_at_its_log_once(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    path = lake.table_path("bronze.clicks")
    append(path, numbers(0))
    found: list[Any] = []
    query = follow(spark, path, tmp_path, found)
    try:
        query.processAllAvailable()  # a query takes up its source after its start: then is the one look
        log = java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)
        for value in range(1, 4):
            append(path, numbers(value))
            query.processAllAvailable()
            assert found == list(range(value + 1))
        for value in range(4, 100):  # some come between two looks at the log
            append(path, numbers(value))
        query.processAllAvailable()
        assert found == list(range(100))
    finally:
        query.stop()
    assert log.unsafeVolatileSnapshot().version() == 0


@pytest.mark.parametrize("gone", [1, 2], ids=["where_it_goes_on", "behind_that"])
def test_a_gap_in_the_log_stops_a_stream_that_runs(spark: SparkSession, lake: Lake, tmp_path: Path, gone: int) -> None:
    path, whole = Path(lake.table_path("bronze.clicks")), tmp_path / "whole"
    append(str(path), numbers(0))
    shutil.copytree(path, whole)
    for value in range(1, 4):
        append(str(whole), numbers(value))
    found: list[Any] = []
    is_whole = threading.Event()  # a stream that looks between two copies finds another gap
    query = follow(spark, str(path), tmp_path / "checkpoint", found, taken=partial(is_whole.wait, PATIENCE_S))
    try:
        await_that(lambda: found == [0], "the first batch")
        for file in (*whole.glob("*.parquet"), *sorted((whole / "_delta_log").glob("*.json"), reverse=True)):
            to = path / file.relative_to(whole)
            if not to.exists() and not to.name.startswith(f"{gone:020d}"):
                shutil.copy(file, to)
        is_whole.set()
        with pytest.raises(StreamingQueryException, match=f"cannot resume from version {gone}"):
            query.awaitTermination(60)
    finally:
        is_whole.set()
        query.stop()
    assert found in ([0], [0, 1])
