"""Commands for deployed streams refuse what they cannot read before they do anything."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app, run_told
from spark_jobs.control import mutes, orders
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.spec import DefinitionError
from tests.builders import a_lake, a_pipeline


def refusal(*arguments: str) -> str:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, DefinitionError)
    return str(error)


@pytest.fixture
def deployed(tmp_path: Path) -> Lake:
    lake = a_lake(tmp_path)
    orders.deploy(lake, [a_pipeline()], by="a test")
    return lake


def test_deploy_makes_no_lake_and_orders_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    told = refusal("deploy", "top_products", "--wait", "bogus", "--lake", str(folder))
    assert told == (
        '--wait: expected a duration such as "30 seconds" or "1 hour 30 minutes", got \'bogus\'. Nothing was changed.'
    )
    assert not folder.exists()


def test_stop_orders_nothing(deployed: Lake) -> None:
    before = orders.all_desired(deployed)
    assert refusal("stop", a_pipeline().name, "--wait", "bogus", "--lake", deployed.uri).startswith("--wait: expected")
    assert orders.all_desired(deployed) == before


def test_mute_mutes_nothing(deployed: Lake) -> None:
    told = refusal("mute", a_pipeline().name, "--for", "2h", "--lake", deployed.uri)
    assert told.startswith("--for: expected a duration")
    assert "got '2h'" in told
    assert not mutes.muted(deployed, now=datetime.now(UTC))


def test_an_empty_lake_is_not_taken_for_the_default_one(deployed: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a variable of a shell is not set."""
    monkeypatch.setenv("TIDEMARK_LAKE", deployed.uri)
    for command in (["status"], ["reset", "top_products", "--empty-tables"], ["tables"]):
        error = CliRunner().invoke(app, [*command, "--lake", ""]).exception
        assert isinstance(error, LakeUnavailableError), command


def test_a_setting_that_is_none_is_told_by_the_name_of_its_variable(
    deployed: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_METRICS_PORT", "70000")
    monkeypatch.setenv("TIDEMARK_SHUFFLE_PARTITIONS", "")
    monkeypatch.setattr(sys, "argv", ["tidemark", "status", "--lake", deployed.uri, "--machine"])
    assert run_told() == 1
    told = capsys.readouterr().err
    assert "error: TIDEMARK_METRICS_PORT: Input should be less than or equal to 65000, got '70000'" in told
    assert "error: TIDEMARK_SHUFFLE_PARTITIONS: " in told
