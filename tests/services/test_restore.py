"""Savepoints and going back in a bucket, as in a folder."""

from __future__ import annotations

from pathlib import Path

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begun_with, current_epoch
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.restore.execute import carry_out
from spark_jobs.operations.restore.plan import plan_restore
from spark_jobs.operations.savepoint.execute import show_savepoint, take_savepoint
from tests import archive
from tests.support import lakes

PIPELINES = {each.name: each for each in archive.pipelines()}


def test_a_pipeline_in_a_bucket_goes_back_and_forth_as_in_a_folder(bucket: str, tmp_path: Path) -> None:
    folder = archive.open_archive(archive.NEWEST, tmp_path)
    lake, said = Lake(f"s3a://{bucket}/lake"), list[str]()
    for item in folder.store.list().collect():
        lake.store.put(item["path"], bytes(folder.store.get(item["path"]).bytes()))
    newest = {name: lakes.rows(lake, f"gold.{name}") for name in ("closed", "live", "live__groups")}
    for name in ("closed", "live"):
        take_savepoint(lake, name, said.append, name="newest", by="tests")
        show_savepoint(lake, name, "newest", said.append, as_json=False)
        assert said[-1].endswith("yes, all that it needs is there")
        for where in (lake, folder):
            plan = plan_restore(where, PIPELINES[name], to=None, to_batch=1, by="tests")
            carry_out(where, plan, said.append)
        tables = ("closed",) if name == "closed" else ("live", "live__groups")
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
