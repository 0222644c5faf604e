"""Rows that are computed from one event each."""

from pyspark.sql import DataFrame

from spark_jobs.plan.columns import EVENT_COLUMNS, PLACE, SOURCE_TABLE
from spark_jobs.spark.columns import columns_of
from spark_jobs.transforms.operators.base import Transform


class StatelessTransform(Transform):
    """The event itself, with the columns of every `Select`."""

    one_branch = True

    def results(self, *sides: DataFrame) -> DataFrame:
        """The events as they are: each is a row of the result."""
        (events,) = sides
        return events

    def written(self, results: DataFrame) -> DataFrame:
        """The payload; of bronze's own columns the event's id, its number and when it arrived; which table it is of."""
        written = super().written(results).drop(PLACE)
        own = (*EVENT_COLUMNS, *(name for name in written.columns if name == SOURCE_TABLE))
        return written.select(*columns_of((*(name for name in written.columns if name not in own), *own)))
