"""A driver that falls asleep, with its JVM, between the check of its term and the creation of a commit file.

It takes the arguments of `tidemark`; ZOMBIE_TABLE and ZOMBIE_VERSION say before which commit it sleeps, once.
"""

import os
import signal
from typing import Any

from spark_jobs.cli import main
from spark_jobs.commits import writer as commits

_TABLE, _VERSION = os.environ["ZOMBIE_TABLE"], int(os.environ["ZOMBIE_VERSION"])
_commit = commits.write_deltalake


def _sleep_before(table: Any, *arguments: Any, **options: Any) -> None:
    place = str(getattr(table, "table_uri", table)).rstrip("/")
    if place.endswith("/" + _TABLE.replace(".", "/")) and table.version() + 1 == _VERSION:
        os.killpg(0, signal.SIGSTOP)
    _commit(table, *arguments, **options)


commits.write_deltalake = _sleep_before
main()
