"""A handful of real kills on each kind of lake; `make chaos` makes any number."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.pipelines import registry
from tests.chaos import kills
from tests.support import lakes
from tests.support.calm import CalmRun
from tests.support.minio import minio_binary
from tests.support.process import leave_out


def calm_by(batches: Mapping[str, Sequence[int]], calm: CalmRun, spark: SparkSession, lake: Lake) -> dict[str, Any]:
    """What a run that nobody disturbs makes of so many files a batch; without a driver's start for each of them."""

    def run_ingest(name: str) -> None:
        lakes.run_all(spark, lake, [registry()[name]], close=False)

    kills.arrive_by(batches, calm.landing, lake, run_ingest)
    lakes.run_all(spark, lake, kills.DEFINITIONS, close=True)
    return kills.contents(lake)


# Drivers are killed in tests/control, too, and a batch on MinIO is cut off in tests/services.
@pytest.mark.long
@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_tables_after_kills_equal_those_of_a_calm_run(
    kind: str, tmp_path: Path, calm: CalmRun, spark: SparkSession
) -> None:
    if kind == "minio" and minio_binary() is None:
        leave_out("no minio binary: `make setup-tests` builds one where Go is installed")
    with kills.lakes_of(kind, tmp_path / kind) as (lake_named, environment):
        lake = lake_named("killed")
        kills.put_input(lake, calm.landing)
        own = Lake(str(tmp_path / "calm")).ensure_exists()
        result = kills.run_killed(
            lake,
            environment,
            kills.contents(calm.lake),
            seed=5,
            most_kills=2,
            calm_by=lambda batches: calm_by(batches, calm, spark, own),
        )

    assert {moment.split(":")[0] for moment in result.moments} == {"ingest", "pipelines"}
    assert result.differing == []
