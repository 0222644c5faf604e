"""What `make up` does about what was given up, before Airflow has to do with it."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from spark_jobs.console.laptop import commands
from spark_jobs.console.laptop.processes import Background
from spark_jobs.control import awaiting, orders, status
from spark_jobs.lake import Lake
from spark_jobs.pipelines import resolve
from tests.builders import a_lake

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def given_up(tmp_path: Path) -> Lake:
    """The demonstration, deployed once, whose driver has ended too often."""
    lake = a_lake(tmp_path / "lake")
    orders.deploy(lake, list(resolve(commands.PIPELINES)), by="a test")
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
def test_a_supervisor_whose_settings_have_changed_is_started_again_where_a_job_was_given_up(
    given_up: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, restarted: bool
) -> None:
    airflow, supervisor, shop = (
        Background(name, home=tmp_path / "run", log=tmp_path / f"{name}.log") for name in commands.PARTS
    )
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setenv("TIDEMARK_DRIVER_MEMORY", "1g")
    facts = {"lake": given_up.uri, "settings": commands._settings()}
    try:
        for process in (airflow, supervisor, shop):
            process.start(sleeps, environment=dict(os.environ), **facts)
        before = supervisor.facts()["pid"]
        monkeypatch.setattr(commands.sys, "executable", "/bin/sleep")  # what is started in its place needs no more
        monkeypatch.setenv("TIDEMARK_DRIVER_MEMORY", memory)
        said = list(commands._start_missing(given_up, tmp_path, 1, (airflow, supervisor, shop)))
        assert (supervisor.facts()["pid"] != before) is restarted
        assert any("job streams was given up, and TIDEMARK_DRIVER_MEMORY has changed" in line for line in said) is (
            restarted
        )
        assert supervisor.facts()["settings"] == commands._settings()
    finally:
        for process in (airflow, supervisor, shop):
            process.stop(within_s=0)
