"""Checkpoints in a bucket are looked into as those in a folder."""

from __future__ import annotations

from pathlib import Path

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.copying import copy_batch
from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe, summaries
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.checkpoints.verifying import Fault, verify
from tests import archive


def faults(lake: Lake, name: str) -> list[Fault]:
    checkpoint = checkpoint_of(lake, name)
    return verify(checkpoint, begun_with(checkpoint.epoch))


def test_a_checkpoint_in_a_bucket_is_whole_and_its_damage_is_found(bucket: str, tmp_path: Path) -> None:
    folder = archive.open_archive(archive.NEWEST, tmp_path)
    lake = Lake(f"s3a://{bucket}/lake")
    for item in folder.store.list().collect():
        lake.store.put(item["path"], bytes(folder.store.get(item["path"]).bytes()))

    names = [pipeline.name for pipeline in archive.pipelines()]
    assert {name: faults(lake, name) for name in names} == {name: [] for name in names}
    assert [(each.pipeline, each.committed) for each in summaries(lake)] == [
        (each.pipeline, each.committed) for each in summaries(folder)
    ]
    assert describe(checkpoint_of(lake, "paid")).stores == describe(checkpoint_of(folder, "paid")).stores

    checkpoint = checkpoint_of(lake, "closed")
    copied, batch = copy_batch(lake, checkpoint.epoch, tmp_path / "here")
    changelog = next(path for path in copied.needed(batch) if path.endswith(".changelog"))
    assert (tmp_path / "here" / changelog).is_file()
    lake.store.delete([f"{checkpoint.epoch.folder}/{changelog}"])
    assert [(fault.path, fault.what) for fault in faults(lake, "closed")] == [(changelog, "is missing")]
