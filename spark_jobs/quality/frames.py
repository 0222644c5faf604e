"""The rows of a check: by DuckDB, which holds them, or by Spark, where they are too many or their rules need it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.query import confine, fetch_rows
from spark_jobs.plan.columns import FINAL_AFTER, HEARTBEAT
from spark_jobs.quality.added import NewRows, reader
from spark_jobs.quality.suites import RowCheck, broken_column
from spark_jobs.spec.expressions import known_to_duckdb
from spark_jobs.spec.names import in_duckdb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLES = 5
IN_MEMORY_BYTES = 256 * 1024 * 1024
"""What takes more memory when it is read goes into a table of DuckDB, which moves to the disk."""
ROWS = "added"
"""The table of DuckDB that has the rows of a check."""


class Rows(Protocol):
    """The rows of a check."""

    def broken(self, rules: Sequence[RowCheck]) -> list[int]:
        """How many rows break each rule, in one pass."""

    def samples(self, rule: RowCheck) -> list[Mapping[str, Any]]:
        """Some rows that break a rule: the columns that it reads."""


@contextmanager
def held(
    lake: Lake, table: str, opened: DeltaTable, added: NewRows, columns: Collection[str]
) -> Iterator["DuckDbRows"]:
    """The rows for DuckDB: few in memory, as they were read; more in a table, on the disk where memory does not do."""
    with TemporaryDirectory(prefix="tidemark-check-") as scratch, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        confine(connection, scratch)
        schema = pa.schema(opened.schema().to_arrow())
        names = [name for name in schema.names if name in columns] or schema.names[:1]
        # Spark compares a FLOAT with a decimal as doubles, DuckDB as floats.
        taken = ", ".join(
            f"CAST({in_duckdb(name)} AS DOUBLE) AS {in_duckdb(name)}"
            if pa.types.is_float32(schema.field(name).type)
            else in_duckdb(name)
            for name in names
        )
        shape = schema.empty_table().select(names).schema
        batches = chain.from_iterable(reader(lake, table, opened, part, names) for part in added.parts)
        few, is_all = _first(batches, IN_MEMORY_BYTES)
        if is_all:
            connection.register("few", pa.Table.from_batches(few, shape))
            connection.execute(f"CREATE TEMP VIEW {ROWS} AS SELECT {taken} FROM few")
        else:
            connection.register("every", pa.RecordBatchReader.from_batches(shape, chain(few, batches)))
            connection.execute(f"CREATE TEMP TABLE {ROWS} AS SELECT {taken} FROM every")
        yield DuckDbRows(connection)


def _first(batches: Iterator[pa.RecordBatch], most_bytes: int) -> tuple[list[pa.RecordBatch], bool]:
    """Batches until they take more memory than that, and whether these are all."""
    found, size = [], 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            return found, False
    return found, True


class DuckDbRows:
    """Rows in DuckDB."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.connection.execute(f"SELECT count(*) FROM {ROWS}").fetchall()[0][0])

    def refuses(self, rules: Sequence[RowCheck]) -> str | None:
        """What DuckDB says against the conditions of the rules; None: it can compute them."""
        try:
            for rule in rules:
                self.connection.execute(f"SELECT {_holds(rule)} FROM {ROWS} LIMIT 0").fetchall()
        except duckdb.Error as error:
            return str(error)
        return None

    def broken(self, rules: Sequence[RowCheck]) -> list[int]:
        """The rows that break a rule, by DuckDB's form of its condition."""
        counts = ", ".join(f"count(*) FILTER (NOT {_holds(rule)})" for rule in rules)
        return [int(count) for count in self.connection.execute(f"SELECT {counts} FROM {ROWS}").fetchall()[0]]

    def samples(self, rule: RowCheck) -> list[Mapping[str, Any]]:
        """The first rows that break a rule."""
        columns = ", ".join(in_duckdb(name) for name in rule.columns) or "1 AS row"
        sql = f"SELECT {columns} FROM {ROWS} WHERE NOT {_holds(rule)} LIMIT {SAMPLES}"
        return [*fetch_rows(self.connection, sql)]


def _holds(rule: RowCheck) -> str:
    return f"coalesce(({known_to_duckdb(rule.rule.condition)}), true)"


class SparkRows:
    """Rows in Spark.

    Args:
        spark: session.
        lake: where.
        table: such as `gold.top_products`.
        added: which rows.
    """

    def __init__(self, spark: "SparkSession", lake: Lake, table: str, added: NewRows) -> None:
        from pyspark.sql import DataFrame

        from spark_jobs.spark.session import lenient_session

        # What a rule cannot compute is null, as in the stream.
        spark = lenient_session(spark)
        schema = spark.read.format("delta").load(lake.table_path(table)).schema
        frames = []
        for part in added.parts:
            paths = [f"{lake.table_path(table)}/{path}" for path in part.files]
            rows = spark.read.schema(schema).parquet(*paths)
            for condition in _conditions(part.final_after, part.final_by, schema.names):
                rows = rows.where(condition)
            frames.append(rows)
        self._rows = reduce(DataFrame.unionByName, frames)

    def broken(self, rules: Sequence[RowCheck]) -> list[int]:
        """The rows that break a rule, by Spark's form of its condition."""
        from pyspark.sql import functions as F

        counts = (F.count_if(~F.coalesce(F.expr(rule.rule.condition), F.lit(True))) for rule in rules)
        row = self._rows.agg(*(each.alias(broken_column(index)) for index, each in enumerate(counts))).head()
        return [int(count) for count in row] if row is not None else [0] * len(rules)

    def samples(self, rule: RowCheck) -> list[Mapping[str, Any]]:
        """Some rows that break a rule."""
        from pyspark.sql import functions as F

        from spark_jobs.spark.columns import column

        broken = self._rows.where(~F.coalesce(F.expr(rule.rule.condition), F.lit(True)))
        found = broken.select(*(column(name).cast("string").alias(name) for name in rule.columns)).limit(SAMPLES)
        return [row.asDict() for row in found.collect()]


def _conditions(after: datetime | None, by: datetime | None, names: Collection[str]) -> Iterator[str]:
    if HEARTBEAT in names:
        yield f"NOT {HEARTBEAT}"
    if after is not None:
        yield f"{FINAL_AFTER} > timestamp_micros({_us(after)}L)"
    if by is not None:
        yield f"{FINAL_AFTER} <= timestamp_micros({_us(by)}L)"


def _us(instant: datetime) -> int:
    return int((instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
