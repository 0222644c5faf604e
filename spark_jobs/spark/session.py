"""The Spark session of a driver, and what its store must be able to do."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, TidemarkError, first_line
from spark_jobs.lake.settings import Settings
from spark_jobs.spark.java import java_class, remember_classes
from spark_jobs.spark.settings import secret_environment, spark_settings

_LAST_BREATH_S = 2.0
_KILLED = ", SIGKILL: by somebody, or by the system because memory ran out"


class SessionStartError(TidemarkError):
    """Spark does not start in this process."""


class SessionLostError(TidemarkError):
    """Spark has ended in the process of a driver."""


def end_session(spark: SparkSession) -> None:
    """Ends Spark in this process; where its JVM is gone there is nothing to end."""
    with suppress(Py4JError, OSError):
        spark.stop()


def why_ended(spark: SparkSession) -> str | None:
    """Why Spark has ended in this process; None: it goes on."""
    try:
        # Spark ends it by itself where a cluster's master removes the application.
        return "its session was stopped" if spark.sparkContext._jsc.sc().isStopped() else None
    except (Py4JError, OSError) as error:
        return _how_its_jvm_ended() or f"its JVM does not answer: {first_line(error)}"


def refuse_ended(spark: SparkSession, seen: BaseException | None = None) -> None:
    """Says so where Spark has ended in this process: what a call met that this has cut off says nothing of it.

    Args:
        spark: the session.
        seen: what the call met.

    Raises:
        SessionLostError: if it has.
    """
    if why := why_ended(spark):
        raise SessionLostError(
            f"Spark has ended in this driver ({why}). It ends; its supervisor starts another."
        ) from seen


def _how_its_jvm_ended() -> str | None:
    """That Python cannot reach it any more is a consequence; None where it goes on, or is no child of this process."""
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        code = process.wait(timeout=_LAST_BREATH_S) if process is not None else 0
    except subprocess.TimeoutExpired:
        return None
    if code >= 0:
        return f"its JVM ended with exit code {code}" if code else None
    return f"its JVM was ended by signal {-code}{_KILLED if code == -signal.SIGKILL else ''}"


def build_session(
    lake: Lake, *, app_name: str = "tidemark", settings: Settings | None = None, brief: bool = False
) -> SparkSession:
    """Starts Spark with everything that a driver of Tidemark needs; credentials come from the AWS chain.

    Args:
        lake: where it will write.
        app_name: by which a cluster shows it.
        settings: of the process; None: as the environment says.
        brief: whether it lives for less than a minute.

    Raises:
        MissingJarsError: if set-up has not retrieved the jars.
        SessionStartError: if Spark does not start; what Java said of it is on standard error.
        LakeUnavailableError: if the lake cannot be written, or its store ignores conditional writes.
    """
    settings = settings or Settings()
    values = spark_settings(lake, settings, brief=brief)
    # Spark's Python workers otherwise take whatever python3 is on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop("SPARK_REMOTE", None)
    os.environ.update(secret_environment(settings))
    builder = SparkSession.builder.appName(app_name).master(settings.master)
    for key, value in values.items():
        builder = builder.config(key, value)
    _tell_errors_once()
    try:
        spark = builder.getOrCreate()
        remember_classes(spark)
        _probe_store(spark, lake)
    except (PySparkException, Py4JError, OSError) as error:
        answered = isinstance(error, PySparkException | Py4JJavaError)
        cause = (None if answered else _how_its_jvm_ended()) or _cause(error)
        options = " that TIDEMARK_JAVA_OPTIONS suits" if settings.java_options else ""
        raise SessionStartError(
            f"Spark did not start: {cause}. Nothing was started or written. It needs Java 17 or 21 (JAVA_HOME, or "
            f"`java` on PATH){options}, memory for a heap of {settings.driver_memory} (TIDEMARK_DRIVER_MEMORY) and, as "
            f"TIDEMARK_MASTER is {settings.master}, that master, with the secret that it asks for "
            "(TIDEMARK_SPARK_SECRET); its log says more."
        ) from error
    return spark


def _tell_errors_once() -> None:
    """An error of Spark's is told by who catches it: PySpark writes it before, in JSON with Java's stack."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def lenient_session(spark: SparkSession) -> SparkSession:
    """A session in which what cannot be computed is null, as a rule takes it: an error would stop the stream at a row.

    Pipelines keep Spark's default, which stops: a null in their result would be a wrong one that nobody notices.
    """
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    session.conf.set("spark.sql.ansi.enabled", "false")
    return session


@contextmanager
def only_batches_with_input(spark: SparkSession) -> Iterator[None]:
    """Queries that start meanwhile run no batch without input, such as one that only fires timers.

    Args:
        spark: the session, of which a query takes its settings when it starts.
    """
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def _probe_store(spark: SparkSession, lake: Lake) -> None:
    """Refuses a lake that cannot be written, or whose store lets one writer overwrite another's commit."""
    try:
        excludes = java_class(spark, "io.tidemark.storage.StoreProbe").conditionalCreate(
            lake.path("_control", "probe"), spark.sparkContext._jsc.hadoopConfiguration()
        )
    except (Py4JJavaError, PySparkException) as error:
        spark.stop()
        raise LakeUnavailableError(
            f"lake {lake.uri}: cannot be written ({_cause(error)}). Nothing was started or written. Check that it "
            "exists, that you may write it and that the disk has room, then start again."
        ) from error
    if not excludes:
        spark.stop()
        raise LakeUnavailableError(
            f"lake {lake.uri}: its store ignores conditional writes, so one driver could overwrite what another "
            "committed. Nothing was started. Use a folder, MinIO, AWS S3 or another store with If-None-Match."
        )


def _cause(error: Exception) -> str:
    """What Java or Spark says went wrong, in a line."""
    return str(getattr(error, "java_exception", error)).splitlines()[0].rstrip(".")
