"""Steps that keep state by key, in a bucket: they go on, go back and show their state as in a folder."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.savepoint.execute import take_savepoint
from spark_jobs.operations.state.execute import read_state
from spark_jobs.operations.state.plan import plan_state
from tests.spark.test_restore import HIDDEN, KINDS, contents, pay, restored, tables_of
from tests.support import lakes
from tests.support.clicks import events, feed
from tests.support.minio import Minio

KEYED = [KINDS[name] for name in ("held", "before", "pauses")]


def test_keyed_steps_in_a_bucket_go_on_go_back_and_end_as_in_a_folder(
    spark: SparkSession, minio: tuple[Minio, str], lake: Lake
) -> None:
    folder, bucket, batches = lake, Lake(f"s3a://{minio[1]}/lake"), events(7, batches=4, size=20)

    def arrive(where: Lake, some: slice, begin: int) -> None:
        pay(where, range(4)[some])
        bronze = feed(where, [])
        bronze._next = begin
        for batch in batches[some]:
            bronze.append(batch)

    for where in (folder, bucket):
        arrive(where, slice(0, 2), 0)
        lakes.run_all(spark, where, KEYED, close=False)
    for each in KEYED:
        take_savepoint(bucket, each.name, print, name="before", by="tests")
    for where in (folder, bucket):
        arrive(where, slice(2, 4), sum(map(len, batches[:2])))
        lakes.run_all(spark, where, KEYED, close=False)

    def found(where: Lake) -> dict[str, Any]:
        return {each.name: contents(where, tables_of(each)) for each in KEYED}

    expected = found(folder)
    assert found(bucket) == expected
    assert any(lakes.rows(folder, f"gold.{each.name}__late") for each in KEYED)

    for each in KEYED:
        restored(bucket, each, to="before")
    assert found(bucket) != expected
    lakes.run_all(spark, bucket, KEYED, close=False)
    # Behind a restore there may be a batch more, which reads nothing.
    without = (*HIDDEN, "_batch_id")
    for each in KEYED:
        for table in tables_of(each):
            ends = [lakes.comparable(lakes.rows(where, table), without=without) for where in (bucket, folder)]
            assert ends[0] == ends[1], table
        lakes.assert_balanced(bucket, each)
        checkpoint = checkpoint_of(bucket, each.name)
        assert checkpoint.epoch.number == 2
        assert verify(checkpoint, begun_with(checkpoint.epoch)) == []
        asked = plan_state(bucket, each.name, keys=(), open_windows=False, at=None, limit=1_000)
        kept = {state.side: len(state.rows) for state in read_state(spark, bucket, asked)}
        assert kept["waiting"] > 0
        assert kept["kept"] > 0
