"""Reads the files of a batch: one that cannot be read is set aside with its error, and the others go on."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.sources.file_paths import plain
from spark_jobs.engine.sources.places import Group
from spark_jobs.lake.inputs.parquet_files import stored_schemas
from spark_jobs.spark.batch_values import batch_value
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.schemas import schema_ddl, schema_of
from spark_jobs.spark.stores import WITHOUT_CHECKSUMS, Stores
from spark_jobs.spec import Ingest
from spark_jobs.transforms.parquet_columns import OtherTypeError, ParquetColumns
from spark_jobs.transforms.rows import MISFIT

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

COMPRESSED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")
"""Of these the size tells nothing about their lines; their codecs see to the longest one."""

_PATTERN = re.compile(r"[\[\]{}*?\\]")


class Counted(Protocol):
    """Rows of files that have been read."""

    @property
    def counted(self) -> Sequence[Group]:
        """Groups of them, with the file (`__name`), the `bytes` of its rows, and its `size`."""

    def finish(self) -> None:
        """Does what else there is to do with them, once it is known that none is missing."""

    def close(self) -> None:
        """Lets go of them."""


C = TypeVar("C", bound=Counted)


class FileReader:
    """Reads the files of one batch.

    Args:
        spark: the session of the query.
        definition: of the ingest.
        paths: of the files.
        at_ms: the batch's clock.
        root: the folder in which they lie.
    """

    def __init__(self, spark: SparkSession, definition: Ingest, paths: Sequence[str], at_ms: int, root: str) -> None:
        self._spark = spark
        self._stores = Stores(spark)
        self._definition = definition
        self._source = definition.source
        self._paths = paths
        self._at_ms = at_ms
        self._parquet: dict[str, ParquetColumns] = {}
        """Of files of Parquet whose end tells it: how their columns are read."""
        self._root = root

    def read(
        self,
        known_bad: Mapping[str, str],
        count: Callable[[DataFrame], C],
    ) -> tuple[C, list[tuple[str, str]]]:
        """Reads the files; only if that fails, looks for the files to blame, and reads the others.

        Args:
            known_bad: path -> error of files that are not to be read again.
            count: reads the rows and counts them.

        Returns:
            What was counted and finished, and (path, error) of each file that cannot be read.
        """
        unreadable, blamers = dict(known_bad), [self._missing, self._broken]
        if self._source.is_parquet:
            unreadable |= self._of_other_types([path for path in self._paths if path not in unreadable])
        while True:
            paths = [path for path in self._paths if path not in unreadable]
            try:
                found = count(self._rows(paths))
                passed_over = self._passed_over(paths, found.counted)
                if not passed_over:
                    found.finish()
            except _ERRORS as error:
                if not blamers or not _is_unreadable(error) or not self._stores.matches(self._root):
                    raise
                unreadable |= blamers.pop(0)(paths)
                continue
            if not passed_over:
                return found, list(unreadable.items())
            found.close()
            unreadable |= passed_over

    def _passed_over(self, paths: Sequence[str], counted: Sequence[Group]) -> dict[str, str]:
        """Files of which Spark or Hadoop has left something out, in silence.

        A Parquet file without a byte is not even opened, and a line that is too long is no line to Hadoop. Both are
        seen by what is missing: the file has no rows, or its rows are shorter than it is by a whole line.
        """
        read: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for group in counted:
            path = plain(group["__name"])
            read[path] = read.get(path, 0) + int(group["bytes"] or 0)
            sizes[path] = int(group["size"])
        found = {}
        for path in paths:
            size = sizes[path] if path in sizes else self._stores.size(path)
            if self._source.is_parquet:
                trouble = "the file has no bytes, hence is no Parquet file" if size == 0 else ""
            elif size - read.get(path, 0) > self._stores.longest_line and not path.endswith(COMPRESSED):
                trouble = self._stores.long_line(path)
            else:
                trouble = ""
            if trouble:
                found[path] = trouble
        return found

    def _of_other_types(self, paths: Sequence[str]) -> dict[str, str]:
        """Looks at the ends of Parquet files: why those are not read that store a column as none of its values is."""
        unreadable = {}
        for path, schema in stored_schemas(paths):
            try:
                self._parquet[path] = ParquetColumns.of(self._definition.columns, schema)
            except OtherTypeError as error:
                unreadable[path] = str(error)
        return unreadable

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
            F.timestamp_millis(batch_value(self._spark, self._at_ms)).alias("_ingest_time"),
        ]
        if not paths:
            payload = f"{schema_ddl(self._definition.columns)}, {MISFIT} STRING, " if self._source.is_parquet else ""
            columns = (
                f"{payload}__raw STRING, __name STRING, __block BIGINT, __size BIGINT, __partition INT, "
                "_ingest_time TIMESTAMP"
            )
            return empty_frame(self._spark, schema_of(columns))
        reader = self._spark.read.options(**WITHOUT_CHECKSUMS)
        if self._source.is_parquet:
            return self._of_parquet(reader, paths, place)
        text = reader.text(_as_names(paths)).select(F.col("value").alias("__raw"), *place)
        # A blank line is no event in any of these formats.
        return text.where(F.trim("__raw") != "")

    def _of_parquet(self, reader: DataFrameReader, paths: Sequence[str], place: Sequence[Column]) -> DataFrame:
        """Files that store their columns alike are read together; mostly these are all."""
        declared = ParquetColumns(tuple(self._definition.columns.items()))
        alike: dict[ParquetColumns, list[str]] = {}
        for path in paths:
            alike.setdefault(self._parquet.get(path, declared), []).append(path)
        return reduce(
            DataFrame.union,
            (
                reader.schema(columns.schema)
                .parquet(*_as_names(files))
                .select(
                    *columns.columns(self._definition.personal),
                    F.col("_metadata.row_index").alias("__position"),
                    *place,
                )
                for columns, files in alike.items()
            ),
        )


def _as_names(paths: Sequence[str]) -> list[str]:
    """The names are those of files: a bracket in one is no pattern."""
    return [_PATTERN.sub(r"\\\g<0>", path) for path in paths]


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
