"""Where the log of `tidemark run` goes, and what is said where Spark dies."""

import io
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.cli import app
from spark_jobs.console import running
from spark_jobs.lake import Lake
from spark_jobs.spark.settings import LOG_SETTINGS
from tests.support.builders import write


def test_a_run_has_a_log_of_its_own_users_and_those_older_than_a_month_go(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def refuse(_: Lake, **_settings: object) -> None:
        os.write(2, b"no Java\n")
        raise RuntimeError("it does not start")

    monkeypatch.setattr(running, "build_session", refuse)
    folder = tmp_path / f"tidemark-{os.getuid()}"
    folder.mkdir(mode=0o700)
    logs = {days: folder / f"driver-{days}.log" for days in (29, 31)}
    for days, log in logs.items():
        log.touch()
        os.utime(log, (then := time.time() - days * 86_400, then))

    said = Console(file=io.StringIO(), width=300)
    with pytest.raises(RuntimeError, match="it does not start"), running.session(lake, said):
        pass
    mine = folder / f"driver-{os.getpid()}.log"
    assert f"Spark's log: {mine}" in said.file.getvalue()  # type: ignore[attr-defined]
    assert mine.read_text() == "no Java\n"
    assert {path.name for path in folder.iterdir()} == {logs[29].name, mine.name}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("TIDEMARK_DRIVER_MEMORY", "2x", "Invalid maximum heap size: -Xmx2x"),
        ("JAVA_HOME", "/nowhere", "/nowhere/bin/java: No such file or directory"),
        (
            "TIDEMARK_JAVA_OPTIONS",
            "-XX:MaxMetaspaceSize=8m -XX:+ExitOnOutOfMemoryError",
            "its JVM ended with exit code 3",
        ),
    ],
    ids=["heap", "no_java", "java_dies"],
)
def test_a_run_whose_spark_does_not_start_says_why_it_may_not(lake: Lake, name: str, value: str, why: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "spark_jobs", "run", "ingest_sales", "--lake", lake.uri],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert why in run.stderr
    assert "error: Spark did not start: " in run.stderr
    assert name in run.stderr.split("error: ")[-1]
    assert "Traceback" not in run.stderr


UNFIT = """
from tidemark import Pipeline, Select, Sink, Table

unfit = Pipeline(
    name="unfit",
    source=Table("bronze.sales"),
    event_time="sold_at",
    steps=(Select({"made_of": "abs(sold_at)"}),),
    sink=Sink("gold.unfit"),
)
"""


def test_what_is_wrong_with_a_pipeline_is_told_without_a_stack_before_it(
    spark: SparkSession,
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # The command's session is that of the tests, which goes on after it.
    monkeypatch.setattr(running, "build_session", lambda *_, **__: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    rows = {"_ingest_seq": [1], "product_id": ["p"], "quantity": [1], "sold_at": [datetime(2026, 11, 1, tzinfo=UTC)]}
    write(lake, "bronze.sales", rows)
    (tmp_path / "unfit.py").write_text(UNFIT)
    with pytest.raises(SystemExit) as ended:
        app(["run", str(tmp_path / "unfit.py"), "--lake", lake.uri, "--until-caught-up"])
    said = capfd.readouterr().err
    assert ended.value.code == 1, said
    assert said.startswith("unfit failed: pipeline `unfit` does not fit its source: ["), said
    assert "JVM stacktrace" not in said


def test_java_uses_the_log_settings_of_the_project(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    assert context.getConfiguration().getConfigurationSource().getLocation() == str(LOG_SETTINGS)


DIES_WHILE_IT_RUNS = """
def tick(self, driver):
    if driver.queries["ingest_sales"].waits_for_input:
        end_java()
Progress.tick = tick
"""
DIES_WHILE_IT_STARTS = """
def create_tables(self):
    end_java()
    self.spark.sql("SELECT 1").collect()
IngestQuery.create_tables = create_tables
"""
DIES_IN_THE_MIDST_OF_A_CALL = """
class Dying:
    # What Java has not read when it is killed is answered with a reset of the connection.
    def __init__(self, stream):
        self.stream = stream

    def readline(self):
        end_java()
        return self.stream.readline()

def create_tables(self):
    suspend_java()
    connection = self.spark._jvm._gateway_client.get_thread_connection()
    connection.stream = Dying(connection.stream)
    self.spark.sql("SELECT 1").collect()
IngestQuery.create_tables = create_tables
"""
RUN = """
import psutil
from spark_jobs.cli import main
from spark_jobs.console.live import Progress
from spark_jobs.engine.ingest import IngestQuery

def java():
    return [each for each in psutil.Process().children(recursive=True) if each.name() == "java"]

def suspend_java():
    for each in java():
        each.suspend()
        # Until each thread has, it may still read.
        while any(psutil.Process(thread.id).status() != psutil.STATUS_STOPPED for thread in each.threads()):
            pass

def end_java():
    for each in java():
        each.kill()
        each.wait()
"""


# Each starts a JVM to kill it. What is said of Spark that has ended is asked here alone; of Spark that does not start:
# test_a_run_whose_spark_does_not_start_says_why_it_may_not. The Spark of a driver dies in
# tests/control/test_supervised.py::test_a_driver_does_not_outlive_its_jvm_and_its_end_has_a_cause
@pytest.mark.parametrize(
    "dies",
    [
        pytest.param(DIES_WHILE_IT_RUNS, id="runs", marks=pytest.mark.long),
        pytest.param(DIES_WHILE_IT_STARTS, id="starts", marks=pytest.mark.long),
        pytest.param(DIES_IN_THE_MIDST_OF_A_CALL, id="answers", marks=pytest.mark.long),
    ],
)
def test_a_run_whose_spark_dies_says_why_it_may_have(lake: Lake, tmp_path: Path, dies: str) -> None:
    (tmp_path / "sales").mkdir()
    arguments = ["run", "ingest_sales", "--lake", lake.uri, "--from", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-c", f"{RUN}{dies}\nmain()", *arguments],
        env={**os.environ, "TIDEMARK_DRIVER_MEMORY": "1g"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = run.stderr
    assert run.returncode == 1, said
    assert "error: Spark has ended in this process (its JVM does not answer: " in said
    assert "of its own heap, which has 1g (TIDEMARK_DRIVER_MEMORY)" in said
    assert "Traceback" not in said
    if dies is DIES_IN_THE_MIDST_OF_A_CALL:
        assert "Traceback" in Path(said.split("Spark's log: ")[1].split(". Fix")[0]).read_text()
