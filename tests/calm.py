"""A run that nobody disturbs, against which runs with kills, zombies and lost workers are held."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests import lakes
from tests.chaos import kills, pipelines

FILES = 6
MUST_HOLD_ROWS = (
    "bronze.sales__quarantine",
    "bronze.orders__quarantine",
    "gold.top_products",
    "gold.top_products__late",
    "gold.top_products_live",
    "gold.first_sales",
    "gold.first_sales__late",
    "gold.sales_and_orders",
    "gold.sales_and_orders__late",
    "gold.sales_by_category",
    "gold.sales_by_category__late",
    "gold.sales_by_category__quarantine",
)


@dataclass(frozen=True)
class CalmRun:
    """The run of `tests/chaos/pipelines.py` over a few files of sales.

    Attributes:
        landing: the files that it has read.
        bronze: a lake with its bronze table, complete, one file a batch; nothing has read it yet.
        lake: with all its tables at the end.
    """

    landing: Path
    bronze: Lake
    lake: Lake


def calm_run(spark: SparkSession, folder: Path) -> CalmRun:
    """Runs the ingest, keeps its bronze table, then lets the pipelines read all of it and close their windows."""
    run = CalmRun(
        folder / "landing", Lake(str(folder / "bronze")).ensure_exists(), Lake(str(folder / "calm")).ensure_exists()
    )
    kills.simulate(run.landing, files=FILES, rows_per_file=300)
    kills.put_input(run.lake, run.landing)
    lakes.run_all(spark, run.lake, [pipelines.ingest_sales], close=False)
    shutil.copytree(Path(run.lake.uri) / "bronze", Path(run.bronze.uri) / "bronze")
    lakes.run_all(spark, run.lake, kills.DEFINITIONS, close=True)
    for table in MUST_HOLD_ROWS:
        assert lakes.rows(run.lake, table), f"{table} has rows that could be lost or doubled"
    return run
