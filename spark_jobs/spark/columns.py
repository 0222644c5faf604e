"""Columns by their names."""

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.spec.names import in_spark


def column(name: str) -> Column:
    """The column of this name, whatever it is; `F.col` takes dots, quotes and `*` in it for more than a name."""
    return F.col(in_spark(name))


def columns_of(names: Iterable[str]) -> list[Column]:
    """The columns of these names."""
    return [column(name) for name in names]


EVENT_TIME_MARK = "spark.watermarkDelayMs"
"""Metadata of a column that says to Spark that it is an event time, and how many milliseconds its watermark waits.

A computed column with it closes groups. `tests/spark/test_calendar.py` holds it against Spark's own name.
"""
