"""One complete bronze table, and what an undisturbed run makes of it, for all tests of this folder."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests.control import streams


@pytest.fixture(scope="session")
def bronze(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Lake:
    return streams.with_bronze(tmp_path_factory.mktemp("bronze"), spark)


@pytest.fixture(scope="session")
def undisturbed(bronze: Lake, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> dict[str, Any]:
    """The tables of a run that nobody disturbed."""
    lake = Lake(str(tmp_path_factory.mktemp("undisturbed") / "lake")).made()
    streams.copy_bronze(bronze, lake)
    streams.close(lake, spark)
    tables = streams.results(lake)
    for table in ("gold.top_products", "gold.top_products__late", "gold.top_products_live"):
        assert tables[table], f"{table} has rows that could be lost or doubled"
    return tables
