"""A stream that tests of several modules copy."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests.support import lakes
from tests.support.clicks import (
    RANKING,
    copy_of,
    events,
    feed,
)


@pytest.fixture(scope="module")
def divided(spark: SparkSession) -> Iterator[None]:
    """Streams, and what is grouped in batch, are divided into two partitions in the tests of this module."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, "2")
    yield
    spark.conf.set(name, before)


@pytest.fixture(scope="session")
def streamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with a live ranking, made by the first worker that needs it; copied, never changed."""
    here = tmp_path_factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    complete = shared / "streamed.complete"
    with (shared / "streamed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lake = Lake(str(shared / "streamed"))
        if not complete.exists():
            feed(lake.ensure_exists(), events(11, 6, minutes=20))
            lakes.run(spark, lake, RANKING)
            complete.touch()
    return lake


@pytest.fixture
def copy(streamed: Lake, tmp_path: Path) -> Lake:
    return copy_of(streamed, tmp_path / "copy")
