"""What tests ask of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession


def listeners_are_told(spark: SparkSession) -> None:
    """Waits until all that has happened has reached Spark's listeners, of which its status tracker is one."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
