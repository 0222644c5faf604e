"""What a batch of an ingest becomes: rows of bronze, and rows of its quarantine."""

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.engine.sources.base import Batch
from spark_jobs.engine.sources.fetched import FetchedBatch
from spark_jobs.engine.sources.places import NUMBER, source
from spark_jobs.lake.commit_records.stamps import Role
from spark_jobs.plan.quarantine import UNREADABLE
from spark_jobs.spark.batch_values import batch_value
from spark_jobs.spark.schemas import schema_ddl, schema_of
from spark_jobs.spec import Ingest
from spark_jobs.transforms.bronze import SOURCE_STRUCT, bronze_columns
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.rows import RAW, REASON

_METADATA = f"_event_id STRING, _ingest_seq BIGINT, _ingest_time TIMESTAMP, _source {SOURCE_STRUCT}, _heartbeat BOOLEAN"
_QUARANTINE = (
    "reason STRING, detail STRING, raw STRING, _ingest_time TIMESTAMP, "
    f"_source {SOURCE_STRUCT}, _epoch INT, _batch_id BIGINT"
)


def schemas(definition: Ingest) -> dict[Role, StructType]:
    """The columns of the tables that an ingest writes, by their role.

    Args:
        definition: of the ingest.
    """
    columns = schema_of(f"{schema_ddl(definition.payload)}, {_METADATA}")
    # Readers without a JVM are not given the statistics of columns that stand behind a struct.
    bronze = StructType(sorted(columns, key=lambda field: isinstance(field.dataType, StructType)))
    return {"result": bronze, "quarantine": schema_of(_QUARANTINE)}


def for_bronze(batch: Batch, first_seq: int, kept_before: Collection[str]) -> DataFrame | pa.Table:
    """The good rows of a batch, as bronze has them.

    Args:
        batch: that was read.
        first_seq: the number that the first of them gets.
        kept_before: columns of bronze for fields that are kept no more.
    """
    if isinstance(batch, FetchedBatch):
        return batch.good(first_seq, kept_before)
    placed = batch.placed(batch.rows.where(F.col(REASON).isNull()).where(batch.is_event))
    return placed.select(
        *bronze_columns(
            batch.definition,
            seq=batch_value(placed.sparkSession, first_seq) + F.col(NUMBER),
            clock=F.col("_ingest_time"),
            source=source(),
            kept_before=kept_before,
        )
    )


def for_quarantine(spark: SparkSession, batch: Batch, *, at_ms: int, epoch: int, batch_id: int) -> DataFrame | pa.Table:
    """The rows of a batch that are set aside, as the quarantine has them; files that cannot be read included.

    Args:
        spark: the session of the query.
        batch: that was read.
        at_ms: the batch's clock.
        epoch: of the checkpoint.
        batch_id: of the batch.
    """
    if isinstance(batch, FetchedBatch):
        found = batch.aside(at_ms)
        same = {"_epoch": pa.int32(), "_batch_id": pa.int64()}
        for (name, kind), value in zip(same.items(), (epoch, batch_id), strict=True):
            found = found.append_column(name, pa.repeat(pa.scalar(value, kind), found.num_rows))
        return found
    bad, reason, detail = batch.verdict
    place = [F.lit(epoch).alias("_epoch"), F.lit(batch_id).cast("bigint").alias("_batch_id")]
    placed = batch.placed(batch.rows.withColumns({"__bad": bad, "__why": reason, "__how": detail}).where("__bad"))
    found = placed.select(
        F.col("__why").alias("reason"),
        F.col("__how").alias("detail"),
        # Readers of a table refuse text that is not UTF-8.
        F.make_valid_utf8(RAW).alias("raw"),
        "_ingest_time",
        source().alias("_source"),
        *place,
    )
    if not batch.unreadable:
        return found
    files = spark.createDataFrame([*batch.unreadable], f"{NAME} STRING, error STRING").select(
        F.lit(UNREADABLE).alias("reason"),
        F.col("error").alias("detail"),
        F.col(NAME).alias("raw"),
        F.timestamp_millis(F.lit(at_ms)).alias("_ingest_time"),
        source(of_whole_file=True).alias("_source"),
        *place,
    )
    return found.unionByName(files)
