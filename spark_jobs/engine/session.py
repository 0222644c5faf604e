"""The Spark session of a driver, and what its store must be able to do."""

import os
import sys

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.engine.spark_settings import spark_settings
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, TidemarkError, first_line
from spark_jobs.lake.settings import Settings


class SessionLostError(TidemarkError):
    """Spark has ended in the process of a driver."""


def why_ended(spark: SparkSession) -> str | None:
    """Why Spark has ended in this process; None: it goes on."""
    try:
        # Spark ends it by itself where a cluster's master removes the application.
        return "its session was stopped" if spark.sparkContext._jsc.sc().isStopped() else None
    except (Py4JError, OSError) as error:
        return f"its JVM does not answer: {first_line(error)}"


def build_session(lake: Lake, *, app_name: str = "tidemark", settings: Settings | None = None) -> SparkSession:
    """Starts Spark with everything that a driver of Tidemark needs; credentials come from the AWS chain.

    Raises:
        MissingJarsError: if set-up has not retrieved the jars.
    """
    settings = settings or Settings()
    values = spark_settings(lake, settings)
    # Spark's Python workers otherwise take whatever python3 is on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop("SPARK_REMOTE", None)
    builder = SparkSession.builder.appName(app_name).master(settings.master)
    for key, value in values.items():
        builder = builder.config(key, value)
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
