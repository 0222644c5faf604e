"""A run that nobody disturbs, against which runs with kills, zombies and lost workers are held."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from tests.chaos import kills, pipelines
from tests.support import lakes

FILES = 4
WORK = kills.Work.of(
    "ingest_sales", "top_products", "top_products_live", "shop_totals", "first_sales", "sales_by_category"
)
"""All but a join, which tests/spark/test_join.py cuts off, and `make chaos` kills."""
MUST_HOLD_ROWS = (
    "bronze.sales__quarantine",
    "gold.top_products",
    "gold.top_products__late",
    "gold.top_products_live",
    "gold.first_sales",
    "gold.first_sales__late",
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


def calm_run(spark: Callable[[], SparkSession], folder: Path) -> CalmRun:
    """Runs the ingest, keeps its bronze table, then lets the pipelines read all of it and close their windows.

    Args:
        spark: gives the session, which is started only if the run has not been made yet.
        folder: where the run lies, or is to.
    """
    lakes_of_it = (Lake(str(folder / name)).ensure_exists() for name in ("bronze", "calm"))
    run, complete = CalmRun(folder / "landing", *lakes_of_it), folder / "complete"
    if not complete.exists():
        _make(spark(), run)
        complete.touch()
    return run


def _make(spark: SparkSession, run: CalmRun) -> None:
    kills.simulate(run.landing, files=FILES, rows_per_file=300)
    kills.put_input(run.lake, run.landing, WORK)
    lakes.run_all(spark, run.lake, [pipelines.ingest_sales], close=False)
    shutil.copytree(Path(run.lake.uri) / "bronze", Path(run.bronze.uri) / "bronze")
    lakes.run_all(spark, run.lake, WORK.definitions, close=True)
    for table in MUST_HOLD_ROWS:
        assert lakes.rows(run.lake, table), f"{table} has rows that could be lost or doubled"
