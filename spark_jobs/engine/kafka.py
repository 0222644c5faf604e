"""Kafka's messages as rows of text with their place."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.lake.settings import Settings
from spark_jobs.spec import Kafka


def messages(spark: SparkSession, source: Kafka) -> DataFrame:
    """A stream of `__raw` (the value as text), `__name` (topic), `__partition`, `__position` (offset), `__block`.

    Partitions that are added to a topic are read from their first message. Messages that Kafka has deleted before
    they were read stop the stream: they would be lost in silence otherwise.
    """
    options = {
        "kafka.bootstrap.servers": source.bootstrap_servers or Settings().kafka,
        "subscribe": source.topic,
        "startingOffsets": source.starting_offsets,
        "failOnDataLoss": "true",
    }
    if source.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    return (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .select(
            F.col("value").cast("string").alias("__raw"),
            F.col("topic").alias("__name"),
            F.col("partition").alias("__partition"),
            F.col("offset").alias("__position"),
            F.lit(0).cast("bigint").alias("__block"),
        )
    )
