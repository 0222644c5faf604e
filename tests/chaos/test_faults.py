"""What disturbs drivers does what it says: a full disk takes no byte, a clock jumps for a process and comes back."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from obstore.exceptions import BaseError

from spark_jobs.cli.errors import shown
from spark_jobs.lake import Lake
from tests.chaos.faults import Clock, Disk, has_a_compiler
from tests.support.minio import minio_binary, start_minio
from tests.support.process import leave_out
from tests.support.waiting import await_that


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_takes_no_byte_and_is_as_it_was_afterwards(tmp_path: Path) -> None:
    with Disk(tmp_path / "disk") as disk:
        kept = disk.folder / "kept"
        kept.write_text("before")
        with disk.full(random.Random(1)), pytest.raises(OSError, match="No space left"):
            (disk.folder / "more").write_text("x")
        removed = disk.folder / "removed"
        removed.write_bytes(bytes(2**20))
        with disk.full(random.Random(1)):
            removed.unlink()
            await_that(lambda: shutil.disk_usage(disk.folder).free == 0, "a disk that is full again")
        (disk.folder / "more").write_text("after")
        assert sorted(path.name for path in disk.folder.iterdir()) == ["kept", "more"]
        assert kept.read_text() == "before"
    assert not kept.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_minio_on_a_full_disk_says_so_and_writes_again_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if minio_binary() is None:
        leave_out("no MinIO: run `make setup-tests`")
    with Disk(tmp_path / "data", "512m") as disk, start_minio(tmp_path) as minio:
        minio.create_bucket("full")
        for name, value in minio.environment().items():
            monkeypatch.setenv(name, value)
        lake = Lake("s3a://full/lake")
        lake.store.put("kept", b"before")
        with disk.full(random.Random(1)):
            with pytest.raises(BaseError) as refused:
                lake.store.put("more", b"x")
            assert bytes(lake.store.get("kept").bytes()) == b"before"
        (told,) = shown(refused.value)
        assert "no space is left in the lake's store" in str(told)
        assert "XMinioStorageFull" in str(told)
        # For a second MinIO goes by what it last saw of its disk; the client asks again.
        lake.store.put("more", b"after")
        assert sorted(item["path"] for item in lake.store.list().collect()) == ["kept", "more"]


@pytest.mark.skipif(not has_a_compiler(), reason="no C compiler, or not on Linux")
def test_the_clock_of_a_process_jumps_by_an_hour_and_comes_back(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    program = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, **clock.environment}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def hours_ahead() -> int:
            """Of its time of day; the clock by which waits are measured is the one here."""
            before = time.time(), time.monotonic()
            process.stdin.write("?\n")
            process.stdin.flush()
            day, waits = map(float, process.stdout.readline().split())
            after = time.time(), time.monotonic()
            hours = round((day - before[0]) / 3600)
            assert before[0] <= day - 3600 * hours <= after[0]
            assert before[1] <= waits <= after[1]
            return hours

        assert hours_ahead() == 0
        with clock.jumps(random.Random(1)):
            assert abs(hours_ahead()) == 1
        assert hours_ahead() == 0
        process.stdin.close()
