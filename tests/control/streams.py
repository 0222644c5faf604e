"""Deployed streams for tests: a complete bronze table, readers with pinned batches, drivers that are watched."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import job_now
from spark_jobs.control.supervision.launchers import Launcher, LocalProcess, StartedTask, Task, driver_arguments
from spark_jobs.control.supervision.pulse import Pulse
from spark_jobs.control.supervision.supervisor import Supervisor
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.spec import Definition, Pipeline
from tests.chaos import pipelines
from tests.support import deploying, lakes

READERS: tuple[Pipeline, ...] = (pipelines.top_products, pipelines.top_products_live, pipelines.shop_totals)
JOB = READERS[0].job
PATIENCE = timedelta(minutes=5)


class WatchedLauncher:
    """Launches as another launcher does, and remembers what it launched.

    Args:
        launcher: the other one.
        environment: what each task has beside.
    """

    def __init__(self, launcher: Launcher | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._launcher = launcher or LocalProcess()
        self._environment = dict(environment or {})
        self.launched: list[StartedTask] = []

    def launch(self, task: Task) -> StartedTask:
        merged = {**task.environment, **self._environment, "TIDEMARK_METRICS_PORT": "0"}
        found = self._launcher.launch(Task(task.name, task.arguments, task.log, merged))
        self.launched.append(found)
        return found

    def kill_all(self) -> None:
        """Ends whatever still runs."""
        for each in self.launched:
            if each.exit_code() is None:
                each.kill()


class Clock:
    """Seconds that only grow, and a time, which a test can let pass."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed

    def now(self) -> datetime:
        """The time."""
        return datetime.now(UTC) + timedelta(seconds=self.passed)


def supervisor(lake: Lake, logs: Path, launcher: Launcher, **parts: Any) -> Supervisor:
    """A supervisor in this process, which looks when it is told to."""
    return Supervisor(
        lake=lake,
        launcher=launcher,
        logs=logs,
        drive=lambda job, term: driver_arguments(job, term, lake.uri),
        **parts,
    )


def until(condition: Callable[[], Any], *supervisors: Supervisor, within_s: float = 300.0) -> Any:
    """Lets supervisors look until something is so; what it is."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {within_s} s: {condition}")
        for each in supervisors:
            each.look()
        # Seldom: what is looked at here costs the drivers their processor.
        time.sleep(0.5)
    return found


def beat(lake: Lake) -> Pulse | None:
    """The newest pulse of the job."""
    return job_now(lake, JOB).pulse


def batches(lake: Lake, definition: Definition) -> int:
    """How many batches the ledger of a pipeline has."""
    try:
        return len(ledger_rows(lake, definition.sink.table, definition.name, 1))
    except LookupError:
        return 0


@cache
def _events(lake: Lake) -> int:
    return sum(not row["_heartbeat"] for row in lakes.rows(lake, "bronze.sales"))


def read_all(lake: Lake, *, epoch: int = 1, readers: Sequence[Pipeline] = READERS) -> bool:
    """Whether the readers have read all of bronze, which is complete."""
    events = _events(lake)
    for reader in readers:
        try:
            rows = ledger_rows(lake, reader.sink.table, reader.name, epoch)
        except LookupError:
            return False
        if sum(row["read"] for _, row in rows) < events:
            return False
    return True


def copy_bronze(source: Lake, target: Lake) -> None:
    """Puts the bronze table of one lake into another."""
    if not target.on_s3:
        shutil.copytree(Path(source.uri) / "bronze", Path(target.uri) / "bronze")
        return
    for path in sorted((Path(source.uri) / "bronze").rglob("*")):
        if path.is_file():
            target.store.put(str(path.relative_to(source.uri)), path.read_bytes())


def close(lake: Lake, spark: SparkSession, readers: Sequence[Pipeline] = READERS) -> None:
    """Finishes the input, by hand: every window of the readers becomes final."""
    lakes.run_all(spark, lake, readers, close=True)


def results(lake: Lake, readers: Sequence[Pipeline] = READERS) -> dict[str, Any]:
    """The rows of every table that the readers write, less what a repeated run or a reset may change."""
    hidden = ("_source", "_epoch", "epoch")
    return {
        table: lakes.comparable(lakes.rows(lake, table), without=hidden)
        for reader in readers
        for table in tables_of(reader)
    }


def deploy(lake: Lake, definitions: Sequence[Definition] = READERS) -> tuple[orders.OrderOutcome, ...]:
    """Orders that the readers run."""
    return deploying.deploy(lake, definitions)


@contextmanager
def launching(launcher: WatchedLauncher) -> Iterator[WatchedLauncher]:
    """A launcher whose processes end with the test."""
    try:
        yield launcher
    finally:
        launcher.kill_all()
