"""What every result row says of itself."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan.columns import FINAL_AFTER, REVISED_AT, REVISION, WINDOW_END
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spark.batch_values import batch_value

REVISED = (FINAL_AFTER, REVISION, REVISED_AT)


def with_revision(results: DataFrame, plan: LogicalPlan, batch_time_ms: int) -> DataFrame:
    """Adds the watermark from which on a row is final, how often it was written and when.

    Args:
        results: rows of a result.
        plan: of the pipeline.
        batch_time_ms: the batch's clock, which is the same when the batch runs again.
    """
    return results.withColumns(
        {**first_revision(plan), REVISED_AT: revised_at(batch_value(results.sparkSession, batch_time_ms))}
    )


def first_revision(plan: LogicalPlan) -> dict[str, Column]:
    """The watermark from which on a row of a result is final, and how often it was written.

    Args:
        plan: of the pipeline.
    """
    columns = {REVISION: F.lit(1).cast("bigint")}
    if plan.sides[0].delay is not None and WINDOW_END in plan.result.keys:
        final = F.timestamp_micros(F.unix_micros(WINDOW_END) + F.lit(plan.grace_ms * 1000))
        return {FINAL_AFTER: final, **columns}
    return columns


def revised_at(batch_time_ms: Column) -> Column:
    """When a row of a batch was written.

    Args:
        batch_time_ms: the batch's clock.
    """
    return F.timestamp_millis(batch_time_ms)
