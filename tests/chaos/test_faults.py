"""What disturbs drivers does what it says: a full disk takes no byte, a clock jumps for a process and comes back."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.faults import Clock, Disk, has_a_compiler


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_takes_no_byte_and_is_as_it_was_afterwards(tmp_path: Path) -> None:
    with Disk(tmp_path / "disk") as disk:
        kept = disk.folder / "kept"
        kept.write_text("before")
        with disk.full(random.Random(1)), pytest.raises(OSError, match="No space left"):
            (disk.folder / "more").write_text("x")
        (disk.folder / "more").write_text("after")
        assert sorted(path.name for path in disk.folder.iterdir()) == ["kept", "more"]
        assert kept.read_text() == "before"
    assert not kept.exists()


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
