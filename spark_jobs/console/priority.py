"""What computes beside streams leaves the processors to them."""

import os
from contextlib import suppress
from pathlib import Path

from spark_jobs.lake.settings import Settings

_GROUP = Path("/proc/self/autogroup")


def step_aside() -> None:
    """Lowers the priority of this process, and so of the JVM that it starts, by `TIDEMARK_BATCH_NICENESS`.

    The streams of the same machine come first: a repair may take longer, a batch may not. Linux may share processors
    among sessions before it looks at processes. So the session's group is lowered as well, if this process leads it: in
    a person's terminal other programs belong to it.
    """
    niceness = Settings().batch_niceness
    lacking = niceness - os.nice(0)
    if lacking <= 0:
        return
    os.nice(lacking)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no such file: no such groups
            _GROUP.write_text(str(niceness))
