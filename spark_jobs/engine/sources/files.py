"""Files of a folder that grows: the stream carries their names, each batch reads the files it is given."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

import pyarrow as pa
from obstore.exceptions import BaseError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.sources.base import Batch, BatchRows, PlannedBatch, Source, Verdict
from spark_jobs.engine.sources.csv_files import by_own_headers, without_parts_of_values
from spark_jobs.engine.sources.fetched import FetchedBatch, FetchedRead, Fetching
from spark_jobs.engine.sources.file_paths import is_folder, link_that_comes_back, links_to_others, local, plain
from spark_jobs.engine.sources.file_reader import COMPRESSED, FileReader
from spark_jobs.engine.sources.headers import Headers
from spark_jobs.engine.sources.judging import Judge, KeptRows
from spark_jobs.engine.sources.places import ORDER
from spark_jobs.engine.sources.written import WritingRead, WrittenBatch
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.spark_log import file_entries, file_number
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.inputs.folders import is_hidden, source_store
from spark_jobs.lake.inputs.parquet_files import parquet_shape
from spark_jobs.plan.quarantine import header_told
from spark_jobs.spark.frames import size_of_source
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spec import Files, Ingest
from spark_jobs.spec.sources import BATCH_BYTES, BATCH_FILES
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.csv_lines import opens_quote
from spark_jobs.transforms.rows import HEADER, RAW, REASON, REPEATED_HEADER
from spark_jobs.transforms.shape import Shape

LINKED = "files by a symbolic link, which are read by their own name"

_BINARY_FILE = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
WRITTEN_BYTES = 32 * 2**20
"""So large are files that are written while they are judged: smaller ones are sooner kept in memory than read twice."""

ONE_TASK_BYTES = 2 * 2**20
"""Smaller files are read in one task: their rows are counted there, and no second stage has to add the counts up."""


class MissingInputError(TidemarkError):
    """The folder that an ingest reads is not there, or has no end."""


class FilesSource(Source):
    """A folder that grows.

    Args:
        spark: the session of its query.
        lake: where.
        definition: of the ingest.
    """

    def __init__(self, spark: SparkSession, lake: Lake, definition: Ingest) -> None:
        super().__init__(spark, lake, definition)
        self._files = cast(Files, definition.source)

    @cached_property
    def usual_judge(self) -> Judge:
        """As `Source.usual_judge`."""
        return Judge(self.spark, self.definition, headers=Headers.of(self.definition), figures=self._figures())

    @cached_property
    def _fetching(self) -> Fetching:
        return Fetching(self.usual_judge)

    def stream(self) -> DataFrame:
        """Names of new files.

        Raises:
            MissingInputError: if the folder is not there, or leads back to itself.
        """
        path, name = self._root, self.definition.name
        if "://" not in path and not any(sign in path for sign in "*?[{") and not Path(path).exists():
            raise MissingInputError(
                f"pipeline `{name}` reads {path}, which does not exist. Nothing was started. Make it or fill "
                f"it (`tidemark simulate` fills landing/ of the lake), or name another place with --from."
            )
        if (loop := link_that_comes_back(path)) is not None:
            raise MissingInputError(
                f"pipeline `{name}` reads {path}, where the symbolic link {loop[0]} leads back to {loop[1]}: "
                "each file would come again and again. Nothing was started. Remove the link."
            )
        return file_names(self.spark, path, batch_limit(self.lake, self._files))

    def read(self, planned: PlannedBatch) -> Batch:
        """The files, in one pass; those of CSV in another one where the first has shown that they need it.

        Large ones of JSON are written while they are judged (docs/decisions/0032).

        Args:
            planned: the batch.
        """
        found = planned_files(planned.bounds, self.lake, planned.epoch.folder)
        linked = links_to_others(found, self._root)
        paths = [path for path in found if path not in linked]
        judge = self.judge(planned.decision)
        left_out = {LINKED: len(linked)} if linked else {}
        reader = FileReader(self.spark, self.definition, paths, planned.at_ms, self._root)
        compressed = any(path.endswith(COMPRESSED) for path in paths)

        def count(raw: DataFrame) -> KeptRows | WritingRead | FetchedRead:
            size = size_of_source(raw)
            if self.definition.reads_json and size >= WRITTEN_BYTES:
                return WritingRead(judge, planned, raw)
            few = size < ONE_TASK_BYTES
            # Lines of CSV are judged again, by headers; the size of compressed files says little of their rows.
            if few and self.definition.reads_json and judge is self.usual_judge and not compressed:
                return self._fetching.read(raw)
            return judge.kept(raw.coalesce(1) if few else raw)

        read, unreadable = reader.read(planned.known_unreadable(), count)
        if isinstance(read, WritingRead):
            return WrittenBatch(read, unreadable, left_out)
        if isinstance(read, FetchedRead):
            return FetchedBatch(read, unreadable, left_out)
        rows, counted = read.rows, read.counted
        if self._files.is_csv:
            judge, rows, counted = by_own_headers(judge, rows, counted)
            rows, counted = without_parts_of_values(judge, rows, counted)
        return FilesBatch(self, judge, BatchRows(rows, counted, unreadable, left_out), paths)

    def _figures(self) -> list[Column]:
        """How many bytes of a file its rows make, with their line ends, and how many it has; of CSV, open quotes."""
        of_rows = F.sum(F.octet_length(RAW) + 1) if not self._files.is_parquet else F.lit(0)
        figures = [of_rows.alias("bytes"), F.max("__size").alias("size")]
        if self._files.is_csv:
            # A line that opens a quote has a reason already, so that most lines need not be asked.
            opens = F.col(REASON).isNotNull() & opens_quote(F.col(RAW), self._files.delimiter)
            figures.append(F.count(F.when(opens, 1)).alias("opens"))
        return figures

    @property
    def _root(self) -> str:
        return self.lake.source_path(self._files.path)


class FilesBatch(Batch):
    """The files of one batch, as they were read.

    Args:
        source: of which they are.
        judge: who has judged them.
        read: what has been read of them.
        paths: of them, those that cannot be read included.
    """

    def __init__(self, source: Source, judge: Judge, read: BatchRows, paths: Sequence[str]) -> None:
        super().__init__(judge, read)
        self._source = source
        self._headers = judge.headers
        self._paths = paths

    @property
    def is_event(self) -> Column:
        """Whether a row is no header, and its file has the one that is expected."""
        return ~self._headers.is_header & ~self._has_other_header if self._headers is not None else F.lit(True)

    @property
    def verdict(self) -> Verdict:
        """With the rows of files that have another header, and the header where it comes again."""
        bad, reason, detail = super().verdict
        if self._headers is None:
            return Verdict(bad, reason, detail)
        wrong, is_header = self._has_other_header, self._headers.is_header
        again = is_header & ~F.col(ORDER).isin(list(self.census.headers.values())) & ~wrong
        detail = F.when(again, F.lit(REPEATED_HEADER)).otherwise(detail)
        return Verdict(
            bad=(bad & ~is_header) | wrong | again,
            reason=F.when(wrong | again, F.lit(HEADER)).otherwise(reason),
            detail=F.when(wrong, self._told(self._headers)).otherwise(detail) if self.census.bad_headers else detail,
        )

    @property
    def _has_other_header(self) -> Column:
        bad = self.census.bad_headers
        return F.col(NAME).isin(list(bad)) if bad else F.lit(False)

    def _told(self, headers: Headers) -> Column:
        """What is told of the header of a row's file, which is another one."""
        lines: Mapping[str, str] = {
            name: header_told(line, headers.delimiter, quoted=not self.definition.personal)
            for name, line in self.census.bad_headers.items()
        }
        found = F.create_map(*(F.lit(text) for pair in lines.items() for text in pair))
        return F.concat(F.lit(f"expected {headers.told}, got "), found[F.col(NAME)])

    def shape(self) -> Shape:
        """With the columns of files that name them: those of a file of Parquet, and of headers."""
        shape, source = super().shape(), self.definition.source
        if self._headers is not None:
            return shape.with_headers(self.census.good_by_file, self.definition, self._headers.wider)
        if not source.is_parquet:
            return shape
        unreadable = {path for path, _ in self.unreadable}
        paths = [path for path in self._paths if path not in unreadable]
        found = shape_of_parquet(self._source.lake, cast(Files, source), paths)
        return shape.with_file(*found, self.definition) if found is not None else shape


def file_names(spark: SparkSession, path: str, limit: Mapping[str, str]) -> DataFrame:
    """A stream of `path`, one row a new file, in order of modification time; their content is not read.

    Args:
        spark: the session.
        path: a folder.
        limit: Spark's option for how much a batch takes.
    """
    # By default Spark ignores, in silence, files that are a week older than the newest one it has seen.
    options = {"recursiveFileLookup": "true", "maxFileAge": "36500d", **limit}
    return spark.readStream.format("binaryFile").schema(_BINARY_FILE).options(**options).load(path).select("path")


def batch_limit(lake: Lake, source: Files) -> dict[str, str]:
    """Spark's option for how much of a folder a batch takes: Spark knows one limit, by bytes or by files.

    Where the definition names none, by bytes; of small files a batch would then take any number, so that of these it
    takes `BATCH_FILES`.

    Args:
        lake: to which the folder is relative.
        source: what is read.
    """
    if source.max_bytes_per_trigger is not None:
        return {"maxBytesPerTrigger": str(source.max_bytes_per_trigger)}
    if source.max_files_per_trigger is not None:
        return {"maxFilesPerTrigger": str(source.max_files_per_trigger)}
    if _size_of_files(lake, source) * BATCH_FILES > BATCH_BYTES:
        return {"maxBytesPerTrigger": str(BATCH_BYTES)}
    return {"maxFilesPerTrigger": str(BATCH_FILES)}


def _size_of_files(lake: Lake, source: Files) -> int:
    """Bytes of a file of a folder, on average of some; 0 where it has none yet, or where they are not known."""
    try:
        store = source_store(lake, source)
        found = next(iter(store.list(chunk_size=BATCH_FILES)), []) if store is not None else []
    except (BaseError, OSError):
        return 0  # told where it is read
    sizes = [each["size"] for each in found if not is_hidden(each["path"])]
    return sum(sizes) // len(sizes) if sizes else 0


def planned_files(bounds: BatchBounds, lake: Lake, checkpoint: str) -> tuple[str, ...]:
    """The files of the batch that runs, from the source's log in the checkpoint.

    Not from the stream itself: Spark leaves out, in silence, a file that was removed after it was planned.

    Args:
        bounds: of the batch, of a query that reads one folder.
        lake: where its checkpoint lies.
        checkpoint: relative to the lake.
    """
    before, upto = bounds.of_one_source
    found = set()
    for number in range(file_number(before) + 1, file_number(upto) + 1):
        entries = file_entries(lake, checkpoint, number)
        # A compacted one repeats the entries before.
        found |= {plain(entry["path"]) for entry in entries if entry["batchId"] == number}
    return tuple(sorted(found))


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
        of_folder = is_folder(root)
        path = os.path.relpath(local(paths[-1]), local(root)) if of_folder else paths[-1].removeprefix(f"{root}/")
        return parquet_shape(store, path)
    except (BaseError, OSError, ValueError, pa.ArrowException):
        return None  # that a file cannot be read is reported where it is
