"""The first event of each key."""

from pyspark.sql import DataFrame

from spark_jobs.plan.columns import HEARTBEAT, IN_RESULT, PLACE
from spark_jobs.plan.operators import Operator, step_of
from spark_jobs.spark.columns import EVENT_TIME_MARK, column
from spark_jobs.spec import Deduplicate
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.operators.aggregate import GroupedTransform
from spark_jobs.transforms.operators.base import Transform
from spark_jobs.transforms.operators.stateless import StatelessTransform
from spark_jobs.transforms.recorded_batches import first_of_each


class DeduplicatedTransform(Transform):
    """Spark's own deduplication, with a time to live of its own."""

    def __init__(self, operator: Operator, *, to_compare: bool = False) -> None:
        super().__init__(operator, to_compare=to_compare)
        self._step = step_of(operator.pipeline, Deduplicate)
        self._groups = GroupedTransform(operator) if len(operator.pipeline.stateful_steps) > 1 else None

    def results(self, *sides: DataFrame) -> DataFrame:
        """The events that are let through, or their groups."""
        (events,) = sides
        first = self._first(events)
        if self._groups is not None:
            return self._groups.results(first)
        kept = with_row_steps(first, self.operator.pipeline.result_steps, removed=WITHHELD)
        # Here, not only where rows are written: Spark then neither shuffles them nor keeps them with the batch.
        return kept.drop(PLACE, HEARTBEAT)

    def _first(self, events: DataFrame) -> DataFrame:
        keys, time = list(self._step.keys), str(self.operator.pipeline.event_time)
        if IN_RESULT in events.columns:
            return first_of_each(events, keys, time, duration_ms(self._step.within))
        if not events.isStreaming:
            return events.dropDuplicates(keys)
        # How long a key outlives its event; without it Spark takes the watermark's delay.
        ttl = column(time).alias(time, metadata={EVENT_TIME_MARK: duration_ms(self._step.within)})
        return events.select(
            *(ttl if name == time else column(name) for name in events.columns)
        ).dropDuplicatesWithinWatermark(keys)

    def written(self, results: DataFrame) -> DataFrame:
        """The columns of events, or of groups."""
        return (self._groups or StatelessTransform(self.operator)).written(results)
