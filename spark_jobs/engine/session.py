"""The Spark session of a driver: which jars, which settings and why."""

import os
import sys
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, TidemarkError
from spark_jobs.lake.settings import S3Settings, Settings

JARS_FOLDER = Path(__file__).parents[2] / ".cache" / "jars"
CLASS_ARCHIVE = JARS_FOLDER.with_name("classes.jsa")

_LOG_STORE = "io.tidemark.storage.ConditionalCreateLogStore"
_CHECKPOINT_MANAGER = "io.tidemark.storage.ConditionalCreateCheckpointFileManager"

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A folder needs the exclusion between processes as much as S3 does: the stock writers check, then rename.
    "spark.delta.logStore.file.impl": _LOG_STORE,
    "spark.delta.logStore.s3a.impl": _LOG_STORE,
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_MANAGER,
    # One meaning of a timestamp everywhere.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # State: none of the three is Spark's default. Format 2 keeps zombie tasks from overwriting committed state.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "512",
    # The late split rests on these two.
    "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition": "false",
    "spark.sql.streaming.statefulOperator.allowMultiple": "true",
    # Checksum files double the state's objects; Delta, Parquet and S3 have their own.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.speculation": "false",
    # One pool per query: a slow pipeline must not starve the others of its driver.
    "spark.scheduler.mode": "FAIR",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # Else each call that builds a column asks the JVM five times more, to name its line of Python in an error.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "true",
}


class MissingJarsError(TidemarkError):
    """The jars that Spark needs are not there."""


def build_session(lake: Lake, *, app_name: str = "tidemark", settings: Settings | None = None) -> SparkSession:
    """Starts Spark with everything that a driver of Tidemark needs; credentials come from the AWS chain.

    Raises:
        MissingJarsError: if set-up has not retrieved the jars.
    """
    settings = settings or Settings()
    jars = sorted(str(jar) for jar in JARS_FOLDER.glob("*.jar"))
    if not jars:
        raise MissingJarsError(
            f"jars: expected Delta's and Hadoop's in {JARS_FOLDER}, found none. Nothing was started. Run `make setup`."
        )
    # Spark's Python workers otherwise take whatever python3 is on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop("SPARK_REMOTE", None)
    builder = SparkSession.builder.appName(app_name).master(settings.master)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    builder = (
        builder.config("spark.driver.memory", settings.driver_memory)
        .config("spark.sql.shuffle.partitions", str(settings.shuffle_partitions))
        .config("spark.driver.extraJavaOptions", _java_options(settings))
    )
    if settings.master.startswith("local"):
        # On the class path, not in spark.jars: those would be copied at each start.
        builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(jars))
    else:
        builder = builder.config("spark.jars", ",".join(jars))
    if lake.on_s3:
        s3 = S3Settings()
        builder = builder.config("spark.hadoop.fs.s3a.endpoint.region", s3.region)
        if s3.endpoint_url:
            builder = builder.config("spark.hadoop.fs.s3a.endpoint", s3.endpoint_url).config(
                "spark.hadoop.fs.s3a.connection.ssl.enabled", str(s3.endpoint_url.startswith("https")).lower()
            )
    spark = builder.getOrCreate()
    _probe_store(spark, lake)
    return spark


def _probe_store(spark: SparkSession, lake: Lake) -> None:
    """Refuses a lake that cannot be written, or whose store lets one writer overwrite another's commit."""
    try:
        excludes = spark._jvm.io.tidemark.storage.StoreProbe.conditionalCreate(  # type: ignore[union-attr]
            lake.path("_control", "probe"), spark.sparkContext._jsc.hadoopConfiguration()
        )
    except (Py4JJavaError, PySparkException) as error:
        cause = str(getattr(error, "java_exception", error)).splitlines()[0]
        spark.stop()
        raise LakeUnavailableError(
            f"lake {lake.uri}: cannot be written ({cause}). Nothing was started or written. Check that it exists, that "
            "you may write it and that the disk has room, then start again."
        ) from error
    if not excludes:
        spark.stop()
        raise LakeUnavailableError(
            f"lake {lake.uri}: its store ignores conditional writes, so one driver could overwrite what another "
            "committed. Nothing was started. Use a folder, MinIO, AWS S3 or another store with If-None-Match."
        )


def _java_options(settings: Settings) -> str:
    log_settings = (Path(__file__).parent / "log4j2.properties").as_uri()
    options = [f"-Dlog4j2.configurationFile={log_settings}", "-XX:+UseParallelGC"]
    if CLASS_ARCHIVE.exists():
        # An archive that does not fit this Java or these jars is passed over, without a word.
        options += [
            f'-XX:SharedArchiveFile="{CLASS_ARCHIVE}"',
            "-Xshare:auto",
            "-Xlog:disable",
            "-Xlog:all=error:stderr",
        ]
    return " ".join([*options, settings.java_options])
