"""The settings of Spark for a driver, and why; needs no Spark, so that a launcher can pass them on."""

import os
from pathlib import Path
from zlib import crc32

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.settings import S3Settings, Settings

JARS_FOLDER = Path(__file__).parents[2] / ".cache" / "jars"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
CLASS_ARCHIVE = JARS_FOLDER.with_name(f"classes-{crc32(bytes(JARS_FOLDER)):08x}.jsa")
"""Java takes it with the jars of this folder only, and passes it over in silence elsewhere: a copy makes its own."""

_LOOPBACK = "127.0.0.1"

_SECRET = "_SPARK_AUTH_SECRET"
"""Where master, workers, drivers and executors of Spark's look for the secret of `spark.authenticate`."""

_LOG_STORE = "io.tidemark.storage.ConditionalCreateLogStore"
_CHECKPOINT_MANAGER = "io.tidemark.storage.ConditionalCreateCheckpointFileManager"

LONGEST_LINE = "tidemark.line.max.bytes"
"""Hadoop's setting for our codecs: how many bytes a line of an input file may have."""

_CODECS = ("Gzip", "BZip2", "Deflate", "Lz4", "Snappy", "ZStandard")

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,io.tidemark.planning.KnownFiles",
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
    # A batch is kept while it is counted and written. To compress it costs more time than to write and read it again.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Half the bytes of Spark's own choice for the same time: ids of events and their places repeat little.
    "spark.sql.parquet.compression.codec": "zstd",
    # Not in the type of twelve bytes, which Parquet has given up and other readers take for nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # What a task sorts or groups takes its memory by pages, each filled with zeros first. Spark would choose 32 MB of a
    # heap of 2 GB, for batches that mostly hold less than one.
    "spark.buffer.pageSize": "2m",
    # Spark hands each task's code and Hadoop's settings on in pieces, and fills room for a whole one with zeros first:
    # by its own choice 4 MB for some 50 KB, several times a batch.
    "spark.broadcast.blockSize": "256k",
    # A driver lives for months: with no page to show them, the plans and tasks of a thousand queries fill its heap.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The page is off on which each plan would stand, formatted anew for each job of each batch.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.adaptive.enabled": "false",
    # Hadoop's own choice, but with profiles and web identities too, and instance and container roles as the SDK does
    # them. The first two take what Spark hands to executors from the driver's environment.
    "spark.hadoop.fs.s3a.aws.credentials.provider": (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    ),
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "true",
}


_COMPILED_ONCE = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
"""Java's second compiler takes half the processor's time of a minute, and saves it after that. Without it Java keeps
room for a fifth of the code."""


_COMPILED_WHEN_HOT = tuple(
    f"-XX:Tier4{name}Threshold={calls}"
    for name, calls in (
        ("Invocation", 80_000),
        ("MinInvocation", 9_600),
        ("Compile", 240_000),
        ("BackEdge", 640_000),
    )
)
"""Java's second compiler takes a third of the processor's time of a driver's first minutes, as planning calls much code
that often. With sixteen times Java's own numbers of calls it compiles what rows go through, and the rest of a stream of
months a while later."""


class MissingJarsError(TidemarkError):
    """The jars that Spark needs are not there."""


def jars() -> tuple[str, ...]:
    """Delta's, Hadoop's and Kafka's jars, as set-up has retrieved them.

    Raises:
        MissingJarsError: if set-up has not.
    """
    found = tuple(sorted(str(jar) for jar in JARS_FOLDER.glob("*.jar")))
    if not found:
        raise MissingJarsError(
            f"jars: expected Delta's and Hadoop's in {JARS_FOLDER}, found none. Nothing was started. Run `make setup`."
        )
    return found


def spark_settings(lake: Lake, settings: Settings, *, brief: bool = False) -> dict[str, str]:
    """What a driver of Tidemark sets; credentials come from the AWS chain, not from here.

    Args:
        lake: where the driver will write.
        settings: of the process.
        brief: whether the driver lives for less than a minute.
    """
    options = {
        **_SETTINGS,
        "spark.driver.memory": settings.driver_memory,
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.driver.extraJavaOptions": _java_options(settings, brief=brief),
        # A line is put together in memory: one of a gigabyte, which a gzip file of a megabyte may hold, ends the JVM.
        # The first setting is for our codecs, which fail at it; the second for plain text, where Hadoop leaves the line
        # out and `engine.sources` notices.
        f"spark.hadoop.{LONGEST_LINE}": str(settings.max_line_bytes),
        # A little more, for line ends: whatever Hadoop leaves out is longer than what is noticed.
        "spark.hadoop.mapreduce.input.linerecordreader.line.maxlength": str(settings.max_line_bytes + 16),
        "spark.hadoop.io.compression.codecs": ",".join(f"io.tidemark.storage.BoundedCodec${name}" for name in _CODECS),
    }
    if settings.master.startswith("local"):
        # Nobody else has anything to ask of it: its ports are those of this machine, and want a secret of this run.
        options["spark.driver.bindAddress"] = options["spark.driver.host"] = _LOOPBACK
        options["spark.authenticate"] = "true"
        # On the class path, not in spark.jars: those would be copied at each start.
        options["spark.driver.extraClassPath"] = os.pathsep.join(jars())
    else:
        options["spark.jars"] = ",".join(jars())
        options["spark.executor.memory"] = settings.executor_memory
        if settings.java_options:
            options["spark.executor.extraJavaOptions"] = settings.java_options
    if settings.master.startswith("spark://") and settings.spark_secret is not None:
        options["spark.authenticate"] = "true"
        # A driver of a cluster does not start without; what is in the environment goes before it, wherever it is used.
        options["spark.authenticate.secret"] = f"in the environment, as {_SECRET}"
    if lake.on_s3:
        s3 = S3Settings.of_environment()
        options["spark.hadoop.fs.s3a.endpoint.region"] = s3.region
        if s3.endpoint_url:
            options["spark.hadoop.fs.s3a.endpoint"] = s3.endpoint_url
            options["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(s3.endpoint_url.startswith("https")).lower()
    return options


def secret_environment(settings: Settings) -> dict[str, str]:
    """What a driver on a cluster has in its environment beside its settings: those stand on its command line."""
    if settings.spark_secret is None or not settings.master.startswith("spark://"):
        return {}
    return {_SECRET: settings.spark_secret.get_secret_value()}


def _java_options(settings: Settings, *, brief: bool) -> str:
    options = [
        *(_COMPILED_ONCE if brief else _COMPILED_WHEN_HOT),
        f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
        "-XX:+UseParallelGC",
        # Java lets the heap grow until it takes a hundredth of the time to collect it. At a sixteenth, large batches
        # take a quarter less memory, for a thirtieth more of the processor's time.
        "-XX:GCTimeRatio=15",
        # Spark and Delta load 170 MB of classes. Java collects its whole heap at 21 MB of them, then five times more.
        "-XX:MetaspaceSize=256m",
    ]
    if CLASS_ARCHIVE.exists():
        # An archive that does not fit this Java or these jars is passed over, without a word.
        options += [
            f'-XX:SharedArchiveFile="{CLASS_ARCHIVE}"',
            "-Xshare:auto",
            "-Xlog:disable",
            "-Xlog:all=error:stderr",
        ]
    return " ".join([*options, settings.java_options])
