"""What computes beside streams comes after them, to the operating system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASIDE = """
import os
from pathlib import Path
from spark_jobs.console.priority import step_aside

step_aside()
group = Path("/proc/self/autogroup")
print(os.nice(0), group.read_text() if group.exists() else "")
"""


def of_session() -> str | None:
    """The priority of this session's group; none where the kernel has no such groups, or has them switched off."""
    group = Path("/proc/self/autogroup")
    words = group.read_text().split() if group.exists() else []
    return words[-1] if words else None


@pytest.mark.parametrize(("by", "nice"), [("7", 7), ("0", 0)])
@pytest.mark.parametrize("leads", [True, False])
def test_priority_is_lowered_for_no_other_program_of_the_terminal(by: str, nice: int, leads: bool) -> None:
    here, before = os.nice(0), of_session()
    done = subprocess.run(
        [sys.executable, "-c", ASIDE],
        env={**os.environ, "TIDEMARK_BATCH_NICENESS": by},
        start_new_session=leads,
        capture_output=True,
        text=True,
        check=True,
    )
    own, *group = done.stdout.split()
    assert int(own) == max(here, nice)
    assert of_session() == before
    if before is not None and os.access("/proc/self/autogroup", os.W_OK):
        assert group[-1] == (by if leads and nice > here else before if not leads else "0")
