"""Streams that tests of several modules copy."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.spec import Pipeline
from tests.support import lakes
from tests.support.clicks import RANKING, copy_of, events, feed, pipeline


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
    return _made_once(spark, tmp_path_factory, "streamed", RANKING, events(11, 6, minutes=20))


@pytest.fixture(scope="session")
def once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with the stream of `pipeline()` over four batches, made as `streamed`; copied, never changed."""
    return _made_once(spark, tmp_path_factory, "once", pipeline(), events(7, 4, minutes=20))


def _made_once(
    spark: SparkSession,
    factory: pytest.TempPathFactory,
    name: str,
    definition: Pipeline,
    batches: Sequence[Sequence[dict[str, Any]]],
) -> Lake:
    here = factory.getbasetemp()
    shared = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    complete = shared / f"{name}.complete"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lake = Lake(str(shared / name))
        if not complete.exists():
            feed(lake.ensure_exists(), batches)
            lakes.run(spark, lake, definition)
            complete.touch()
    return lake


@pytest.fixture
def copy(streamed: Lake, tmp_path: Path) -> Lake:
    return copy_of(streamed, tmp_path / "copy")


@pytest.fixture
def windows(once: Lake, tmp_path: Path) -> Lake:
    return copy_of(once, tmp_path / "windows")
