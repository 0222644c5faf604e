"""Some partitions of a batch by themselves: those of its stateful operators, and those that only read."""

from typing import Any

from pyspark.sql import DataFrame

from spark_jobs.spark.java import java_class


def around_state(batch: DataFrame, of_state: int) -> tuple[DataFrame, DataFrame] | None:
    """What the stateful operators of a batch give, and its other branches; each runs what belongs to it, once.

    In a union the partitions of its first branch come first. A filter would not do: it stands above the batch's RDD,
    and would run all of it.

    Args:
        batch: as Spark hands it over, of a plan that is a union whose first branch ends in its stateful operators.
        of_state: into how many partitions those divide it; 0: it has none.

    Returns:
        Two frames; None where the batch has no other branches than one, as without input.
    """
    rdd = batch._jdf.logicalPlan().rdd()
    total = int(rdd.getNumPartitions())
    if not 0 < of_state < total:
        return None
    return _of(batch, rdd, range(of_state)), _of(batch, rdd, range(of_state, total))


def _of(batch: DataFrame, rdd: Any, numbers: range) -> DataFrame:
    session = batch.sparkSession
    wanted = java_class(session, "java.util.HashSet")()
    for number in numbers:
        wanted.add(number)
    # A set of Scala's is a function that tells whether something is in it.
    is_wanted = java_class(session, "scala.jdk.javaapi.CollectionConverters").asScala(wanted)
    pruned = java_class(session, "org.apache.spark.rdd.PartitionPruningRDD").create(rdd, is_wanted)
    return DataFrame(session._jsparkSession.internalCreateDataFrame(pruned, batch._jdf.schema(), False), session)
