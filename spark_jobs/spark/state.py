"""What Spark's state holds, read with Spark's own state reader."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.spark.java import java_class
from spark_jobs.spec import Pipeline


def open_pairs(spark: SparkSession, lake: Lake, pipeline: Pipeline) -> int:
    """(event, window) pairs in the groups that are still open: the sum of their event counts.

    The count is the last aggregate of the plan, hence the last column of the state's value.

    Raises:
        MissingTableError: if the pipeline has no checkpoint.
    """
    state = _state(spark, lake, pipeline)
    fields: list[StructField] = state.schema["value"].dataType.fields  # type: ignore[attr-defined]
    # By place: Spark's names may be there twice.
    places = StructType([StructField(f"p{at}", each.dataType, True) for at, each in enumerate(fields)])
    total = state.agg(F.sum(F.col("value").cast(places).getField(f"p{len(fields) - 1}"))).collect()[0][0]
    return int(total or 0)


def rows_in_state(spark: SparkSession, lake: Lake, pipeline: Pipeline, side: str = "") -> int:
    """Rows in the state of the first operator.

    Args:
        spark: the session.
        lake: where the checkpoint lies.
        pipeline: whose it is.
        side: of a join: `left` or `right`.

    Raises:
        MissingTableError: if the pipeline has no checkpoint.
    """
    return _state(spark, lake, pipeline, **({"joinSide": side} if side else {})).count()


def open_events(spark: SparkSession, lake: Lake, pipeline: Pipeline, places: Sequence[str]) -> int:
    """Events in the state of a keyed operator that are in no row yet.

    Args:
        spark: the session.
        lake: where the checkpoint lies.
        pipeline: whose it is.
        places: `waiting`, for the watermark; `kept`, of keys.

    Raises:
        MissingTableError: if the pipeline has no checkpoint.
    """
    found = 0
    for place in places:
        state = _state(spark, lake, pipeline, stateVarName=place)
        events = F.col("value" if place == "waiting" else "user_map_value").getField("events")
        found += int(state.agg(F.sum(F.size(events))).collect()[0][0] or 0)
    return found


def rows_by_store(spark: SparkSession, run: str) -> dict[str, int]:
    """Rows in the state stores of a running query, by the names that Spark gives them.

    What executors in other processes hold is not seen: compare the sum with Spark's own count.

    Args:
        spark: the session.
        run: of the query: its `runId`.
    """
    return dict(java_class(spark, "io.tidemark.storage.StateRows").byStore(run))


def _state(spark: SparkSession, lake: Lake, pipeline: Pipeline, **options: str) -> DataFrame:
    epoch = current_epoch(lake, pipeline.name)
    if epoch is None:
        raise MissingTableError(f"pipeline `{pipeline.name}` has no checkpoint in {lake.uri}. Nothing was read.")
    return state_frame(spark, lake.path(epoch.folder), **options)


def state_frame(spark: SparkSession, checkpoint: str, **options: str) -> DataFrame:
    """Spark's reader of state.

    Args:
        spark: the session.
        checkpoint: its address.
        options: of the reader.
    """
    _keep_account(spark)
    return spark.read.format("statestore").options(**options).load(checkpoint)


def state_hashes(spark: SparkSession, checkpoint: str, *, of_several_kinds: bool, **options: str) -> DataFrame:
    """A column `row_hash`, with a number for each row of state: the same for the same row, in whatever partition.

    Args:
        spark: the session.
        checkpoint: as `state_frame`.
        of_several_kinds: whether the store has several kinds of rows, timers among them.
        options: as `state_frame`.
    """
    if of_several_kinds:
        # As Spark itself reads them to divide them. Internal: tests/spark/test_rescale.py pins it.
        raw = state_frame(spark, checkpoint, _readAllColumnFamilies="true", **options)
        return raw.select(F.xxhash64("column_family_name", "key_bytes", "value_bytes").alias("row_hash"))
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    # A map is hashed in the order of its entries, which nobody changes in a row that is only moved.
    session.conf.set("spark.sql.legacy.allowHashOnMapType", "true")
    return state_frame(session, checkpoint, **options).select(F.xxhash64("key", "value").alias("row_hash"))


def repartition(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    """Divides the state of a stopped query anew: Spark adds a batch to its checkpoint that reads nothing.

    One that was interrupted is finished by the same number, and refused by another one.

    Args:
        spark: the session.
        checkpoint: its address; its last batch has ended.
        partitions: how many there are to be.
    """
    _keep_account(spark)
    # Checked for sinks that write each batch once: else Spark would note a batch that has not ended as ended, and give
    # its events another number, under which tables that have it already would take it again.
    spark._streamingCheckpointManager.repartition(checkpoint, partitions, enforce_exactly_once_sink=True)


def _keep_account(spark: SparkSession) -> None:
    """What keeps account of state stores begins with the first look at streams; without it no store is loaded."""
    spark.streams.active  # noqa: B018
