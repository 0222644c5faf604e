"""Groups by window and key."""

from pyspark.sql import DataFrame

from spark_jobs.plan.columns import BATCH, EVENTS, FATE
from spark_jobs.plan.comparing import leeways
from spark_jobs.plan.operators import step_of
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spec import Aggregate, Session
from spark_jobs.transforms.aggregation import aggregate, gap_us
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.operators.base import Transform
from spark_jobs.transforms.recorded_batches import with_sessions


class GroupedTransform(Transform):
    """Spark's own stateful aggregation; `__events` stays the last column that is written."""

    def results(self, *sides: DataFrame) -> DataFrame:
        """One row for each window and key."""
        (events,) = sides
        pipeline = self.operator.pipeline
        step, time = step_of(pipeline, Aggregate), pipeline.event_time
        if BATCH in events.columns and isinstance(step.window, Session):
            events = with_sessions(events, step.by, column(str(time)), gap_us(step.window))

        def type_of(sql: str) -> str:
            return events.selectExpr(sql).schema[0].dataType.simpleString()

        several = list(leeways(step.measures, type_of)) if self.to_compare else []
        groups = aggregate(events, step, time, several)
        results = with_row_steps(groups, pipeline.result_steps, removed=WITHHELD)
        return results.select(
            *columns_of((*(name for name in results.columns if name not in (EVENTS, FATE)), EVENTS, FATE))
        )
