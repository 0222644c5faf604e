"""SQL over all tables of the lake with DuckDB, through `deltalake`: no JVM."""

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.lake.errors import MissingTableError, TidemarkError, first_line
from spark_jobs.lake.files import reading
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables import LAYERS, UNREADABLE, open_table, table_folders
from spark_jobs.lake.watermarks import TABLE as WATERMARKS
from spark_jobs.plan.columns import FINAL_AFTER
from spark_jobs.plan.tables import result_of


class QueryError(TidemarkError):
    """A SQL query that DuckDB cannot run."""


def connect(lake: Lake) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view for each table: `gold.top_products`, `gold.top_products__late`, ….

    Views of tables whose rows are revised have `is_final`: whether the row cannot change any more.
    """
    return _connected(_Opened(lake))


class _Opened:
    """The tables of a lake; one that cannot be read is no trouble of a query that does not ask for it."""

    def __init__(self, lake: Lake) -> None:
        self.tables: dict[str, tuple[DeltaTable, object]] = {}
        self.left_out: dict[str, str] = {}
        for name in table_folders(lake):
            try:
                table = open_table(lake, name)
                self.tables[name] = table, table.to_pyarrow_dataset()
            except MissingTableError:
                continue
            except UNREADABLE as error:
                self.left_out[name] = first_line(error)


def _connected(opened: _Opened) -> duckdb.DuckDBPyConnection:
    # Nor is a table looked for among the variables of this process.
    connection = duckdb.connect(config={"python_enable_replacements": False})
    connection.execute("SET TimeZone = 'UTC'")
    for layer in LAYERS:
        connection.execute(f"CREATE SCHEMA {layer}")
    for name, (_, dataset) in opened.tables.items():
        connection.register(_registered(name), dataset)
    for name, (table, _) in opened.tables.items():
        columns = {field.name for field in table.schema().fields}
        final = (
            f", {_finality(name, watermarked=WATERMARKS in opened.tables)} AS is_final"
            if FINAL_AFTER in columns
            else ""
        )
        layer, short = name.split(".", 1)
        connection.execute(f'CREATE VIEW {layer}."{short}" AS SELECT *{final} FROM "{_registered(name)}"')
    return connection


def _confine(connection: duckdb.DuckDBPyConnection, scratch: str) -> None:
    """Lets a connection reach nothing but what is registered with it, which Arrow reads; for good.

    Args:
        connection: with all of its views.
        scratch: folder for what does not fit in memory.
    """
    connection.execute("SET temp_directory = '{}'".format(scratch.replace("'", "''")))
    connection.execute("SET enable_external_access = false")
    # Else a query could set where DuckDB logs and profiles go.
    connection.execute("SET lock_configuration = true")


def _reaches_out(error: duckdb.Error) -> bool:
    return isinstance(error, duckdb.PermissionException) or "configuration has been locked" in str(error)


def _registered(table: str) -> str:
    return "__" + table.replace(".", "__")


def fetch_rows(
    connection: duckdb.DuckDBPyConnection, sql: str, values: Mapping[str, object] | None = None
) -> list[dict[str, Any]]:
    """The rows of a query, as column -> value."""
    found: pa.Table = connection.sql(sql, params=dict(values) if values else None).to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _finality(table: str, *, watermarked: bool) -> str:
    if not watermarked:
        return "false"
    result, _ = result_of(table)
    watermark = f"""SELECT max(watermark) FROM "{_registered(WATERMARKS)}" WHERE "table" = '{result}'"""
    return f"coalesce({FINAL_AFTER} <= ({watermark}), false)"


def run(lake: Lake, sql: str, *, allow_files: bool = False) -> tuple[list[str], list[tuple[object, ...]]]:
    """Column names and rows of a query.

    Args:
        lake: whose tables it may read.
        sql: the query.
        allow_files: it may also read and write files, attach databases, load extensions and change settings.

    Raises:
        QueryError: if DuckDB refuses it.
        MissingFilesError: if a data file of a table that it reads is gone.
    """
    opened = _Opened(lake)
    try:
        with (
            TemporaryDirectory(prefix="tidemark-sql-") as scratch,
            reading(lake, lambda said: [name for name in opened.tables if f"'{_registered(name)}'" in said]),
        ):
            connection = _connected(opened)
            if not allow_files:
                _confine(connection, scratch)
            result = connection.execute(sql)
            if result is None:
                raise QueryError(f"query {sql!r}: expected a SQL statement, got none.")
            return [column[0] for column in result.description or ()], result.fetchall()
    except duckdb.Error as error:
        if not allow_files and _reaches_out(error):
            raise QueryError(
                f"query {sql!r}: expected to reach nothing but the tables of {lake.uri}; it reads or writes a file, "
                f"loads an extension or changes a setting ({first_line(error)}). Nothing was read or written. If it is "
                "meant to: tidemark sql --allow-files"
            ) from error
        known = ", ".join(opened.tables) or "none yet"
        unreadable = "".join(f" Left out: {name} ({why})." for name, why in opened.left_out.items())
        raise QueryError(f"query {sql!r}: {error}. Tables of {lake.uri}: {known}.{unreadable}") from error
