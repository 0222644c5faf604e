"""Numbers that are others in each batch, so that the code which Spark generates is the same for all batches."""

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from spark_jobs.spark.java import java_class


class BatchNumber:
    """A whole number that is another one in each batch, in plans that are made once (`spark/prepared.py`).

    As a literal, it would have Spark compile its code anew in each batch (`infra/java/io/tidemark/planning`).

    Args:
        spark: the session.
        value: of the first batch.

    Attributes:
        column: of type BIGINT; it has the number in each row.
    """

    def __init__(self, spark: SparkSession, value: int = 0) -> None:
        self._number = java_class(spark, "io.tidemark.planning.BatchNumber")(value)
        self.column: Column = ClassicColumn(self._number.column())

    def set(self, value: int) -> None:
        """Has it be another one, for jobs that begin from now on."""
        self._number.set(value)


def batch_value(spark: SparkSession, value: int) -> Column:
    """A column of type BIGINT that has this value in each row.

    Args:
        spark: the session.
        value: such as a watermark, or a number that rows begin with.
    """
    return BatchNumber(spark, value).column
