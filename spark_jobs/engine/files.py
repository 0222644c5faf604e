"""Files of a folder that grows: the stream carries their names, each batch reads the files it is given.

So a file that cannot be read is set aside with its error, and the others of its batch go on.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from obstore.exceptions import BaseError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.spark_log import file_entries, file_number
from spark_jobs.lake.inputs.folders import parquet_shape, source_store
from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.progress import planned_offsets
from spark_jobs.spark.schemas import schema_ddl
from spark_jobs.spark.stores import WITHOUT_CHECKSUMS, Stores
from spark_jobs.spec import Files, Ingest

_UNREADABLE = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE",
    "_CORRUPT_",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
    "LongLineException",
    "PATH_NOT_FOUND",  # listed, and removed before it was read
)

# What keeps a file from being read though nothing is wrong with it: the stream stops, and reads it once that is fixed.
_NOT_THE_FILES_FAULT = (
    "AccessDenied",
    "AccessControlException",
    "Permission denied",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "SignatureDoesNotMatch",
    "Too many open files",
    "ConnectException",
    "Connection refused",
    "Connection reset",
    "SocketTimeoutException",
    "timed out",
    "UnknownHost",
    "SdkClientException",
    "Service Unavailable",
    "AWSStatus500Exception",
    "AWSServiceThrottledException",
    "AWSServiceIOException",
    "SlowDown",
    "reduce your request rate",
    "Input/output error",
    "Stale file handle",
    "Transport endpoint is not connected",
    "OutOfMemoryError",
)

# A task that fails reaches Python as the one, an error of the plan as the other.
_ERRORS = (PySparkException, Py4JJavaError)

# Spark passes over files and folders whose names begin so.
_HIDDEN = ("_", ".")

# Of these the size tells nothing about their lines; their codecs see to the longest one.
_COMPRESSED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")

_PATTERN = re.compile(r"[\[\]{}*?\\]")

_BINARY_FILE = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"


def file_names(spark: SparkSession, source: Files, path: str) -> DataFrame:
    """A stream of `path`, one row a new file, in order of modification time; their content is not read."""
    # By default Spark ignores, in silence, files that are a week older than the newest one it has seen.
    options = {"recursiveFileLookup": "true", "maxFileAge": "36500d"}
    if source.max_bytes_per_trigger is not None:
        options["maxBytesPerTrigger"] = str(source.max_bytes_per_trigger)
    elif source.max_files_per_trigger is not None:
        options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
    return spark.readStream.format("binaryFile").schema(_BINARY_FILE).options(**options).load(path).select("path")


def planned_files(query: StreamingQuery, lake: Lake, checkpoint: str) -> tuple[str, ...]:
    """The files of the batch that runs, from the source's log in the checkpoint.

    Not from the stream itself: Spark leaves out, in silence, a file that was removed after it was planned.

    Args:
        query: it reads one folder.
        lake: where its checkpoint lies.
        checkpoint: relative to the lake.
    """
    before, upto = planned_offsets(query)
    found = set()
    for number in range(file_number(before) + 1, file_number(upto) + 1):
        entries = file_entries(lake, checkpoint, number)
        # A compacted one repeats the entries before.
        found |= {_plain(entry["path"]) for entry in entries if entry["batchId"] == number}
    return tuple(sorted(found))


def _plain(path: str) -> str:
    """A path of the log, which is written as a URL, as readers take it."""
    return unquote(path).replace("file:///", "file:/", 1)


def link_that_comes_back(root: str) -> tuple[str, str] | None:
    """A symbolic link below a folder that leads back to a folder which it lies in, and that folder; None: none does.

    Spark follows it round and round; with two of them its list of files never ends.

    Args:
        root: the folder that is read; a pattern, or a folder of another store, has no links that are known here.
    """

    def search(folder: str, above: tuple[str, ...]) -> tuple[str, str] | None:
        real = os.path.realpath(folder)
        if real in above:
            return folder, real
        with os.scandir(folder) as entries:
            below = [entry.path for entry in entries if not entry.name.startswith(_HIDDEN) and entry.is_dir()]
        return next((found for each in below if (found := search(each, (*above, real)))), None)

    try:
        return search(_local(root), ()) if _is_folder(root) else None
    except OSError:
        return None  # what cannot be listed is for Spark to tell


def _is_folder(root: str) -> bool:
    """Whether it is a folder of this machine, and no pattern."""
    return not (("://" in root and not root.startswith("file:")) or any(sign in root for sign in "*?[{"))


def links_to_others(paths: Sequence[str], root: str) -> frozenset[str]:
    """The paths that lead to files of the same folder by another name, through a symbolic link.

    Spark follows links. One that leads back to a folder above it, made while a stream runs, would bring each file forty
    times.

    Args:
        paths: of a batch.
        root: the folder that is read, as `link_that_comes_back` takes it.
    """
    if not _is_folder(root):
        return frozenset()
    top = Path(_local(root))
    real_top = os.path.realpath(top)
    found = set()
    for path in paths:
        # As it would be without a link below the folder itself.
        plain = os.path.join(real_top, os.path.relpath(_local(path), top))
        real = os.path.realpath(plain)
        # By a name that is hidden from Spark the file is not read: then this one is its name.
        parts = os.path.relpath(real, real_top).split(os.sep)
        inside = real.startswith(real_top + os.sep) and not any(part.startswith(_HIDDEN) for part in parts)
        if real != plain and (inside or _comes_back(plain, real_top)):
            found.add(path)
    return frozenset(found)


def _comes_back(path: str, top: str) -> bool:
    """Whether a path goes through a link to a folder that it has been in."""
    seen, place = {top}, top
    for part in os.path.relpath(os.path.dirname(path), top).split(os.sep):
        place = os.path.realpath(os.path.join(place, part))
        if place in seen and part != ".":
            return True
        seen.add(place)
    return False


def shape_of_parquet(lake: Lake, source: Files, paths: Sequence[str]) -> tuple[list[str], int] | None:
    """The columns and the number of rows of one Parquet file, the last by name; None where that cannot be found out.

    One of a batch is enough to notice that a source has another schema.

    Args:
        lake: where.
        source: that is read.
        paths: of a batch.
    """
    root = lake.source_path(source.path).rstrip("/")
    try:
        store = source_store(lake, source)
        if store is None or not paths:
            return None
        of_folder = _is_folder(root)
        path = os.path.relpath(_local(paths[-1]), _local(root)) if of_folder else paths[-1].removeprefix(f"{root}/")
        return parquet_shape(store, path)
    except (BaseError, OSError, ValueError, pa.ArrowException):
        return None  # that a file cannot be read is reported where it is


def _local(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/")


class FileBatch:
    """The files of one batch."""

    def __init__(
        self, spark: SparkSession, definition: Ingest, source: Files, paths: Sequence[str], at_ms: int, root: str
    ) -> None:
        self._spark = spark
        self._stores = Stores(spark)
        self._definition = definition
        self._source = source
        self._paths = paths
        self._at_ms = at_ms
        self._root = root

    def read(
        self,
        judge: Callable[[DataFrame], DataFrame],
        count: Callable[[DataFrame], list[Row]],
        known_bad: Mapping[str, str],
    ) -> tuple[DataFrame, list[Row], list[tuple[str, str]]]:
        """Reads, judges and counts the files in one pass; only if that fails, looks for the files to blame.

        Args:
            judge: gives each row its verdict.
            count: materialises the rows.
            known_bad: path -> error of files that are not to be read again.

        Returns:
            The judged rows, kept in memory; their counts; and (path, error) of each file that cannot be read.
        """
        unreadable, blamers = dict(known_bad), [self._missing, self._broken]
        while True:
            paths = [path for path in self._paths if path not in unreadable]
            try:
                rows, counted = self._judged(paths, judge, count)
            except _ERRORS as error:
                if not blamers or not _is_unreadable(error) or not self._stores.matches(self._root):
                    raise
                unreadable |= blamers.pop(0)(paths)
                continue
            passed_over = self._passed_over(paths, counted)
            if not passed_over:
                return rows, counted, list(unreadable.items())
            rows.unpersist()
            unreadable |= passed_over

    def _judged(
        self,
        paths: Sequence[str],
        judge: Callable[[DataFrame], DataFrame],
        count: Callable[[DataFrame], list[Row]],
    ) -> tuple[DataFrame, list[Row]]:
        rows = judge(self._rows(paths)).persist()
        try:
            return rows, count(rows)
        except _ERRORS:
            rows.unpersist()
            raise

    def _passed_over(self, paths: Sequence[str], counted: Sequence[Row]) -> dict[str, str]:
        """Files of which Spark or Hadoop has left something out, in silence.

        A Parquet file without a byte is not even opened, and a line that is too long is no line to Hadoop. Both are
        seen by what is missing: the file has no rows, or its rows are shorter than it is by a whole line.
        """
        read: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for group in counted:
            path = _plain(group["__name"])
            read[path] = read.get(path, 0) + int(group["bytes"] or 0)
            sizes[path] = int(group["size"])
        found = {}
        for path in paths:
            size = sizes[path] if path in sizes else self._stores.size(path)
            if self._source.format == "parquet":
                trouble = "the file has no bytes, hence is no Parquet file" if size == 0 else ""
            elif size - read.get(path, 0) > self._stores.longest_line and not path.endswith(_COMPRESSED):
                trouble = self._stores.long_line(path)
            else:
                trouble = ""
            if trouble:
                found[path] = trouble
        return found

    def _missing(self, paths: Sequence[str]) -> dict[str, str]:
        return {path: "the file was removed before it was read" for path in paths if not self._stores.exists(path)}

    def _broken(self, paths: Sequence[str]) -> dict[str, str]:
        return {path: cause for path in paths if (cause := self._error_of(path))}

    def _error_of(self, path: str) -> str | None:
        try:
            self._rows([path]).write.format("noop").mode("overwrite").save()
        except _ERRORS as error:
            if not _is_unreadable(error):
                raise
            return _first_cause(error)
        return None

    def _rows(self, paths: Sequence[str]) -> DataFrame:
        """The files' rows as text with their place: `__raw`, `__name`, `__block`, `__partition`, `_ingest_time`."""
        place = [
            F.col("_metadata.file_path").alias("__name"),
            F.col("_metadata.file_block_start").alias("__block"),
            F.col("_metadata.file_size").alias("__size"),
            F.lit(None).cast("int").alias("__partition"),
            F.timestamp_millis(F.lit(self._at_ms)).alias("_ingest_time"),
        ]
        if not paths:
            payload = f"{schema_ddl(self._definition.columns)}, " if self._source.format == "parquet" else ""
            return self._spark.createDataFrame(
                [],
                f"{payload}__raw STRING, __name STRING, __block BIGINT, __size BIGINT, __partition INT, "
                "_ingest_time TIMESTAMP",
            )
        # The names are those of files: a bracket in one is no pattern.
        names = [_PATTERN.sub(r"\\\g<0>", path) for path in paths]
        reader = self._spark.read.options(**WITHOUT_CHECKSUMS)
        if self._source.format == "parquet":
            columns = columns_of(self._definition.columns)
            return (
                reader.schema(schema_ddl(self._definition.columns))
                .parquet(*names)
                .select(
                    *columns,
                    F.to_json(F.struct(*columns)).alias("__raw"),
                    F.col("_metadata.row_index").alias("__position"),
                    *place,
                )
            )
        text = reader.text(names).select(F.col("value").alias("__raw"), *place)
        # A blank line is no event in any of these formats.
        return text.where(F.trim("__raw") != "")


def _is_unreadable(error: Exception) -> bool:
    # Without the stack traces: the names of methods in them tell nothing.
    lines = str(error).splitlines()
    text = "\n".join([*lines[:2], *(line for line in lines if line.lstrip().startswith("Caused by"))])
    blamed = any(mark in text for mark in _UNREADABLE)
    return blamed and not any(mark in text for mark in _NOT_THE_FILES_FAULT)


def _first_cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by")]
    return (causes[-1].removeprefix("Caused by: ") if causes else lines[0])[:500]
