"""A driver that falls asleep, with its JVM, between the check of its term and the creation of a commit file.

It takes the arguments of `tidemark`; ZOMBIE_TABLE and ZOMBIE_VERSION say before which commit it sleeps, once.
"""

import os
import signal
from typing import Any

from deltalake import DeltaTable

from spark_jobs.cli import main
from spark_jobs.commits import small as commits
from spark_jobs.lake import Lake

_TABLE, _VERSION = os.environ["ZOMBIE_TABLE"], int(os.environ["ZOMBIE_VERSION"])
_commit = commits.append


def _sleep_before(lake: Lake, table: str, opened: DeltaTable, *arguments: Any) -> None:
    if table == _TABLE and opened.version() + 1 == _VERSION:
        os.killpg(0, signal.SIGSTOP)
    _commit(lake, table, opened, *arguments)


commits.append = _sleep_before
main()
