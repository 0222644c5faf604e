"""The rows of a result table as events: those that come, and those that change or go.

Spark's stream over the table plans which of its versions a batch reads; the rows are found in the files that these
versions name. All of a version is read by one batch, whichever of its files the batch ends with.
"""

import json
from collections.abc import Iterable, Sequence
from typing import cast

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.engine.sources.base import Batch, BatchRows, PlannedBatch, Source
from spark_jobs.engine.sources.places import BLOCK, PARTITION, POSITION
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import (
    Epoch,
    Starts,
    current_epoch,
    fix_starts,
    refuse_never,
    running_definitions,
    starts_of,
)
from spark_jobs.lake.checkpoints.spark_log import next_version
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import latest_version
from spark_jobs.lake.commit_records.revisions import writer_of
from spark_jobs.lake.commit_records.row_changes import FileRows, UnreadableChangesError, all_rows, file_rows
from spark_jobs.lake.errors import MissingTableError, TidemarkError
from spark_jobs.lake.tables.files import MissingFilesError, gone
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.plan import logical as plan
from spark_jobs.spark.batch_values import batch_value
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.growing import STREAMED
from spark_jobs.spark.schemas import schema_ddl, schema_of
from spark_jobs.spec import Ingest, Results
from spark_jobs.spec.sources import BATCH_BYTES, CHANGE_COLUMNS, CHANGE_KIND, CHANGE_VERSION, CHANGE_WEIGHT
from spark_jobs.transforms.csv_columns import NAME
from spark_jobs.transforms.rows import MISFIT, RAW

INSERT, UPDATE, BEFORE, DELETE = "insert", "update", "before", "delete"
"""What becomes of a row: it comes; it is another one; what it was before; it goes."""

_FILE, _VERSION, _WEIGHT, _NET, _GOES, _COMES = "__file", "__version", "__weight", "__net", "__goes", "__comes"
_FILES = pa.schema([(_FILE, pa.string()), (_VERSION, pa.int64()), (_WEIGHT, pa.int32())])


class OtherResultError(TidemarkError):
    """A result table is not what its ingest declares."""


class RevisedError(TidemarkError):
    """Rows of a result have changed that its ingest declares to stay as they are."""


class ResultsSource(Source):
    """A result table.

    Args:
        spark: the session of its query.
        lake: where.
        definition: of the ingest.
    """

    def __init__(self, spark: SparkSession, lake: Lake, definition: Ingest) -> None:
        super().__init__(spark, lake, definition)
        self._results = cast(Results, definition.source)
        self._start = 0

    def stream(self) -> DataFrame:
        """New versions of the table; of a new checkpoint, from the newest one on, as of which it reads all rows.

        Raises:
            MissingTableError: if the table does not exist.
            OtherResultError: if it has other columns than the ingest declares.
        """
        table = self._results.table
        if not exists(self.lake, table):
            name = self.definition.name
            raise MissingTableError(
                f"pipeline `{name}` reads {table}, which does not exist in {self.lake.uri}. Nothing was started. Run "
                f"the pipeline that writes it first, or run `{command('run', name, '--with-sources')}`."
            )
        self._refuse_misfit(self._schema())
        epoch = current_epoch(self.lake, self.definition.name)
        noted = starts_of(self.lake, epoch) if epoch is not None else None
        started = noted.versions.get(table) if noted is not None else None
        self._start = latest_version(self.lake, table) if started is None else started
        source = self._results
        options = {
            # The stream carries no row: it goes on to each version, also to those that take rows away.
            "ignoreChanges": "true",
            "startingVersion": str(self._start),
            "maxBytesPerTrigger": str(source.max_bytes_per_trigger or BATCH_BYTES),
        }
        if source.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
        stream = self.spark.readStream.format(STREAMED).options(**options).load(self.lake.table_path(table))
        return stream.select(F.lit(True).alias("__planned"))

    def begin(self, epoch: Epoch) -> bool:
        """Notes with which version of the table a new checkpoint begins.

        Args:
            epoch: of the checkpoint.

        Returns:
            Whether another driver was first, with another version.
        """
        table, planned = self._results.table, self._start
        noted = starts_of(self.lake, epoch)
        if noted is None:
            noted = fix_starts(self.lake, epoch, Starts(versions={table: planned}))
        refuse_never(epoch, noted)
        self._start = noted.versions[table]
        return self._start != planned

    def read(self, planned: PlannedBatch) -> Batch:
        """The rows that the versions of the batch have brought, changed and taken away, in the order of the versions.

        Args:
            planned: the batch.

        Raises:
            RevisedError: if rows have changed, and the ingest declares that none does.
            UnreadableChangesError: if the table does not tell what it has changed.
        """
        before, upto = planned.bounds.of_one_source
        first = next_version(before) if before else self._start
        try:
            files = self._files(first, next_version(upto) - 1)
        except UnreadableChangesError as error:
            raise UnreadableChangesError(f"pipeline `{self.definition.name}`: {error}. {self._way_out()}") from error
        if self._results.revised == "refuse":
            self._refuse_revised(files)
        judge = self.judge(planned.decision)
        try:
            kept = judge.kept(self._rows(files, planned.at_ms))
        except (PySparkException, Py4JJavaError) as error:
            paths = list(dict.fromkeys(file.path for file in files))
            if missing := gone(self.lake, self._results.table, paths):
                raise MissingFilesError(
                    f"pipeline `{self.definition.name}`: {len(missing):,} data files of {self._results.table} are gone "
                    f"that its versions from {first:,} on name, such as {missing[0]}. {self._way_out()}"
                ) from error
            raise
        return Batch(judge, BatchRows(kept.rows, kept.counted))

    def _files(self, first: int, last: int) -> list[FileRows]:
        table = self._results.table
        if first > self._start or last < first:
            return file_rows(self.lake, table, first, last)
        return [*all_rows(self.lake, table, first), *file_rows(self.lake, table, first + 1, last)]

    def _way_out(self) -> str:
        again = command("reset", self.definition.name, "--empty-tables")
        return f"Nothing of this batch was written. Begin again with the rows that are there now: {again}"

    def _refuse_revised(self, files: Iterable[FileRows]) -> None:
        version = next((file.version for file in files if file.revises), None)
        if version is None:
            return
        table = self._results.table
        raise RevisedError(
            f"pipeline `{self.definition.name}`: rows of {table} that it may have read were changed or taken away by "
            f"{writer_of(self.lake, table, version)}, and it declares that none is (revised='refuse'). "
            f"{self._way_out()}. Or have it read what has changed: Results({table!r}, revised='read')"
        )

    def _schema(self) -> StructType:
        schema = open_table(self.lake, self._results.table).schema()
        return StructType.fromJson(json.loads(schema.to_json()))

    def _refuse_misfit(self, schema: StructType) -> None:
        table, given = self._results.table, {field.name: field.dataType.simpleString() for field in schema}
        if shadowed := sorted(CHANGE_COLUMNS.keys() & given.keys()):
            raise OtherResultError(
                f"pipeline `{self.definition.name}`: {table} has a column {shadowed[0]!r}, by which an ingest of "
                "results says what has become of a row. Nothing was started. Give the measure another name."
            )
        declared = schema_of(schema_ddl(self.definition.columns))
        own = schema_of(schema_ddl(CHANGE_COLUMNS))
        known = given | {field.name: field.dataType.simpleString() for field in own}
        wrong = [
            f"{field.name}: declared {field.dataType.simpleString()}, the table has {known.get(field.name, 'none')}"
            for field in declared
            if known.get(field.name) != field.dataType.simpleString()
        ]
        if wrong:
            columns = {name: kind.upper() for name, kind in given.items() if not name.startswith("_")}
            raise OtherResultError(
                f"pipeline `{self.definition.name}`: {table} has other columns than it declares: {'; '.join(wrong)}. "
                f"Nothing was started. The table has {columns}."
            )

    def _keys(self, names: Sequence[str]) -> list[str]:
        """The columns that identify a row of the table, by the pipeline that writes it; else all."""
        table = self._results.table
        for _, definition in running_definitions(self.lake).values():
            for ref in plan.build(definition).tables:
                if ref.name == table and ref.keys and set(ref.keys) <= set(names):
                    return list(ref.keys)
        return list(names)

    def _rows(self, files: Sequence[FileRows], at_ms: int) -> DataFrame:
        """The rows of a batch as an ingest has them: its columns, the text, the place, when they arrived."""
        schema = self._schema()
        self._refuse_misfit(schema)
        keys = self._keys(schema.names)
        found = self._of_files(schema, [file for file in files if not file.revises]).select(
            *columns_of(schema.names), _VERSION, F.lit(INSERT).alias(CHANGE_KIND), F.lit(1).alias(CHANGE_WEIGHT)
        )
        if revising := [file for file in files if file.revises]:
            found = found.unionByName(self._revised(self._of_files(schema, revising), schema.names, keys))
        rows = found.withColumn(CHANGE_VERSION, F.col(_VERSION))
        declared = columns_of(self.definition.columns)
        # By what is the same whenever the batch runs: a row has one place, and its id is made of that.
        order = [
            column(self.definition.event_time),
            *(each.asc_nulls_first() for each in _sortable(rows, keys)),
            F.col(CHANGE_KIND),
            F.to_json(F.struct(*declared)),
        ]
        place = F.row_number().over(Window.partitionBy(_VERSION).orderBy(*order)) - 1
        return (
            rows.repartition(1)
            .withColumn(POSITION, place.cast("bigint"))
            .select(
                *declared,
                F.to_json(F.struct(*declared)).alias(RAW),
                F.lit(None).cast("string").alias(MISFIT),
                F.lit(self._results.table).alias(NAME),
                F.col(_VERSION).cast("int").alias(PARTITION),
                F.col(POSITION),
                F.lit(0).cast("bigint").alias(BLOCK),
                F.timestamp_millis(batch_value(self.spark, at_ms)).alias("_ingest_time"),
            )
        )

    def _of_files(self, schema: StructType, files: Sequence[FileRows]) -> DataFrame:
        """The rows of files, once for each version that has them come or go."""
        root = self.lake.table_path(self._results.table)
        paths = list(dict.fromkeys(file.path for file in files))
        own = (F.lit(None).cast(kind).alias(name) for name, kind in ((_VERSION, "bigint"), (_WEIGHT, "int")))
        if not paths:
            return empty_frame(self.spark, schema).select("*", *own)
        listed = pa.Table.from_pylist(
            [{_FILE: file.path.rsplit("/", 1)[-1], _VERSION: file.version, _WEIGHT: file.weight} for file in files],
            schema=_FILES,
        )
        # As a table of its own: a folder of the lake that is called `a=b` is no column.
        read = self.spark.read.schema(schema).option("recursiveFileLookup", "true")
        rows = read.parquet(*(path if "://" in path else f"{root}/{path}" for path in paths))
        rows = rows.select("*", F.col("_metadata.file_name").alias(_FILE))
        return rows.join(F.broadcast(self.spark.createDataFrame(listed)), _FILE).drop(_FILE)

    def _revised(self, rows: DataFrame, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
        """What the files that came and those that went do not have in common: rows that have changed, or moved."""
        net = rows.groupBy(_VERSION, *columns_of(names)).agg(F.sum(_WEIGHT).alias(_NET)).where(F.col(_NET) != 0)
        of_key = Window.partitionBy(_VERSION, *columns_of(keys))
        goes, comes = F.min(_NET).over(of_key) < 0, F.max(_NET).over(of_key) > 0
        retracts = self._results.revised == "retract"
        kind = (
            F.when((F.col(_NET) > 0) & F.col(_GOES), UPDATE)
            .when(F.col(_NET) > 0, INSERT)
            .when(F.col(_COMES), BEFORE)
            .otherwise(DELETE)
        )
        # The weights of all that has been read of a table add up to the rows that it has.
        weight = F.when(F.col(_NET) < 0, -1).when((F.col(CHANGE_KIND) == UPDATE) & F.lit(not retracts), 0).otherwise(1)
        found = net.withColumns({_GOES: goes, _COMES: comes}).withColumn(CHANGE_KIND, kind)
        if not retracts:
            found = found.where(F.col(CHANGE_KIND) != BEFORE)
        # Rows that are alike in all columns are several all the same.
        times = F.explode(F.array_repeat(F.lit(0), F.abs(_NET).cast("int")))
        return (
            found.select(*columns_of(names), _VERSION, CHANGE_KIND, weight.alias(CHANGE_WEIGHT), _NET)
            .select(*columns_of(names), _VERSION, CHANGE_KIND, CHANGE_WEIGHT, times.alias(_NET))
            .drop(_NET)
        )


def _sortable(rows: DataFrame, names: Iterable[str]) -> Iterable[Column]:
    """Those of some columns that have an order."""
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    return (column(name) for name in names if "map<" not in kinds[name])
