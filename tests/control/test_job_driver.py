"""The driver of a job, in the tests' own Spark session."""

import threading

import pytest
from pyspark.sql import SparkSession

from spark_jobs.control import orders, terms
from spark_jobs.control.orders import Desired
from spark_jobs.job.loop import JobDriver
from spark_jobs.lake import Lake
from tests.builders import a_pipeline
from tests.control import streams
from tests.control.streams import JOB


def test_orders_that_cannot_be_read_at_first_are_not_taken_for_none(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.deploy(lake, [a_pipeline()])
    orders.stop(lake, [a_pipeline().name], by="a test")
    terms.records(lake, JOB).append(1, terms.Term(host="a", supervisor="a/1", begun_at=streams.Clock().now()))
    driver, looks = JobDriver(spark, lake, JOB, 1), []
    read = driver._orders.newest

    def fail_at_first() -> tuple[int, Desired | None]:
        looks.append(None)
        if len(looks) == 1:
            raise OSError("the lake is unreachable")
        return read()

    monkeypatch.setattr(driver._orders, "newest", fail_at_first)
    driver.run(threading.Event())
    assert len(looks) == 2
