"""Groups by window and key."""

from pyspark.sql import DataFrame

from spark_jobs.plan.columns import EVENTS, FATE
from spark_jobs.plan.operators.aggregate import Grouped
from spark_jobs.transforms.aggregation import aggregate
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.operators.base import Transform


class GroupedTransform(Transform[Grouped]):
    """Spark's own stateful aggregation; `__events` stays the last column that is written."""

    def results(self, *sides: DataFrame) -> DataFrame:
        """One row for each window and key."""
        (events,) = sides
        groups = aggregate(events, self.operator.step, self.operator.pipeline.event_time)
        results = with_row_steps(groups, self.operator.pipeline.result_steps, removed=WITHHELD)
        return results.select(*(name for name in results.columns if name not in (EVENTS, FATE)), EVENTS, FATE)
