"""A command that is killed, with its JVM, right after the first time that it has done what DIES_AFTER names.

DIES_AFTER is `module:function` or `module:class.method`, of `spark_jobs`; the arguments are those of `tidemark`.
"""

import os
import signal
from importlib import import_module
from typing import Any

from spark_jobs.cli import main

_MODULE, _, _PATH = os.environ["DIES_AFTER"].partition(":")
*_OWNERS, _STEP = _PATH.split(".")
_owner: Any = import_module(f"spark_jobs.{_MODULE}")
for _name in _OWNERS:
    _owner = getattr(_owner, _name)
_done = getattr(_owner, _STEP)


def _and_dies(*arguments: Any, **named: Any) -> None:
    _done(*arguments, **named)
    os.killpg(0, signal.SIGKILL)


setattr(_owner, _STEP, _and_dies)
main()
