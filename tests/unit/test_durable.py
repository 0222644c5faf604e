"""What must outlive a loss of power is on the disk before anything else relies on it."""

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest
from obstore.exceptions import AlreadyExistsError

from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.store.durable import create_object
from tests.support.builders import a_lake, write


@pytest.fixture
def calls(monkeypatch):
    """What the disk is asked for, in order."""
    found = []
    fsync, link = os.fsync, os.link

    def noted_fsync(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        found.append(("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file", name.partition("#")[0]))
        fsync(descriptor)

    def noted_link(existing, name):
        found.append(("link", str(name)))
        link(existing, name)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    return found


def test_an_object_is_on_the_disk_before_its_name_is(tmp_path, calls):
    lake, path = a_lake(tmp_path), str(tmp_path / "a/b.json")
    create_object(lake, "a/b.json", b"content")
    assert calls == [("file", path), ("link", path), ("folder", str(tmp_path / "a"))]
    assert Path(path).read_bytes() == b"content"


def test_of_two_that_create_an_object_the_second_is_refused(tmp_path):
    lake = a_lake(tmp_path)
    create_object(lake, "a/b.json", b"first")
    with pytest.raises(AlreadyExistsError):
        create_object(lake, "a/b.json", b"second")
    assert [path.read_bytes() for path in (tmp_path / "a").iterdir()] == [b"first"]


def test_a_commit_is_forced_with_the_data_files_that_it_names(tmp_path, calls):
    lake = a_lake(tmp_path)
    write(lake, "gold.totals", {"n": pa.array([1, 2])})
    force_commit(lake, "gold.totals", 0)
    table = tmp_path / "gold/totals"
    (data,) = table.glob("*.parquet")
    assert calls[:2] == [("file", str(data)), ("file", str(table / f"_delta_log/{0:020d}.json"))]
    assert set(calls[2:]) == {("folder", str(table)), ("folder", str(table / "_delta_log"))}
