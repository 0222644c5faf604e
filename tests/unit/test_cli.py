"""The `tidemark` command: what it refuses before it does anything, what it says, and how soon it is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import BaseError
from typer.testing import CliRunner

import spark_jobs.pipelines
from spark_jobs.cli import app, run_reporting_errors
from spark_jobs.cli.errors import shown
from spark_jobs.control.desired import orders
from spark_jobs.control.monitoring import mutes
from spark_jobs.control.monitoring.acknowledgements import acknowledged
from spark_jobs.control.supervision import status, terms
from spark_jobs.control.supervision.lease import Lease
from spark_jobs.control.supervision.pulse import Figures, PipelinePulse, Pulse, beat
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError
from spark_jobs.pipelines import UnknownPipelineError
from spark_jobs.spec import DefinitionError, Where
from spark_jobs.spec.errors import TidemarkError
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, write
from tests.support.deploying import deploy


def refusal(*arguments: str) -> str:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, DefinitionError)
    return str(error)


@pytest.fixture
def deployed(tmp_path: Path) -> Lake:
    lake = a_lake(tmp_path)
    deploy(lake, [a_pipeline()])
    return lake


HEAVY = {
    "pyspark",
    "deltalake",
    "duckdb",
    "pyarrow",
    "numpy",
    "pandas",
    "great_expectations",
    "prometheus_client",
    "boto3",
    "confluent_kafka",
}


def test_help_waits_for_nothing_that_takes_long_to_import() -> None:
    code = "import sys, spark_jobs.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()


def test_every_error_that_is_told_says_whether_to_try_again() -> None:
    for kind in (DefinitionError, UnknownPipelineError, LakeUnavailableError):
        assert issubclass(kind, TidemarkError)
    for foreign, code in ((OSError("disk"), 75), (BaseError("store"), 75)):
        (told,) = shown(foreign)
        assert (type(told), told.exit_code) == (LakeUnavailableError, code)
    assert shown(DefinitionError("x"))[0].exit_code == 1
    assert shown(KeyError("a mistake in the code")) == ()


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
    assert run_reporting_errors() == 1
    told = capsys.readouterr().err
    assert "error: TIDEMARK_METRICS_PORT: Input should be less than or equal to 65000, got '70000'" in told
    assert "error: TIDEMARK_SHUFFLE_PARTITIONS: " in told


def test_status_calls_nothing_running_whose_driver_and_supervisor_are_gone(deployed: Lake) -> None:
    """With the age of the last sign of life, no rate, what helps, and an exit code."""
    name, job, gone = a_pipeline().name, a_pipeline().job, datetime.now(UTC) - timedelta(minutes=5)
    Lease(deployed, host="h", pid=1).hold()
    terms.records(deployed, job).append(1, terms.Term(host="h", supervisor="h/1", begun_at=gone))
    status.records(deployed, job).append(1, status.Status(job=job, state="running", since=gone, term=1, order=1))

    def told(*, at: datetime, silent_s: float = 0.0) -> tuple[str, int]:
        figures = Figures(read=730, input_rows_per_s=73.4)
        seen = {name: PipelinePulse(generation=1, state="running", since=gone, progressed_at=at, figures=figures)}
        who = {"job": job, "term": 1, "host": "h", "pid": 1, "pid_born": "", "started_at": gone, "sequence": 1}
        beat(deployed, Pulse(**who, at=at, spark_silent_s=silent_s, pipelines=seen))
        done = CliRunner().invoke(app, ["status", "--lake", deployed.uri], env={"COLUMNS": "200"})
        return done.output, done.exit_code

    output, code = told(at=datetime.now(UTC))
    assert re.search(r"driver of job streams: term 1, on h: last sign of life \d\.\d seconds ago", output)
    assert re.search(rf"{name} +running +running +730 +73 ", output)
    assert code == 0

    output, code = told(at=datetime.now(UTC), silent_s=45)
    assert "it hangs: Spark has not answered in it for 45 seconds" in output
    assert re.search(rf"{name} +running +Spark hangs +730 +- ", output)
    assert code == 1

    renewal = Path(deployed.uri) / "_control/_supervisor/renewals/000001.json"
    renewal.write_text(json.dumps({"sequence": 9, "at": gone.isoformat()}))
    output, code = told(at=gone)
    assert "driver of job streams: term 1, on h: last sign of life 5 minutes ago" in output
    remedy = f"start one: `make up`, or `tidemark supervise --lake {deployed.uri}`"
    assert f"last sign of life 5 minutes ago; {remedy}" in output
    assert re.search(rf"{name} +running +no sign of life +730 +- ", output)
    assert code == 1


def test_what_was_acknowledged_is_noted_for_deployed_pipelines_only(deployed: Lake) -> None:
    told = refusal("acknowledge", a_pipeline().name, "another", "--lake", deployed.uri)
    assert told == f"acknowledge: another has not been deployed. Deployed: {a_pipeline().name}. Nothing was changed."
    assert acknowledged(deployed) == {}
    before = datetime.now(UTC)
    done = CliRunner().invoke(app, ["acknowledge", a_pipeline().name, "--lake", deployed.uri])
    assert done.exit_code == 0
    assert before <= acknowledged(deployed)[a_pipeline().name] <= datetime.now(UTC)


class TestLedger:
    @pytest.fixture
    def lake(self, tmp_path: Path) -> Lake:
        return a_lake(tmp_path / "lake")

    @pytest.fixture
    def large_sales(self, lake: Lake, tmp_path: Path) -> str:
        """A pipeline of a file of its own, in its second epoch."""
        large_sales = a_pipeline(watermark=None, event_time=None, steps=(Where("quantity > 9"),))
        for number in (1, 2):
            begin_epoch(lake, large_sales, number)
        file = tmp_path / "mine.py"
        value = f"definition_from_json({large_sales.to_json()!r})"
        file.write_text(f"from spark_jobs.spec import definition_from_json\nmine = {value}\n")
        return str(file)

    def batch(self, lake: Lake, batch_id: int, *, filtered: int) -> None:
        """A batch that has read ten events and let eight of them through."""
        ledger = a_batch(10, on_time=8, rows=8, filtered=filtered, pairs=None, pairs_result=None, state_rows=None)
        write(lake, "gold.hourly_sales", {"n": [*range(8)]}, stamp=a_stamp(batch_id, epoch=2, rows=8, ledger=ledger))

    def test_where_everything_balances_it_ends_with_0(self, lake: Lake, large_sales: str) -> None:
        self.batch(lake, 0, filtered=2)
        done = CliRunner().invoke(app, ["ledger", large_sales, "--lake", lake.uri])
        assert (done.exit_code, "UNBALANCED" in done.output) == (0, False), done.output

    def test_where_one_figure_does_not_balance_it_says_so_and_ends_with_1(self, lake: Lake, large_sales: str) -> None:
        self.batch(lake, 0, filtered=2)
        self.batch(lake, 1, filtered=1)
        done = CliRunner().invoke(app, ["ledger", large_sales, "--lake", lake.uri])
        assert "UNBALANCED  batch 1: read 10 events, accounts for 9\n" in done.output
        assert "\nbalanced  rows: 16 written, 16 in gold.hourly_sales\n" in done.output
        assert done.exit_code == 1

    @pytest.mark.parametrize("epoch", [0, 3])
    def test_an_epoch_that_never_was_is_not_taken_for_another(self, lake: Lake, large_sales: str, epoch: int) -> None:
        self.batch(lake, 0, filtered=2)
        done = CliRunner().invoke(app, ["ledger", large_sales, "--epoch", str(epoch), "--lake", lake.uri])
        assert isinstance(done.exception, MissingTableError)
        assert str(done.exception) == f"pipeline `hourly_sales`: no epoch {epoch}; the current one is 2."
        assert done.output == ""


class TestABrokenFileAmongThePipelines:
    @pytest.fixture
    def broken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        folder = tmp_path / "more"
        folder.mkdir()
        (folder / "half_written.py").write_text("from tidemark import Pipeline\nmine = Pipeline(\n")
        monkeypatch.setattr(spark_jobs.pipelines, "__path__", [*spark_jobs.pipelines.__path__, str(folder)])
        return f"file {folder / 'half_written.py'}, line 2: SyntaxError: '(' was never closed"

    @pytest.fixture
    def tidemark(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
        def run(*arguments: str) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", ["tidemark", *arguments])
            code = run_reporting_errors()
            told = capsys.readouterr()
            return code, told.out, told.err

        return run

    def test_the_others_are_listed_and_the_file_is_told(self, tidemark: Any, broken: str) -> None:
        code, out, err = tidemark("pipelines")
        assert code == 1
        assert "top_products_live" in out
        assert f"error: {broken}" in err

    def test_others_are_deployed_and_stopped_with_a_warning(self, tidemark: Any, broken: str, tmp_path: Path) -> None:
        lake = a_lake(tmp_path)
        code, _, err = tidemark("deploy", "top_products", "--wait", "0 seconds", "--lake", lake.uri)
        assert (code, f"warning: {broken}" in err) == (0, True)
        assert set(orders.all_desired(lake)["streams"].pipelines) == {"top_products"}
        assert tidemark("stop", "top_products", "--wait", "0 seconds", "--lake", lake.uri)[0] == 0
        assert tidemark("tables", "--lake", lake.uri)[0] == 0
        assert tidemark("ledger", "top_products", "--lake", lake.uri)[2].count("has not run on") == 1

    def test_who_asks_for_its_pipeline_hears_of_the_file(self, tidemark: Any, broken: str, tmp_path: Path) -> None:
        code, _, err = tidemark("deploy", "mine", "--lake", str(tmp_path / "lake"))
        assert code == 1
        assert err.startswith("error: pipeline `mine`: expected a registered name")
        assert broken in err
