"""Savepoints and going back in a bucket, as in a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begun_with, current_epoch
from spark_jobs.lake.checkpoints.restoring import open_restore
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.restore.execute import carry_out
from spark_jobs.operations.restore.plan import plan_restore
from spark_jobs.operations.savepoint.execute import show_savepoint, take_savepoint
from spark_jobs.spec import Files
from tests import archive
from tests.chaos import kills
from tests.chaos.test_killed_restore import DYING, STEPS
from tests.spark.test_restore import HIDDEN, KINDS, an_ingest, by_duckdb_windows, land
from tests.support import lakes
from tests.support.clicks import events
from tests.support.minio import Minio

PIPELINES = {each.name: each for each in archive.pipelines()}


@pytest.mark.parametrize(
    "name",
    [
        "live",
        # Without the groups of a ranking there is a table less to bring back: [live]
        pytest.param("closed", marks=pytest.mark.long),
    ],
)
def test_a_pipeline_in_a_bucket_goes_back_and_forth_as_in_a_folder(bucket: str, tmp_path: Path, name: str) -> None:
    folder = archive.open_archive(archive.NEWEST, tmp_path)
    lake, said = Lake(f"s3a://{bucket}/lake"), list[str]()
    for item in folder.store.list().collect():
        lake.store.put(item["path"], bytes(folder.store.get(item["path"]).bytes()))
    tables = ("closed",) if name == "closed" else ("live", "live__groups")
    newest = {table: lakes.rows(lake, f"gold.{table}") for table in tables}
    take_savepoint(lake, name, said.append, name="newest", by="tests")
    show_savepoint(lake, name, "newest", said.append, as_json=False)
    assert said[-1].endswith("yes, all that it needs is there")
    for where in (lake, folder):
        plan = plan_restore(where, PIPELINES[name], to=None, to_batch=1, by="tests")
        carry_out(where, plan, said.append)
    for table in tables:
        found = lakes.comparable(lakes.rows(lake, f"gold.{table}"))
        assert found == lakes.comparable(lakes.rows(folder, f"gold.{table}"))
        assert found != lakes.comparable(newest[table])
    epoch = current_epoch(lake, name)
    assert epoch is not None
    assert (epoch.number, epoch.restored.batch if epoch.restored else None) == (2, 1)
    checkpoint = checkpoint_of(lake, name)
    assert verify(checkpoint, begun_with(checkpoint.epoch)) == []
    lakes.assert_balanced(lake, PIPELINES[name])

    carry_out(lake, plan_restore(lake, PIPELINES[name], to="newest", to_batch=None, by="tests"), said.append)
    for table in tables:
        assert lakes.comparable(lakes.rows(lake, f"gold.{table}")) == lakes.comparable(newest[table])
    lakes.assert_balanced(lake, PIPELINES[name])


# Each kind of step, and each death within a process: tests/spark/test_restore.py. Each real death, in a folder:
# tests/chaos/test_killed_restore.py
def test_what_runs_on_in_a_bucket_after_a_killed_restore_ends_undisturbed(
    spark: SparkSession, minio: tuple[Minio, str], tmp_path: Path
) -> None:
    lake, files = Lake(f"s3a://{minio[1]}/lake"), tmp_path / "landing"
    source = Files("landing", max_files_per_trigger=1)
    ingest, reader = an_ingest(files).model_copy(update={"source": source}), KINDS["windowed"]

    def found() -> dict[str, list[tuple[Any, ...]]]:
        """The rows, less in which batch they came: behind a restore a reader has one more, which reads nothing."""
        names = ("bronze.clicks", "bronze.clicks__quarantine", "gold.windowed", "gold.windowed__late")
        return {name: lakes.comparable(lakes.rows(lake, name), without=(*HIDDEN, "_batch_id")) for name in names}

    land(files, events(11, batches=3, size=20), range(3))
    arriving = sorted(files.iterdir())
    kills._put(lake, ingest, arriving[:2])
    lakes.run_all(spark, lake, [ingest, reader], close=False)
    take_savepoint(lake, ingest.name, print, name="second", by="tests")
    kills._put(lake, ingest, arriving[2:])
    lakes.run_all(spark, lake, [ingest, reader], close=False)
    # What would have been without the restore: the same files are read again, in the same batches.
    undisturbed = found()
    assert lakes.rows(lake, "gold.windowed__late")

    arguments = ["restore", lakes.a_file(tmp_path, ingest), "--to", "second", "--yes", "--lake", lake.uri]
    kills.run_until_death([sys.executable, DYING, *arguments], {"DIES_AFTER": STEPS["a table"]})
    assert open_restore(lake) is not None
    assert found() != undisturbed
    # A start of its pipelines finishes it; of one of them alone: tests/spark/test_restore.py::
    # test_an_ingest_goes_back_with_its_readers_however_often_it_dies[_name_again]
    lakes.run_all(spark, lake, [ingest, reader], close=False)
    assert open_restore(lake) is None

    assert found() == undisturbed
    for each, read in ((ingest, 63), (reader, 60)):
        lakes.assert_balanced(lake, each)
        assert sum(entry["read"] for _, entry in lakes.ledger(lake, each)) == read
        checkpoint = checkpoint_of(lake, each.name)
        assert checkpoint.epoch.number == 2
        assert verify(checkpoint, begun_with(checkpoint.epoch)) == []
    counted = sum(row["n"] for row in lakes.rows(lake, "gold.windowed"))
    missed = sum(len(row["missed_windows"]) for row in lakes.rows(lake, "gold.windowed__late"))
    assert counted + missed == sum(n for *_, n in by_duckdb_windows(lake))
