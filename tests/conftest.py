"""What tests of all folders are given: one Spark session, one MinIO, one calm run; their order; their patience."""

import fcntl
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from spark_jobs.lake import Lake
from spark_jobs.lake.commands import typed_lake
from spark_jobs.lake.settings import Settings
from tests.support.minio import Minio, minio_binary, start_minio
from tests.support.process import leave_out
from tests.support.settings import suit_short_lives
from tests.support.workers import WAITING, WORKERS, WaitingApart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.calm import CalmRun

suit_short_lives()
# Without a deadline, and without a word on slow examples: how long one takes is no property of it, and a machine may
# stand still for a moment.
settings.register_profile("patient", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_FIRST = tuple(
    f"tests/spark/test_{name}.py"
    for name in (
        "bootstrap",
        "restore",
        "uncomputable",
        "backfill_steps",
        "rescale",
        "chains",
        "ingest",
        "backfill",
        "driver",
        "lookup_again",
        "identity",
        "comparing",
    )
)
"""Files that take longest: they begin first, so that workers end together."""
_BUCKETS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first; workers take one file after the other."""
    order = (*WAITING, *_FIRST)
    places = {file: place for place, file in enumerate(order)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(order)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WaitingApart | None:
    """Has tests that wait run beside tests that compute, where a third worker is there for them."""
    return WaitingApart(config, log) if config.getoption("numprocesses") == WORKERS else None


@pytest.fixture(autouse=True)
def nothing_typed() -> None:
    """What a test has typed at the command line is nothing that another one has."""
    typed_lake(None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    # Here: most tests that need no session need not import PySpark either.
    from spark_jobs.spark.session import build_session

    lake = Lake(str(tmp_path_factory.mktemp("session"))).ensure_exists()
    # Tests of half an hour leave more behind than a driver of few pipelines does.
    session = build_session(lake, settings=Settings(master="local[2]", driver_memory="3g"))
    yield session
    session.stop()
    # It tells of each connection that it closes, the last ones when pytest has closed where that would be written.
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def calm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "CalmRun":
    """What nobody disturbed, for all tests that disturb; the first worker that needs it makes it for all."""
    from tests.support.calm import calm_run

    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    with (shared / "calm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return calm_run(lambda: request.getfixturevalue("spark"), shared / "calm")


@pytest.fixture(scope="session")
def minio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """A MinIO for all tests of this worker; each makes buckets of its own."""
    if minio_binary() is None:
        leave_out("no MinIO server in .cache/bin or on PATH: run `make setup-tests`")
    with start_minio(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def bucket(minio_server: Minio) -> Iterator[str]:
    """A bucket of the test's own, with the server's address and keys in the environment."""
    # A session keeps what it knows of a bucket, so no two of a run have one name.
    name = f"bucket-{next(_BUCKETS)}"
    minio_server.create_bucket(name)
    with patch.dict(os.environ, minio_server.environment()):
        yield name


@pytest.fixture
def minio(spark: "SparkSession", minio_server: Minio, bucket: str) -> tuple[Minio, str]:
    """The server, and a bucket on it that the session knows."""
    minio_server.let_in(spark, bucket)
    return minio_server, bucket


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake")).ensure_exists()
