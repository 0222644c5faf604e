"""What `make up` does before Airflow has to do with it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from spark_jobs.console.laptop import airflow, commands
from spark_jobs.console.laptop.airflow import AirflowError
from spark_jobs.console.laptop.processes import Background
from spark_jobs.control.desired import awaiting, orders
from spark_jobs.control.supervision import status
from spark_jobs.lake import Lake
from spark_jobs.pipelines import resolve
from tests.support.builders import a_lake
from tests.support.deploying import deploy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def given_up(tmp_path: Path) -> Lake:
    """The demonstration, deployed once, whose driver has ended too often."""
    lake = a_lake(tmp_path / "lake")
    deploy(lake, list(resolve(commands.PIPELINES)))
    number = orders.records(lake, "streams").newest_number()
    failed = status.Status(job="streams", state="failed", since=NOW, order=number, supervisor="an/earlier/one")
    status.records(lake, "streams").append(1, failed)
    return lake


def test_what_was_given_up_is_ordered_again_and_awaited(given_up: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = []
    monkeypatch.setattr(awaiting, "await_running", lambda lake, wanted, **_: awaited.extend(wanted))
    out = StringIO()
    console = Console(file=out, width=200)
    assert commands._deploy(console, console, given_up, None) == 0  # type: ignore[arg-type]
    running = orders.all_desired(given_up)["streams"].running
    assert {name: order.generation for name, order in running.items()} == dict.fromkeys(commands.PIPELINES, 2)
    assert {each.pipeline: each.generation for each in awaited} == dict.fromkeys(commands.PIPELINES, 2)
    assert "Given up before, and ordered again: " in out.getvalue()


def test_what_runs_is_ordered_once(given_up: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaiting, "await_running", lambda lake, wanted, **_: None)
    running = status.Status(job="streams", state="running", since=NOW)
    status.records(given_up, "streams").append(2, running)
    before = orders.all_desired(given_up)
    out = Console(file=StringIO())
    assert commands._deploy(out, out, given_up, None) == 0  # type: ignore[arg-type]
    assert orders.all_desired(given_up) == before


@pytest.mark.parametrize(("memory", "restarted"), [("1g", False), ("3g", True)])
def test_changed_settings_restart_the_supervisor_of_a_job_given_up(
    given_up: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, restarted: bool
) -> None:
    airflow_, supervisor, shop = (
        Background(name, home=tmp_path / "run", log=tmp_path / f"{name}.log") for name in commands.PARTS
    )
    processes = (airflow_, supervisor, shop)
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setenv("TIDEMARK_DRIVER_MEMORY", "1g")
    facts = {"lake": given_up.uri, "settings": commands._settings()}
    try:
        for process in processes:
            process.start(sleeps, environment=dict(os.environ), **facts)
        before = supervisor.facts()["pid"]
        monkeypatch.setattr(commands.sys, "executable", "/bin/sleep")  # what is started in its place needs no more
        monkeypatch.setenv("TIDEMARK_DRIVER_MEMORY", memory)
        said = list(commands._start_missing(given_up, tmp_path, 1, processes))
        assert (supervisor.facts()["pid"] != before) is restarted
        assert any("job streams was given up, and TIDEMARK_DRIVER_MEMORY has changed" in line for line in said) is (
            restarted
        )
        assert supervisor.facts()["settings"] == commands._settings()
    finally:
        for process in processes:
            process.stop(within_s=0)


def test_of_two_commands_that_begin_at_once_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_start_missing", lambda *_: pytest.fail("it starts what the first one does"))
    console, lake = Console(file=StringIO()), Lake(str(tmp_path / "lake"))
    up = "from spark_jobs.console.laptop import commands; import pathlib, sys\n"
    up += "with commands._alone(pathlib.Path('.airflow').absolute()): print('at work', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", up], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"at work\n"
        for command in (lambda: commands.up(console, console, lake), lambda: commands.down(console, lake)):
            with pytest.raises(
                AirflowError, match=rf"is at work here already \(process {first.pid}\)\. Nothing was ch"
            ):
                command()
        assert not (tmp_path / ".airflow/run").exists()
        assert not (tmp_path / "lake").exists()
        first.kill()
        first.communicate()
    # One that was killed holds up nobody.
    assert commands.down(console, lake) == 0


def modes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder.parent)): f"{path.stat().st_mode & 0o777:o}" for path in [folder, *folder.iterdir()]
    }


def test_what_airflow_finds_at_its_start_is_for_nobody_else_to_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = os.umask(0o022)
    try:
        airflow.prepare_home(home)
    finally:
        os.umask(before)
    assert modes(home) == {
        "home": "700",
        "home/airflow.db": "600",
        "home/simple_auth_manager_passwords.json.generated": "600",
    }
    secret = airflow.password(home)
    assert secret is not None
    assert len(secret) >= 16
    airflow.prepare_home(home)
    assert airflow.password(home) == secret


def test_a_password_that_others_could_read_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "simple_auth_manager_passwords.json.generated"
    file.write_text('{"admin": "known-to-all"}')
    file.chmod(0o644)
    tmp_path.chmod(0o755)
    airflow.prepare_home(tmp_path)
    assert airflow.password(tmp_path) not in (None, "known-to-all")
    assert modes(tmp_path)[f"{tmp_path.name}/{file.name}"] == "600"
    assert modes(tmp_path)[tmp_path.name] == "700"


def test_what_is_left_of_a_removed_database_is_no_part_of_the_new_one(tmp_path: Path) -> None:
    for name in ("airflow.db-wal", "airflow.db-shm"):
        (tmp_path / name).write_text("of the old one")
    airflow.prepare_home(tmp_path)
    assert not any(b"of the old one" in path.read_bytes() for path in tmp_path.glob("airflow.db*"))


def test_the_password_is_told_to_a_person_and_to_no_log(tmp_path: Path) -> None:
    airflow.prepare_home(tmp_path)
    secret = str(airflow.password(tmp_path))
    for terminal in (True, False):
        out = StringIO()
        api = airflow.Airflow(tmp_path, 1)
        commands._tell(
            Console(file=out, force_terminal=terminal, width=300),
            commands._Times(None),
            api,
            tmp_path,
            a_lake(tmp_path / "lake"),
        )
        assert (secret in out.getvalue()) is terminal
        assert (airflow.password_file(tmp_path).name in out.getvalue()) is not terminal


def test_nobody_else_can_read_the_log_and_files_of_a_private_process(tmp_path: Path) -> None:
    log = tmp_path / "airflow.log"
    log.write_text("from before")
    log.chmod(0o644)
    process = Background("airflow", home=tmp_path / "run", log=log)
    writes = f"open({str(tmp_path / 'written')!r}, 'w').close()"
    process.start([sys.executable, "-c", writes], environment=dict(os.environ), private=True)
    with suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int(str(process.facts()["pid"]))).wait(60)
    assert {modes(tmp_path)[f"{tmp_path.name}/{name}"] for name in ("airflow.log", "written")} == {"600"}
