"""What checkpoints of an archived lake hold, read without a JVM: groups, keys, a join, a running total."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.changelogs import DamagedFileError, read_changelog, read_snapshot
from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.spec import Pipeline
from tests import archive


@pytest.fixture
def archived(tmp_path: Path) -> Lake:
    return archive.open_archive(archive.NEWEST, tmp_path)


@pytest.mark.parametrize("pipeline", archive.pipelines(), ids=lambda pipeline: pipeline.name)
def test_nothing_is_wrong_with_an_archived_checkpoint(archived: Lake, pipeline: Pipeline) -> None:
    checkpoint = checkpoint_of(archived, pipeline.name)
    assert verify(checkpoint, begun_with(checkpoint.epoch)) == []


def test_a_join_has_four_stores_and_each_its_rows(archived: Lake) -> None:
    stores = describe(checkpoint_of(archived, "paid")).stores
    assert {store.name for store in stores} == {"symmetricHashJoin"}
    # As Spark's own reader gives them: five events wait on the left, two on the right.
    assert {store.store: store.rows for store in stores if "WithIndex" in store.store} == {
        "left-keyWithIndexToValue": 5,
        "right-keyWithIndexToValue": 2,
    }


def test_a_changelog_that_is_cut_anywhere_is_seen(archived: Lake) -> None:
    for path in Path(archived.uri).glob("_checkpoints/*/epoch-1/state/**/*.changelog"):
        content = path.read_bytes()
        read_changelog(content)
        for length in range(len(content)):
            with pytest.raises(DamagedFileError):
                read_changelog(content[:length])


@pytest.mark.parametrize("content", [b"", b"PK", b"LZ4Block"])
def test_what_is_no_file_of_state_is_refused(content: bytes) -> None:
    for read in (read_changelog, read_snapshot):
        with pytest.raises(DamagedFileError):
            read(content)
