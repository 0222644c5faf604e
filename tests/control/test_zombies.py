"""A driver that sleeps through its own replacement, and wakes in a commit; the other is killed: nothing changes."""

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import job_now
from spark_jobs.control.supervision import terms
from spark_jobs.control.supervision.launchers import LocalProcess
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.spec import Pipeline
from tests.chaos import kills, pipelines
from tests.control import streams
from tests.control.streams import JOB, READERS, WatchedLauncher, batches, beat, deploy, launching, supervisor, until
from tests.support.calm import CalmRun

ZOMBIE = (sys.executable, str(Path(__file__).with_name("zombie_driver.py")))
TABLE, VERSION = "gold.top_products", "2"


def a_lake(kind: str, request: pytest.FixtureRequest) -> Lake:
    if kind == "minio":
        _, bucket = request.getfixturevalue("minio")
        return Lake(f"s3a://{bucket}/lake")
    lake: Lake = request.getfixturevalue("lake")
    return lake


def is_asleep(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


ONE, ALL = READERS[:1], READERS
TWO = (*ONE, pipelines.sales_by_category)


@pytest.mark.parametrize(
    ("kind", "with_reset", "readers"),
    [
        # A folder excludes a second writer of a commit as MinIO does: tests/services/test_conditional_create.py.
        pytest.param("folder", False, ONE, id="folder", marks=pytest.mark.long),
        pytest.param("minio", False, ONE, id="minio"),
        # A batch that dies, with a lookup: tests/spark/test_enrich.py::
        # test_a_batch_is_finished_with_the_lookup_version_that_it_began_with.
        pytest.param("minio", False, TWO, id="minio-two", marks=pytest.mark.long),
        # What the tables do of a reset: tests/spark/test_reset.py.
        pytest.param("minio", True, ONE, id="minio-reset", marks=pytest.mark.long),
        pytest.param("folder", True, ALL, id="folder-reset-all", marks=pytest.mark.long),
        pytest.param("minio", False, ALL, id="minio-all", marks=pytest.mark.long),
    ],
)
def test_a_driver_that_is_killed_and_one_that_wakes_change_nothing(
    kind: str,
    with_reset: bool,
    readers: tuple[Pipeline, ...],
    calm: CalmRun,
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    lake = a_lake(kind, request)
    names = [reader.name for reader in readers]
    asleep = WatchedLauncher(LocalProcess(ZOMBIE), {"ZOMBIE_TABLE": TABLE, "ZOMBIE_VERSION": VERSION})
    with launching(asleep), launching(WatchedLauncher()) as awake:
        streams.copy_bronze(calm.bronze, lake)
        kills.put_input(lake, calm.landing, kills.Work(readers))
        deploy(lake, readers)
        here = supervisor(lake, tmp_path / "here", asleep, host="here")
        until(lambda: asleep.launched, here)
        zombie = asleep.launched[0]
        until(lambda: is_asleep(zombie.process.pid), here)
        before = batches(lake, readers[0])

        # Its supervisor is gone as well; one on another host sees neither the process nor a sign of life.
        clock = streams.Clock()
        there = supervisor(lake, tmp_path / "there", awake, host="there", clock=clock)
        there.look()
        clock.passed += 60
        there.look()
        clock.passed += 60
        until(lambda: (found := beat(lake)) and found.term == 2 and found.host == "there", there)
        # That one is killed, at a seeded moment within its batches; another one comes.
        until(lambda: batches(lake, readers[0]) > before, there)
        second = awake.launched[0].process
        with suppress(subprocess.TimeoutExpired):
            second.wait(random.Random(5).uniform(0.0, 1.0))
        os.killpg(second.pid, signal.SIGKILL)
        until(lambda: (found := beat(lake)) and found.term == 3, there)
        if with_reset:
            orders.stop(lake, names, by="a test")
            until(lambda: job_now(lake, JOB).status.state == "stopped", there)
            for reader in readers:
                reset(lake, reader, empty_tables=True)
            deploy(lake, readers)
        until(lambda: streams.read_all(lake, epoch=2 if with_reset else 1, readers=readers), there)

        os.killpg(zombie.process.pid, signal.SIGCONT)
        assert until(lambda: zombie.exit_code()) == terms.FencedError.exit_code
        assert terms.records(lake, JOB).newest_number() == (4 if with_reset else 3)

        orders.stop(lake, names, by="a test")
        until(lambda: job_now(lake, JOB).status.state == "stopped", there)
        assert awake.launched[-1].exit_code() == 0
        streams.close(lake, spark, readers)
        assert streams.results(lake, readers) == streams.results(calm.lake, readers)
