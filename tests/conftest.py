"""One Spark session for all tests that need one."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from tests.settings import suit_short_lives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.calm import CalmRun

suit_short_lives()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    # Here: most tests that need no session need not import PySpark either.
    from spark_jobs.spark.session import build_session

    lake = Lake(str(tmp_path_factory.mktemp("session"))).ensure_exists()
    session = build_session(lake, settings=Settings(master="local[2]"))
    # Batches of a few rows: to compile each plan takes longer than to interpret it. Drivers that run in a process of
    # their own, as those that are killed, compile as they do for users.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield session
    session.stop()
    # It tells of each connection that it closes, the last ones when pytest has closed where that would be written.
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def calm(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> "CalmRun":
    """What nobody disturbed, for all tests that disturb."""
    from tests.calm import calm_run

    return calm_run(spark, tmp_path_factory.mktemp("calm"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake")).ensure_exists()
