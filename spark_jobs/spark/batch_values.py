"""Numbers that are others in each batch, so that the code which Spark generates is the same for all batches."""

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from spark_jobs.spark.java import java_class


def batch_value(spark: SparkSession, value: int) -> Column:
    """A column of type BIGINT that has this value in each row.

    As a literal, it would have Spark compile its code anew in each batch (`infra/java/io/tidemark/planning`).

    Args:
        spark: the session.
        value: such as a watermark, or a number that rows begin with.
    """
    return ClassicColumn(java_class(spark, "io.tidemark.planning.BatchValue").of(value))
