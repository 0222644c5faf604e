"""A command that is killed, with its JVM, right after the first step of a swap that DIES_AFTER names.

It takes the arguments of `tidemark`.
"""

import os
import signal
from typing import Any

from spark_jobs.cli import main
from spark_jobs.lake.checkpoints import swapping

_STEP = os.environ["DIES_AFTER"]
_done = getattr(swapping, _STEP)


def _and_dies(*arguments: Any, **named: Any) -> None:
    _done(*arguments, **named)
    os.killpg(0, signal.SIGKILL)


setattr(swapping, _STEP, _and_dies)
main()
