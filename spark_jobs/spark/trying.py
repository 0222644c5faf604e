"""What is null where it cannot be computed."""

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from spark_jobs.spark.java import java_class


def tried(spark: SparkSession, value: Column) -> Column:
    """A column whose value is null where it cannot be computed.

    Args:
        spark: the session.
        value: such as a cast.
    """
    columns = java_class(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    attempt = java_class(spark, "org.apache.spark.sql.catalyst.expressions.TryEval")
    return ClassicColumn(columns.column(attempt(columns.expression(value._jc))))
