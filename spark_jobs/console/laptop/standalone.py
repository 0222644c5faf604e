"""Airflow's processes on this machine: `airflow standalone`, and the API of its tasks apart from the one of people.

Airflow's API server notes who has triggered what before it answers, and no other request of that server is served
until the note is written. SQLite lets one write at a time: where a task's request had written and was about to commit,
both waited for each other, for as long as a writer waits for another one, a minute. In two servers neither is in the
other's way.

On SQLite Airflow's scheduler may end, too: where a backfill is created while something else writes, Airflow answers
that the database is locked, and takes days back that the scheduler has begun to plan. `airflow standalone` does not
notice that. Here it is noticed, and another scheduler goes on.

It imports nothing of Tidemark: it lives as long as Airflow does.
"""

import contextlib
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil

_LOOK_S = 0.2
_PAUSE_S = 5
"""At least so long a scheduler has run before another one is started."""


def main() -> int:
    """Runs both until one of them ends, and then ends the other one.

    Arguments on the command line: the port of the tasks' API, and Airflow's home.

    Returns:
        The exit code of the one that has ended.
    """
    port, home = sys.argv[1], Path(sys.argv[2])
    everything = subprocess.Popen(["airflow", "standalone"])
    while everything.poll() is None and not _is_set_up(home):
        time.sleep(_LOOK_S)
    tasks = subprocess.Popen(["airflow", "api-server", "--apps", "execution", "--port", port])
    parts = (everything, tasks)
    scheduler = Scheduler(everything.pid)
    while all(part.poll() is None for part in parts):
        scheduler.look()
        time.sleep(_LOOK_S)
    scheduler.terminate()
    for part in parts:
        part.terminate()
    return next(part.returncode for part in parts if part.returncode is not None)


class Scheduler:
    """The scheduler that `airflow standalone` has started, and those that take its place.

    Args:
        standalone: the process id of `airflow standalone`.
    """

    def __init__(self, standalone: int) -> None:
        self._standalone = standalone
        self._first: psutil.Process | None = None
        self._own: subprocess.Popen[bytes] | None = None
        self._since = time.monotonic()

    def look(self) -> None:
        """Starts another one where it has ended."""
        with contextlib.suppress(psutil.Error):
            self._first = self._first or self._started()
        if self._first is None or self._runs() or time.monotonic() - self._since < _PAUSE_S:
            return
        sys.stderr.write("standalone | Airflow's scheduler has ended. Another one is started.\n")
        self._own = subprocess.Popen(["airflow", "scheduler"])
        self._since = time.monotonic()

    def terminate(self) -> None:
        """Ends the one that was started here."""
        if self._own is not None:
            self._own.terminate()

    def _started(self) -> psutil.Process | None:
        children = psutil.Process(self._standalone).children()
        return next((child for child in children if "scheduler" in child.cmdline()), None)

    def _runs(self) -> bool:
        if self._own is not None:
            return self._own.poll() is None
        try:
            # Nobody may have waited for it.
            return self._first is not None and self._first.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def _is_set_up(home: Path) -> bool:
    """Whether there are the secrets that Airflow's processes share, and the database with all of its tables.

    `airflow standalone` makes what is missing, the version of the tables last. A second process must not make either at
    the same time, nor look for tables that are not there yet.
    """
    configuration, database = home / "airflow.cfg", home / "airflow.db"
    if not database.exists() or not configuration.exists() or configuration.stat().st_size == 0:
        return False
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            return connection.execute("SELECT version_num FROM alembic_version").fetchone() is not None
    except sqlite3.Error:
        return False


if __name__ == "__main__":
    sys.exit(main())
