"""Processes of `make up`: found again by what was written down, ended whole, and nobody else's touched."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console
from tenacity import wait_none

from spark_jobs.console import laptop
from spark_jobs.console.laptop import commands, standalone
from spark_jobs.console.laptop.airflow import Airflow, AirflowError
from spark_jobs.console.laptop.ports import free_port
from spark_jobs.console.laptop.processes import Background
from spark_jobs.control.supervision.launchers import birth, is_running
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import TidemarkError
from tests.dags.machine import until

# A process that starts another in its session, says so, and stays.
_FAMILY = (
    "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print('ready', flush=True); time.sleep(600)"
)
_ALONE = "import time; print('ready', flush=True); time.sleep(600)"
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    found = Background("family", home=tmp_path / "run", log=tmp_path / "family.log")
    yield found
    found.stop(within_s=0)


def started(background: Background, program: str) -> psutil.Process:
    background.start([sys.executable, "-c", program], environment=dict(os.environ), port=1234)
    until(lambda: "ready" in background.log.read_text(), 30, "its first word")
    pid = background.facts()["pid"]
    assert isinstance(pid, int)
    return psutil.Process(pid)


def test_what_was_started_is_found_again_with_what_was_remembered(background: Background, tmp_path: Path) -> None:
    started(background, _FAMILY)
    again = Background("family", home=tmp_path / "run", log=tmp_path / "family.log")
    assert again.runs()
    assert again.facts()["port"] == 1234


def test_stopping_ends_the_process_and_what_it_started(background: Background) -> None:
    children = started(background, _FAMILY).children()
    assert len(children) == 1
    assert background.stop(within_s=20).startswith("ended in")
    assert not background.runs()
    assert not is_running(children[0].pid, birth(children[0]))
    assert background.stop(within_s=1) == "was not running"


def test_what_outlives_a_killed_process_is_ended_too(background: Background) -> None:
    process = started(background, _FAMILY)
    children = process.children()
    process.kill()
    until(lambda: not background.runs(), 10, "its end")
    assert background.stop(within_s=20).startswith("ended in")
    assert not is_running(children[0].pid, birth(children[0]))


def test_what_does_not_listen_is_killed_after_the_time_out(background: Background) -> None:
    started(background, _DEAF + _FAMILY)
    assert background.stop(within_s=0.5).startswith("2 of 2 processes killed")
    assert not background.runs()


def test_down_ends_all_that_up_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = [Background(name, home=tmp_path / ".airflow/run", log=tmp_path / f"{name}.log") for name in commands.PARTS]
    try:
        # Each is asked alone, and then what it leaves behind.
        for each in parts:
            started(each, _FAMILY if each.name == "airflow" else _ALONE)
        laptop.down(Console(file=StringIO()), Lake(str(tmp_path / "lake")).ensure_exists())
        assert [each.runs() for each in parts] == [False] * 3
        assert parts[0].stop(within_s=1) == "was not running"
    finally:
        for each in parts:
            each.stop(within_s=0)


def test_another_process_of_the_same_number_is_left_alone(background: Background, tmp_path: Path) -> None:
    other = started(background, _FAMILY)
    record = tmp_path / "run/family.json"
    before = record.read_text()
    start, _, seconds = birth(other).rpartition("/")
    for born in (f"{start}/{float(seconds) - 3600}", f"an-earlier-start/{seconds}"):
        record.write_text(json.dumps({**json.loads(before), "born": born}))
        assert not background.runs()
        assert background.stop(within_s=1) == "was not running"
        assert other.is_running()
    record.write_text(before)


def test_a_port_that_somebody_holds_is_named_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    console = Console(file=StringIO())
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        monkeypatch.setenv("TIDEMARK_AIRFLOW_PORT", str(port))
        with pytest.raises(AirflowError, match=rf"port {port}: .* TIDEMARK_AIRFLOW_PORT={port + 10} make up"):
            laptop.up(console, console, Lake(str(tmp_path / "lake")))
    assert not (tmp_path / ".airflow/run").exists()
    assert not (tmp_path / "lake").exists()


def test_a_port_that_nobody_may_take_is_not_told_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may take any.
    monkeypatch.setattr(commands, "is_free", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(AirflowError, match=r"port 80: Airflow cannot listen there \(Permission denied\)\."):
        commands._refuse_taken(80)


def test_a_supervisor_that_has_ended_is_told_with_what_it_said_last(tmp_path: Path) -> None:
    supervisor = Background("supervisor", home=tmp_path / "run", log=tmp_path / "supervisor.log")
    ends = "print('error: cannot serve metrics on 127.0.0.1:9463'); raise SystemExit(1)"
    supervisor.start([sys.executable, "-c", ends], environment=dict(os.environ))
    until(lambda: not supervisor.runs(), 30, "its end")
    with pytest.raises(TidemarkError) as refused:
        commands._refuse_ended(supervisor)
    told = str(refused.value)
    assert told.startswith("supervisor has ended. It said last:\n    error: cannot serve metrics on 127.0.0.1:9463\n")
    assert f"Its log: {supervisor.log}" in told
    assert "TIDEMARK_METRICS_PORT=9563 make up" in told


def test_an_airflow_that_does_not_answer_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Airflow._sent.retry, "wait", wait_none())  # type: ignore[attr-defined]
    with pytest.raises(
        AirflowError, match=r"127\.0\.0\.1:\d+ does not answer GET /api/v2/dags: .* `make up` starts it"
    ):
        Airflow(tmp_path, free_port()).get("dags")


def test_airflows_scheduler_ends_before_its_reader_and_the_api_of_its_tasks(
    background: Background, tmp_path: Path
) -> None:
    """As they are: a scheduler whose last words nobody reads fails, and its workers wait for it for ever.

    One of its workers may wait for ever in any case, and the scheduler for it. The triggerer waits for what has ended.
    """
    home, airflow = tmp_path / "home", tmp_path / "airflow"
    home.mkdir()
    (home / "airflow.cfg").write_text("secrets")
    with contextlib.closing(sqlite3.connect(home / "airflow.db")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num)")
        database.execute("INSERT INTO alembic_version VALUES (1)")
    airflow.write_text(
        f"""#!{sys.executable}
import os, signal, subprocess, sys, time
def ends(*_):
    if os.path.exists("{tmp_path}/told"):
        open("{tmp_path}/served", "w").close()
    sys.exit()
def says_that_it_ends(*_):
    for line in range(20):
        print(line, flush=True)
        time.sleep(0.05)
    worker.wait()
    open("{tmp_path}/told", "w").close()
    sys.exit()
if sys.argv[1] == "standalone":
    triggerer = subprocess.Popen([sys.argv[0], "triggerer"])
    scheduler = subprocess.Popen([sys.argv[0], "scheduler"], stdout=subprocess.PIPE)
    for line in scheduler.stdout:
        sys.stdout.write(line.decode())
        sys.stdout.flush()
elif sys.argv[1] == "scheduler":
    worker = subprocess.Popen([sys.argv[0], "worker", "--", "LocalExecutor:", "<idle>"])
    signal.signal(signal.SIGTERM, says_that_it_ends)
    print("ready", flush=True)
elif sys.argv[1] in ("worker", "triggerer"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(sys.argv[1], flush=True)
else:
    signal.signal(signal.SIGTERM, ends)
    print("serving", flush=True)
time.sleep(600)
"""
    )
    airflow.chmod(0o755)
    environment = {**os.environ, "PATH": os.pathsep.join((str(tmp_path), os.environ["PATH"]))}
    background.start([sys.executable, standalone.__file__, "1234", str(home)], environment=environment)
    words = {"ready", "serving", "worker", "triggerer"}
    until(lambda: words <= set(background.log.read_text().split()), 30, "the first words of all")
    assert background.stop(within_s=20).startswith("ended in")
    assert (tmp_path / "told").exists()
    assert (tmp_path / "served").exists()


@pytest.mark.parametrize("ends", ["standalone", "api-server"])
def test_where_one_server_of_airflow_ends_the_other_one_ends_too(ends: str, tmp_path: Path) -> None:
    home, pids = tmp_path / "home", tmp_path / "pids"
    home.mkdir()
    airflow = tmp_path / "airflow"
    script = tmp_path / "database.py"
    script.write_text(
        """import sqlite3, sys
with sqlite3.connect(sys.argv[2]) as database:
    if sys.argv[1] == "standalone":
        database.execute("CREATE TABLE alembic_version (version_num)")
        database.execute("INSERT INTO alembic_version VALUES (1)")
    assert database.execute("SELECT version_num FROM alembic_version").fetchone()
"""
    )
    # Left from before, as where only the database was removed.
    (home / "airflow.cfg").write_text("secrets")
    # The tasks' server has to find what standalone makes last; each ends only when both have begun.
    airflow.write_text(
        f"""#!/bin/sh
        echo $$ >> {pids}
        {sys.executable} {script} $1 {home}/airflow.db || exit 1
        [ $1 = {ends} ] || exec sleep 600
        until [ $(wc -l < {pids}) = 2 ]; do sleep 0.1; done
        exit 3
        """
    )
    airflow.chmod(0o755)
    environment = {**os.environ, "PATH": os.pathsep.join((str(tmp_path), os.environ["PATH"]))}
    command = [sys.executable, standalone.__file__, "1234", str(home)]
    done = subprocess.run(command, env=environment, timeout=60, check=False)
    assert done.returncode == 3
    both = [int(pid) for pid in pids.read_text().split()]
    assert len(both) == 2
    until(lambda: not any(psutil.pid_exists(pid) for pid in both), 30, "the end of both")


def test_where_airflows_scheduler_ends_another_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`airflow standalone` does not wait for its parts: one that has ended stays a zombie."""
    pids = tmp_path / "pids"
    airflow = tmp_path / "airflow"
    airflow.write_text(f"#!/bin/sh\necho $$ >> {pids}\nexec sleep 600\n")
    airflow.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path), os.environ["PATH"])))
    monkeypatch.setattr(standalone, "_PAUSE_S", 0)
    script = tmp_path / "parent.py"
    script.write_text(
        f"""import subprocess, sys, time
if len(sys.argv) > 2:
    subprocess.Popen([sys.executable, {str(script)!r}, *sys.argv[2:]])
time.sleep(600)
"""
    )
    with subprocess.Popen([sys.executable, str(script), "standalone", "scheduler", "worker"]) as parent:
        scheduler = standalone.Scheduler(parent.pid)
        try:
            (first,) = until(lambda: psutil.Process(parent.pid).children(), 30, "the scheduler") or ()
            until(lambda: "scheduler" in first.cmdline(), 30, "the scheduler")
            # Also where Airflow is to end before anybody has looked.
            (worker,) = until(scheduler.workers, 30, "its worker") or ()
            assert worker.parent() == first
            worker.kill()
            scheduler.look()
            assert not pids.exists(), "it runs"
            for number in (1, 2):
                (first if number == 1 else psutil.Process(int(pids.read_text().split()[-1]))).kill()

                def others(number: int = number) -> bool:
                    scheduler.look()
                    return pids.exists() and len(pids.read_text().split()) == number

                until(others, 30, "another one")
        finally:
            for left in psutil.Process(parent.pid).children(recursive=True):
                left.kill()
            parent.kill()
            if scheduler._own is not None:
                scheduler._own.kill()
                scheduler._own.wait()


def test_a_supervisor_that_runs_is_not_complained_about(background: Background) -> None:
    started(background, _FAMILY)
    commands._refuse_ended(background)


def test_what_runs_for_another_lake_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    console = Console(file=StringIO())
    shop = Background("shop", home=tmp_path / ".airflow/run", log=tmp_path / "shop.log")
    shop.start(["sleep", "600"], environment=dict(os.environ), lake="/another/lake")
    try:
        with pytest.raises(AirflowError, match=r"was started for /another/lake\. Nothing was changed"):
            laptop.up(console, console, Lake(str(tmp_path / "lake")))
        assert shop.runs()
    finally:
        shop.stop(within_s=5)
