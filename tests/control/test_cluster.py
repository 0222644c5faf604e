"""Streams and finite jobs on a standalone cluster of Spark's: a real master, real workers, one of which dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_jobs.console.laptop.ports import free_port
from spark_jobs.console.streams import launcher as stream_launcher
from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import job_now
from spark_jobs.control.supervision.launchers import SparkSubmit, Task
from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.plan.equations import FATES
from spark_jobs.spec import Pipeline
from tests.chaos import kills
from tests.control import streams
from tests.control.streams import JOB, READERS, WatchedLauncher, batches, deploy, launching, supervisor, until
from tests.support import lakes
from tests.support.calm import FILES, CalmRun
from tests.support.compose import services
from tests.support.process import running

SECRET = "known-to-the-cluster-alone"

_CLASS = str(Path(sys.executable).with_name("spark-class"))


@pytest.fixture(autouse=True)
def options_that_executors_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark refuses settings of its own among them, which other tests' drivers have there."""
    options = os.environ["TIDEMARK_JAVA_OPTIONS"].split()
    monkeypatch.setenv("TIDEMARK_JAVA_OPTIONS", " ".join(each for each in options if not each.startswith("-Dspark.")))


class Cluster:
    """A master as `docker-compose.yml` sets it, and workers of one core each.

    Args:
        folder: for logs, what the master remembers, and the workers' files.
    """

    def __init__(self, folder: Path) -> None:
        self._port, page = free_port(), free_port()
        self.address = f"spark://127.0.0.1:{self._port}"
        self._folder = folder
        self._options = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(page)]
        self._page = f"http://127.0.0.1:{page}/json/"
        self._master = ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_master(self) -> None:
        """Starts it, and waits until it answers."""
        environment = _environment("spark-master", self._folder)
        command = [_CLASS, "org.apache.spark.deploy.master.Master", *self._options]
        log = self._folder / "master.log"
        self._master.enter_context(running("master", command, log=log, is_ready=self.answers, environment=environment))

    def restart_master(self) -> None:
        """Ends it, starts it again, and waits until it knows its workers and drivers."""
        before = self.workers(), len(self.state()["activeapps"])
        self._master.close()
        self.start_master()
        until(lambda: (self.workers(), len(self.state()["activeapps"])) == before, within_s=120)

    def state(self) -> dict[str, Any]:
        """What the master says of itself."""
        with urllib.request.urlopen(self._page, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def answers(self) -> bool:
        """Whether the master is there."""
        try:
            return bool(self.state()["status"] == "ALIVE")
        except (OSError, json.JSONDecodeError):  # its page answers a moment before what it says of itself
            return False

    def workers(self) -> int:
        """How many workers the master counts on."""
        return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])

    def start_worker(self) -> None:
        """One more worker, and waits until the master knows it."""
        before = self.workers()
        self._start_worker(_environment("spark-worker", self._folder))
        until(lambda: self.workers() > before, within_s=60)

    def refuses_worker(self, environment: dict[str, str]) -> bool:
        """Whether a worker with other variables is turned away."""
        before = self.workers()
        worker, log = self._start_worker({**_environment("spark-worker", self._folder), **environment})
        until(lambda: worker.poll() is not None or "Failed to connect to master" in log.read_text(), within_s=60)
        _kill(worker)
        return self.workers() == before

    def _start_worker(self, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
        name = f"worker-{len(self._workers)}"
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", str(free_port())]
        command = [_CLASS, "org.apache.spark.deploy.worker.Worker", *options]
        path = self._folder / f"{name}.log"
        with path.open("wb") as log:
            worker = subprocess.Popen(
                [*command, "--work-dir", str(self._folder / name), self.address],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                # Its group is what `kill_worker` means: it and its executors.
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker, path

    def kill_worker(self) -> None:
        """SIGKILL to the oldest worker and its executors; waits until the master knows."""
        before = self.workers()
        _kill(self._workers[0])
        until(lambda: self.workers() < before, within_s=60)

    def end(self) -> None:
        """Ends all of it."""
        for worker in self._workers:
            _kill(worker)
        self._master.close()


def _kill(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _environment(service: str, folder: Path) -> dict[str, str]:
    """As `docker-compose.yml` has it, but for memory and places."""
    composed = services()[service].environment(
        {"SPARK_SECRET": SECRET, "MINIO_STREAMS_PASSWORD": "", "KAFKA_STREAMS_PASSWORD": ""}
    )
    spark = {name: value for name, value in composed.items() if "SPARK" in name}
    spark = {name: value.replace("/var/lib/tidemark", str(folder)) for name, value in spark.items()}
    small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": os.environ["TIDEMARK_JAVA_OPTIONS"]}
    # As in the image: Spark's scripts look for the Python that has PySpark. A network name may lead nowhere here.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **spark, **small, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def cluster(folder: Path, *, workers: int) -> Iterator[Cluster]:
    """A master and workers, which end with the block."""
    found = Cluster(folder)
    try:
        found.start_master()
        for _ in range(workers):
            found.start_worker()
        yield found
    finally:
        found.end()


def on_a_command_line(text: str) -> list[str]:
    """The processes below this one that show it to everybody on the host."""
    shown = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            shown += [each.name()] if text in " ".join(each.cmdline()) else []
    return shown


def counted(lake: Lake, reader: Pipeline) -> dict[str, int]:
    """The figures of a ledger over all of its batches."""
    figures = (*FATES, "read", "pairs", "pairs_late", "pairs_result", "rows")
    return {name: sum(row[name] for _, row in lakes.ledger(lake, reader)) for name in figures}


def test_a_driver_of_a_cluster_takes_the_arguments_of_tidemark(tmp_path: Path) -> None:
    task = Task("help", arguments=("supervise", "--help"), log=tmp_path / "help.log")
    started = SparkSubmit("local[1]", {}).launch(task)
    code = started.wait()
    said = task.log.read_text()
    assert code == 0, said
    assert "supervise [OPTIONS]" in said


# That master and worker find each other with their secret: tests/services/test_compose_commands.py.
@pytest.mark.long
def test_a_restarted_master_and_a_killed_worker_change_no_table(
    calm: CalmRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, logs, readers = Lake(str(tmp_path / "lake")).ensure_exists(), tmp_path / "logs", READERS[:1]
    streams.copy_bronze(calm.bronze, lake)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("TIDEMARK_DRIVER_MEMORY", "1g")
    monkeypatch.setenv("TIDEMARK_EXECUTOR_MEMORY", "512m")
    with cluster(tmp_path, workers=2) as workers:
        assert workers.refuses_worker({"_SPARK_AUTH_SECRET": "another"})
        submit = stream_launcher(lake, Settings(master=workers.address, spark_secret=SECRET))
        with launching(WatchedLauncher(submit)) as launcher:
            watching, reader = supervisor(lake, logs, launcher), readers[0]
            deploy(lake, readers)
            until(lambda: batches(lake, reader) >= 1, watching)
            assert len(workers.state()["activeapps"]) == 1
            assert not on_a_command_line(SECRET)
            workers.restart_master()
            until(lambda: batches(lake, reader) >= 3, watching)
            workers.kill_worker()
            assert batches(lake, reader) < FILES
            workers.start_worker()
            until(lambda: streams.read_all(lake, readers=readers), watching)
            assert job_now(lake, JOB).status.ends == ()
            orders.stop(lake, [reader.name], by="a test")
            until(lambda: job_now(lake, JOB).status.state == "stopped", watching)

            # A finite job goes through the same launcher.
            program = (
                "run",
                f"{kills.PIPELINES_FILE}:{reader.name}",
                "--lake",
                lake.uri,
                "--until-caught-up",
                "--close",
            )
            finite = launcher.launch(Task("close", program, logs / "close.log"))
            assert finite.wait() == 0, finite.log.read_text()
            assert [each.wait() for each in launcher.launched] == [0, 0]
    assert streams.results(lake, readers) == streams.results(calm.lake, readers)
    assert counted(lake, readers[0]) == counted(calm.lake, readers[0])
