"""Rows of a pipeline's quarantine, with their events."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.plan.columns import INGEST_SEQ, SIDE, SOURCE, SOURCE_TABLE
from spark_jobs.plan.quarantine import SKIPPED
from spark_jobs.recompute.target import Target
from spark_jobs.transforms.late import WHY_SET_ASIDE, Bronze

OF_BATCH = ("_epoch", "_batch_id", SIDE)
"""What tells of which batch a row is."""


def as_read_now(spark: SparkSession, target: Target, rows: DataFrame) -> DataFrame:
    """The rows, with the events of skipped batches as their sources give them: nothing of these was computed.

    Args:
        spark: a session.
        target: the pipeline.
        rows: with their identity, their reason, and the events.
    """
    reads, skipped = target.logical.reads, rows.where(F.col("reason") == SKIPPED)
    if all(table.select is None for table in reads) or skipped.isEmpty():
        return rows
    frames = (spark.read.format("delta").load(target.lake.table_path(table.name)) for table in reads)
    bronze = Bronze(spark, target.lake, reads, [frame.schema for frame in frames])
    names = F.array(*(F.lit(table.name) for table in reads))
    source = F.array_position(names, F.coalesce(F.col(SOURCE_TABLE), F.lit(reads[0].name))) - 1
    said = [name for name in rows.columns if name in {*WHY_SET_ASIDE, *OF_BATCH, SOURCE_TABLE, INGEST_SEQ}]
    again = bronze.beside_many(skipped.select(source.cast("int").alias(SOURCE), *said), rows.columns)
    return rows.where(F.col("reason") != SKIPPED).unionByName(again.select(*rows.columns))
