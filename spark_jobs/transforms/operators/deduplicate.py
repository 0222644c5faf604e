"""The first event of each key."""

from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from spark_jobs.plan.columns import HEARTBEAT, IN_RESULT, PLACE
from spark_jobs.plan.operators.aggregate import Grouped
from spark_jobs.plan.operators.deduplicate import Deduplicated
from spark_jobs.plan.operators.stateless import Stateless
from spark_jobs.spark.columns import column
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.operators.aggregate import GroupedTransform
from spark_jobs.transforms.operators.base import Transform
from spark_jobs.transforms.operators.stateless import StatelessTransform
from spark_jobs.transforms.replay import first_of_each

TTL = "spark.watermarkDelayMs"
"""Where Spark finds, beside an event time, how long a key outlives it; else it takes the watermark's delay."""


class DeduplicatedTransform(Transform[Deduplicated]):
    """Spark's own deduplication, with a time to live of its own."""

    @cached_property
    def _after(self) -> Transform[Any]:
        groups = self.operator.groups_after
        return GroupedTransform(groups) if groups else StatelessTransform(Stateless(self.operator.pipeline))

    def results(self, *sides: DataFrame) -> DataFrame:
        """The events that are let through, or their groups."""
        (events,) = sides
        first = self._first(events)
        if isinstance(self._after.operator, Grouped):
            return self._after.results(first)
        kept = with_row_steps(first, self.operator.pipeline.result_steps, removed=WITHHELD)
        # Here, not only where rows are written: Spark then neither shuffles them nor keeps them with the batch.
        return kept.drop(PLACE, HEARTBEAT)

    def _first(self, events: DataFrame) -> DataFrame:
        keys, time = list(self.operator.step.keys), str(self.operator.pipeline.event_time)
        if IN_RESULT in events.columns:
            return first_of_each(events, keys, time, duration_ms(self.operator.step.within))
        if not events.isStreaming:
            return events.dropDuplicates(keys)
        ttl = column(time).alias(time, metadata={TTL: duration_ms(self.operator.step.within)})
        return events.select(
            *(ttl if name == time else column(name) for name in events.columns)
        ).dropDuplicatesWithinWatermark(keys)

    def written(self, results: DataFrame) -> DataFrame:
        """The columns of events, or of groups."""
        return self._after.written(results)
