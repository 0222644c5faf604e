"""What tests of outside data share: where it is, and how it arrives."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.spec import Definition


def data_file(name: str) -> Path:
    folder = os.environ.get("TIDEMARK_DATA")
    if not folder:
        pytest.fail("TIDEMARK_DATA is not set: run `make verify DATA=folder CASES=folder`")
    return Path(folder) / name


def write_files(folder: Path, contents: Sequence[bytes], suffix: str) -> None:
    """Files whose modification times tell their order: that is what a file source goes by."""
    folder.mkdir(parents=True)
    for number, content in enumerate(contents):
        path = folder / f"{number:04d}.{suffix}"
        path.write_bytes(content)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run(spark: SparkSession, lake: Lake, definitions: Sequence[Definition]) -> None:
    """Bronze is complete before its readers start; then each of them runs until every window is closed."""
    outcomes = Driver(spark, lake, definitions).run_until_caught_up(close=True)
    for outcome in outcomes.values():
        if outcome.error is not None:
            raise outcome.error
