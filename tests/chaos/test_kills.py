"""A handful of real kills on each kind of lake; `make chaos` makes any number."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests import lakes
from tests.chaos import kills
from tests.services.minio import minio_binary
from tests.services.process import leave_out


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input, the same for every lake."""
    folder = tmp_path_factory.mktemp("landing")
    kills.simulate(folder, files=6, rows_per_file=300)
    return folder


@pytest.fixture(scope="module")
def expected(landing: Path, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> dict[str, Any]:
    """The tables of a folder on which nobody was killed."""
    lake = Lake(str(tmp_path_factory.mktemp("calm"))).made()
    kills.put_input(lake, landing)
    lakes.run_all(spark, lake, kills.DEFINITIONS, close=True)
    tables = kills.contents(lake)
    for table in ("gold.top_products", "gold.top_products__late", "bronze.sales__quarantine"):
        assert tables[table], f"{table} has rows that could be lost or doubled"
    return tables


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_tables_after_kills_equal_those_of_a_calm_run_on_a_folder(
    kind: str, tmp_path: Path, landing: Path, expected: dict[str, Any]
) -> None:
    if kind == "minio" and minio_binary() is None:
        leave_out("no minio binary: `make setup-tests` builds one where Go is installed")
    with kills.lakes_of(kind, tmp_path / kind) as (lake_named, environment):
        lake = lake_named("killed")
        kills.put_input(lake, landing)
        calm_by = partial(kills.run_calm_by, landing=landing, lake=Lake(str(tmp_path / "calm")).made(), environment={})
        result = kills.run_killed(lake, environment, expected, seed=5, most_kills=2, calm_by=calm_by)

    assert {moment.split(":")[0] for moment in result.moments} == {"ingest", "pipelines"}
    assert result.differing == []
