"""What Spark knows of a frame."""

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.spark.java import java_class


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows, which Spark makes at once: PySpark makes it of a file, to be read by Python.

    Args:
        spark: the session.
        schema: its columns.
    """
    of_java = java_class(spark, "org.apache.spark.sql.types.DataType").fromJson(schema.json())
    rows = java_class(spark, "java.util.ArrayList")()
    return DataFrame(spark._jsparkSession.createDataFrame(rows, of_java), spark)


def fetch(rows: DataFrame) -> pa.Table:
    """Rows in the memory of this process, as PySpark's own `toArrow` gives them, but with nulls in `VARIANT` columns.

    PySpark says of the parts of a variant that they are never null, and casts to that.

    Args:
        rows: few.
    """
    batches = rows._collect_as_arrow(empty_list_if_zero_records=False)  # type: ignore[operator]
    return pa.Table.from_batches(batches)


def compute(persisted: DataFrame) -> None:
    """Computes a persisted frame, in one job, which keeps its rows.

    Args:
        persisted: not computed yet.
    """
    # The pieces in which Spark keeps rows are counted: no plan is made, and no row is looked at again.
    relation = persisted._jdf.queryExecution().withCachedData()
    relation.cacheBuilder().cachedColumnBuffers().count()


def size_of(persisted: DataFrame | pa.Table) -> int:
    """What a persisted frame takes in memory, in bytes, once it has been computed; rows picked out of it take less."""
    if isinstance(persisted, pa.Table):
        return int(persisted.nbytes)
    return int(persisted._jdf.queryExecution().withCachedData().stats().sizeInBytes())


def size_of_source(rows: DataFrame) -> int:
    """What the files that rows are read from take, in bytes; 0 where they are read from none.

    Args:
        rows: of a plan that only reads, all of the same kind.
    """
    return int(rows._jdf.queryExecution().analyzed().collectLeaves().head().stats().sizeInBytes())
