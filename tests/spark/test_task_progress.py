"""The bar of a command that works in Spark: it shows the tasks of the stage at work, and only on a terminal."""

from __future__ import annotations

import threading
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.console import operation
from spark_jobs.console.operation import showing_tasks, tasks_at_work
from tests.support.spark import listeners_are_told
from tests.support.waiting import await_that


def test_a_terminal_shows_the_tasks_that_are_done_and_nothing_remains(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation, "_EVERY_S", 0.05)
    gate = str(tmp_path / "open")

    def wait(number: int) -> None:
        import os
        import time

        while number and not os.path.exists(gate):
            time.sleep(0.05)

    job = threading.Thread(target=lambda: spark.sparkContext.parallelize(range(3), 3).foreach(wait))
    shown = StringIO()
    with showing_tasks(spark, Console(file=shown, force_terminal=True, width=100), "backfill of sales"):
        job.start()
        try:
            # Two of the three wait for the gate.
            await_that(lambda: "1/3" in shown.getvalue(), "a bar of one task of three")
        finally:
            Path(gate).touch()
            job.join()
    assert "backfill of sales" in shown.getvalue()
    listeners_are_told(spark)
    assert tasks_at_work(spark) == (0, 0)


def test_a_log_gets_no_bar(spark: SparkSession) -> None:
    log = StringIO()
    with showing_tasks(spark, Console(file=log), "backfill of sales"):
        spark.range(10).count()
    assert not log.getvalue()
