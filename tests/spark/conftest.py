"""A stream that tests of several modules copy."""

from __future__ import annotations

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


@pytest.fixture(scope="session")
def streamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with a live ranking; copied, never changed."""
    lake = Lake(str(tmp_path_factory.mktemp("streamed"))).ensure_exists()
    feed(lake, events(11, 6, minutes=20))
    lakes.run(spark, lake, RANKING)
    return lake


@pytest.fixture
def copy(streamed: Lake, tmp_path: Path) -> Lake:
    return copy_of(streamed, tmp_path / "copy")
