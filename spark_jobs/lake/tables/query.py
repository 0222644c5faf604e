"""SQL over all tables of the lake with DuckDB, through `deltalake`: no JVM."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError, TidemarkError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.files import reading
from spark_jobs.lake.tables.opening import LAYERS, UNREADABLE, open_table, table_folders
from spark_jobs.lake.tables.watermarks import TABLE as WATERMARKS
from spark_jobs.plan.columns import FINAL_AFTER
from spark_jobs.plan.tables import result_of
from spark_jobs.spec.names import in_duckdb, text_in_duckdb


class QueryError(TidemarkError):
    """A SQL query that DuckDB cannot run."""


@contextmanager
def connect(lake: Lake) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB connection with one view for each table: `gold.top_products`, `gold.top_products__late`, ….

    Views of tables whose rows are revised have `is_final`: whether the row cannot change any more. The connection
    reaches nothing else.
    """
    with _connected(_OpenTables(lake), confined=True) as connection:
        yield connection


def view_of(table: str) -> str:
    """The view of a table such as `gold.top_products`; SQL."""
    layer, _, short = table.partition(".")
    return f"{in_duckdb(layer)}.{in_duckdb(short)}"


class _OpenTables:
    """The tables of a lake; one that cannot be read is no trouble of a query that does not ask for it."""

    def __init__(self, lake: Lake) -> None:
        self.tables: dict[str, tuple[DeltaTable, object]] = {}
        self.left_out: dict[str, str] = {}
        known: dict[str, str] = {}
        for name in table_folders(lake):
            if (other := known.setdefault(name.casefold(), name)) != name:
                self.left_out[name] = f"DuckDB does not tell it apart from {other}"
                continue
            try:
                table = open_table(lake, name)
                self.tables[name] = table, table.to_pyarrow_dataset()
            except MissingTableError:
                continue
            except UNREADABLE as error:
                self.left_out[name] = first_line(error)


@contextmanager
def _connected(opened: _OpenTables, *, confined: bool, file: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the views of tables.

    Args:
        opened: the tables.
        confined: it reaches nothing but what is registered with it, which Arrow reads; from before any name from the
            store stands in a statement, and for good.
        file: the one that it may write all the same.
    """
    with (
        TemporaryDirectory(prefix="tidemark-sql-") as scratch,
        # Nor is a table looked for among the variables of this process.
        duckdb.connect(config={"python_enable_replacements": False}) as connection,
    ):
        connection.execute("SET TimeZone = 'UTC'")
        if confined:
            confine(connection, scratch, file)
        _make_views(connection, opened)
        yield connection


def confine(connection: duckdb.DuckDBPyConnection, scratch: str, file: Path | None = None) -> None:
    """Lets a connection reach nothing but what is registered with it, which Arrow reads; for good.

    Args:
        connection: before any name from the store stands in a statement.
        scratch: folder for what does not fit in memory.
        file: the one that it may write all the same.
    """
    if file is not None:
        connection.execute(f"SET allowed_paths = [{text_in_duckdb(str(file))}]")
    connection.execute(f"SET temp_directory = {text_in_duckdb(scratch)}")
    connection.execute("SET enable_external_access = false")
    # Else a query could set where DuckDB logs and profiles go.
    connection.execute("SET lock_configuration = true")


def _make_views(connection: duckdb.DuckDBPyConnection, opened: _OpenTables) -> None:
    for layer in LAYERS:
        connection.execute(f"CREATE SCHEMA {in_duckdb(layer)}")
    for name, (_, dataset) in opened.tables.items():
        connection.register(_registered(name), dataset)
    for name, (table, _) in opened.tables.items():
        columns = {field.name for field in table.schema().fields}
        final = (
            f", {_finality(name, watermarked=WATERMARKS in opened.tables)} AS is_final"
            if FINAL_AFTER in columns
            else ""
        )
        connection.execute(f"CREATE VIEW {view_of(name)} AS SELECT *{final} FROM {in_duckdb(_registered(name))}")


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
    published, of = in_duckdb(_registered(WATERMARKS)), text_in_duckdb(result)
    watermark = f"""SELECT max(watermark) FROM {published} WHERE "table" = {of}"""
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
    with _asked(lake, sql, allow_files=allow_files) as connection:
        result = connection.execute(sql)
        if result is None:
            raise _no_statement(sql)
        return [column[0] for column in result.description or ()], result.fetchall()


FileFormat = Literal["csv", "json", "parquet"]


def write(lake: Lake, sql: str, file: Path, file_format: FileFormat, *, allow_files: bool = False) -> None:
    """Writes the rows of a query to a file, as DuckDB does: each value with its own type, a null as one.

    Args:
        lake: whose tables it may read.
        sql: the query.
        file: is not there yet.
        file_format: `json`: an object on each line.
        allow_files: as `run`.

    Raises:
        QueryError: if DuckDB refuses it, or it has no rows to give.
        MissingFilesError: if a data file of a table that it reads is gone.
    """
    options = "FORMAT csv, HEADER" if file_format == "csv" else f"FORMAT {file_format}"
    with _asked(lake, sql, allow_files=allow_files, file=file) as connection:
        statements = duckdb.extract_statements(sql)
        if not statements:
            raise _no_statement(sql)
        for statement in statements[:-1]:
            connection.execute(statement)
        rows = connection.sql(_without_end(statements[-1].query))
        if rows is None:
            raise QueryError(f"query {sql!r}: expected rows to write, got none. It was executed.")
        # DuckDB computes a query of a relation when it is asked for rows of it.
        copied = rows.query("__rows", f"COPY (SELECT * FROM __rows) TO {text_in_duckdb(str(file))} ({options})")
        if copied is not None:
            copied.fetchall()


def _without_end(statement: str) -> str:
    """A statement without its semicolon, and what is said after it."""
    for offset, kind in reversed(duckdb.tokenize(statement)):
        if kind != duckdb.token_type.comment and statement[offset:].strip() != ";":
            break
        statement = statement[:offset]
    return statement


def _no_statement(sql: str) -> QueryError:
    return QueryError(f"query {sql!r}: expected a SQL statement, got none.")


@contextmanager
def _asked(lake: Lake, sql: str, *, allow_files: bool, file: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for a query of a person; what DuckDB refuses is told in words."""
    opened = _OpenTables(lake)
    try:
        with (
            reading(lake, lambda said: [name for name in opened.tables if f"'{_registered(name)}'" in said]),
            _connected(opened, confined=not allow_files, file=file) as connection,
        ):
            yield connection
    except duckdb.Error as error:
        if not allow_files and _reaches_out(error):
            raise QueryError(
                f"query {sql!r}: expected to reach nothing but the tables of {lake.uri}; it reads or writes a file, "
                f"loads an extension or changes a setting ({first_line(error)}). Nothing was read or written. If it is "
                f"meant to: {command('sql', '--allow-files', sql)}"
            ) from error
        known = ", ".join(opened.tables) or "none yet"
        unreadable = "".join(f" Left out: {name} ({why})." for name, why in opened.left_out.items())
        raise QueryError(f"query {sql!r}: {error}. Tables of {lake.uri}: {known}.{unreadable}") from error
