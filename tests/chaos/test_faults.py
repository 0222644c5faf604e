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
            until = time.monotonic() + 10
            while (free := shutil.disk_usage(disk.folder).free) and time.monotonic() < until:
                time.sleep(0.01)
            assert free == 0, "what was removed is filled again"
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

        def ahead() -> tuple[float, float]:
            """By how much its clocks differ from those here: that of the day, and that by which waits are measured."""
            process.stdin.write("?\n")
            process.stdin.flush()
            day, waits = map(float, process.stdout.readline().split())
            return day - time.time(), waits - time.monotonic()

        assert ahead() == pytest.approx((0, 0), abs=5)
        with clock.jumps(random.Random(1)):
            day, waits = ahead()
            assert abs(day) == pytest.approx(3600, abs=5)
            assert waits == pytest.approx(0, abs=5)
        assert ahead() == pytest.approx((0, 0), abs=5)
        process.stdin.close()
