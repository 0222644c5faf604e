"""Airflow's processes on this machine: `airflow standalone`, and the API of its tasks apart from the one of people.

Airflow's API server notes who has triggered what before it answers, and no other request of that server is served
until the note is written. SQLite lets one write at a time: where a task's request had written and was about to commit,
both waited for each other, for as long as a writer waits for another one, a minute. In two servers neither is in the
other's way.

On SQLite Airflow's scheduler may end, too: where a backfill is created while something else writes, Airflow answers
that the database is locked, and takes days back that the scheduler has begun to plan. `airflow standalone` does not
notice that. Here it is noticed, and another scheduler goes on.

Airflow's processes end in three steps. Tasks and the scheduler, which waits for its workers, come before the API's
servers: a worker tells the API what has become of its task, and tries that for minutes where the API has ended.
`airflow standalone` reads what its parts say, and comes last: a scheduler whose words nobody reads any more fails when
it says that it ends, before it has told its workers, and then waits for them for ever.

It imports nothing of Tidemark: it lives as long as Airflow does.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

_LOOK_S = 0.2
_PAUSE_S = 5
"""At least so long a scheduler has run before another one is started."""

_SLOW_S = 2
"""How long parts may wait for others that have ended, or do not."""

_PATIENCE_S = 60
"""How long a process may take to end. Longer than `make down` waits: what it kills it says."""


def main() -> int:
    """Runs both until one of them ends or it is asked to end (SIGTERM), and then ends all of Airflow.

    Arguments on the command line: the port of the tasks' API, and Airflow's home.

    Returns:
        The exit code of the one that has ended; 0 where it was asked.
    """
    port, home = sys.argv[1], Path(sys.argv[2])
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    everything = subprocess.Popen(["airflow", "standalone"])
    servers, scheduler = [everything], Scheduler(everything.pid)
    while not asked and all(server.poll() is None for server in servers):
        if len(servers) == 2:
            scheduler.look()
        elif _is_set_up(home):
            servers.append(subprocess.Popen(["airflow", "api-server", "--apps", "execution", "--port", port]))
        time.sleep(_LOOK_S)
    parts = [part for part in (*_children(everything.pid), *_children(os.getpid())) if part.pid != everything.pid]
    workers = scheduler.workers()
    tasks = [task for worker in workers for task in _children(worker.pid)]
    _end([*tasks, *(part for part in parts if not _is_api(part))], slow=lambda: _hurry(parts, workers))
    _end(parts)
    _end([one for one in _children(os.getpid()) if one.pid == everything.pid])
    return next((server.returncode for server in servers if server.returncode), 0)


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

    def workers(self) -> list[psutil.Process]:
        """What the one that runs has started, and ends itself."""
        if self._own is not None:
            return _children(self._own.pid)
        # Nobody may have looked yet.
        first = self._first or self._started()
        return _children(first.pid) if first is not None else []

    def _started(self) -> psutil.Process | None:
        return next((child for child in _children(self._standalone) if "scheduler" in _command(child).split()), None)

    def _runs(self) -> bool:
        if self._own is not None:
            return self._own.poll() is None
        return self._first is not None and _runs(self._first)


def _end(processes: Iterable[psutil.Process], *, slow: Callable[[], None] | None = None) -> None:
    """Asks processes to end and waits for it; kills those that do not.

    Args:
        processes: all are asked at once.
        slow: called at each look where some take long.
    """
    running = [process for process in processes if _runs(process)]
    for process in running:
        _signal(process, signal.SIGTERM)
    asked = time.monotonic()
    while (left := [process for process in running if _runs(process)]) and time.monotonic() - asked < _PATIENCE_S:
        time.sleep(_LOOK_S / 4)
        if slow is not None and time.monotonic() - asked > _SLOW_S:
            slow()
    for process in left:
        sys.stderr.write(f"standalone | `{_command(process)}` has not ended within {_PATIENCE_S} s and is killed.\n")
        _signal(process, signal.SIGKILL)


def _hurry(parts: Iterable[psutil.Process], workers: Iterable[psutil.Process]) -> None:
    """Kills what has nothing to do any more and keeps Airflow from ending.

    The scheduler waits for a worker that it has not told to end: it sends a message for each one that it sees alive,
    any worker may read it, and one that has read one and ended is not seen any more. The triggerer often waits ten
    seconds for its runner when that has ended; what it watches is in the database.
    """
    for worker in workers:
        if _command(worker).endswith("<idle>"):  # so a worker calls itself while it waits for a task
            _signal(worker, signal.SIGKILL)
    for part in parts:
        if _command(part).endswith("triggerer"):
            for process in (*_children(part.pid), part):
                _signal(process, signal.SIGKILL)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _runs(process: psutil.Process) -> bool:
    try:
        # One that has ended stays a zombie where nobody waits for it.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children())
    except psutil.NoSuchProcess:
        return []


def _is_api(process: psutil.Process) -> bool:
    # As it was started, and as it calls itself.
    return any(name in _command(process) for name in ("api-server", "api_server"))


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


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
