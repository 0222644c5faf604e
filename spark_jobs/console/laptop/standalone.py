"""Airflow's processes on this machine: `airflow standalone`, and the API of its tasks apart from the one of people.

Airflow's API server notes who has triggered what before it answers, and no other request of that server is served
until the note is written. SQLite lets one write at a time: where a task's request had written and was about to commit,
both waited for each other, for as long as a writer waits for another one, a minute. In two servers neither is in the
other's way.

It imports nothing of Tidemark: it lives as long as Airflow does.
"""

import contextlib
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

_LOOK_S = 0.2


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
    while all(part.poll() is None for part in parts):
        time.sleep(_LOOK_S)
    for part in parts:
        part.terminate()
    return next(part.returncode for part in parts if part.returncode is not None)


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
