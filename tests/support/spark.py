"""What tests ask of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.support.waiting import PATIENCE_S


def listeners_are_told(spark: SparkSession) -> None:
    """Waits until all that has happened has reached Spark's listeners, of which its status tracker is one."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(int(1000 * PATIENCE_S))
