"""SQL over all tables of the lake with DuckDB, through `deltalake`: no JVM."""

import duckdb

from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables import LAYERS, open_table, table_names


class QueryError(TidemarkError):
    """A SQL query that DuckDB cannot run."""


_REVISED = "final_after"


def connect(lake: Lake) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view for each table: `gold.top_products`, `gold.top_products__late`, ….

    Views of tables whose rows are revised have `is_final`: whether the row cannot change any more.
    """
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for layer in LAYERS:
        connection.execute(f"CREATE SCHEMA {layer}")
    names = table_names(lake)
    opened = {name: open_table(lake, name) for name in names}
    for name, table in opened.items():
        connection.register(_registered(name), table.to_pyarrow_dataset())
    for name, table in opened.items():
        columns = {field.name for field in table.schema().fields}
        final = (
            f", {_finality(name, watermarked='ops.watermarks' in opened)} AS is_final" if _REVISED in columns else ""
        )
        layer, short = name.split(".", 1)
        connection.execute(f'CREATE VIEW {layer}."{short}" AS SELECT *{final} FROM "{_registered(name)}"')
    return connection


def _registered(table: str) -> str:
    return "__" + table.replace(".", "__")


def _finality(table: str, *, watermarked: bool) -> str:
    if not watermarked:
        return "false"
    result = table.removesuffix("__groups")
    watermark = f"""SELECT max(watermark) FROM "{_registered("ops.watermarks")}" WHERE "table" = '{result}'"""
    return f"coalesce({_REVISED} <= ({watermark}), false)"


def run(lake: Lake, sql: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """Column names and rows of a query.

    Raises:
        QueryError: if DuckDB refuses it.
    """
    try:
        result = connect(lake).execute(sql)
        if result is None:
            raise QueryError(f"query {sql!r}: expected a SQL statement, got none.")
        return [column[0] for column in result.description or ()], result.fetchall()
    except duckdb.Error as error:
        known = ", ".join(table_names(lake)) or "none yet"
        raise QueryError(f"query {sql!r}: {error}. Tables of {lake.uri}: {known}.") from error
