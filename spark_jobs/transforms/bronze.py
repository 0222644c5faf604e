"""Rows of bronze: the payload of an event, and what Tidemark says of it."""

from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spec import Ingest

SOURCE_STRUCT = "STRUCT<name: STRING, partition: INT, position: BIGINT>"
"""Where an event came from: the file or the topic, and the place there."""


def bronze_columns(
    definition: Ingest, *, seq: Column, clock: Column, source: Column, kept_before: Collection[str] = ()
) -> list[Column]:
    """The columns of bronze, of rows with the payload.

    Args:
        definition: of the ingest.
        seq: the number of the event.
        clock: when it came.
        source: where it came from.
        kept_before: columns of the table for fields that are kept no more.
    """
    place = F.concat_ws("/", *(source[part].cast("string") for part in ("name", "partition", "position")))
    event_id = column(definition.event_id).cast("string") if definition.event_id else F.md5(place)
    return [
        *columns_of(definition.payload),
        *(F.lit(None).cast("map<string,string>").alias(name) for name in kept_before),
        event_id.alias("_event_id"),
        seq.cast("bigint").alias("_ingest_seq"),
        clock.alias("_ingest_time"),
        source.alias("_source"),
        F.lit(False).alias("_heartbeat"),
    ]
