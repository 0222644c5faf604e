"""SQL over all tables of the lake with DuckDB, through `deltalake`: no JVM."""

import duckdb

from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables import LAYERS, open_table, table_names


class QueryError(TidemarkError):
    """A SQL query that DuckDB cannot run."""


def connect(lake: Lake) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view for each table: `gold.top_products`, `gold.top_products__late`, ….

    Views of tables whose rows are revised have `is_final`: whether the row cannot change any more.
    """
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for layer in LAYERS:
        connection.execute(f"CREATE SCHEMA {layer}")
    names = table_names(lake)
    watermarked = "ops.watermarks" in names
    for name in names:
        table = open_table(lake, name)
        layer, short = name.split(".", 1)
        connection.register(f"__{layer}__{short}", table.to_pyarrow_dataset())
        columns = {field.name for field in table.schema().fields}
        final = ""
        if "final_after" in columns:
            final = ", false AS is_final"
            if watermarked:
                base = name.removesuffix("__groups")
                final = (
                    ", coalesce(final_after <= (SELECT max(watermark) FROM __ops__watermarks "
                    f"WHERE \"table\" = '{base}'), false) AS is_final"
                )
        connection.execute(f'CREATE VIEW {layer}."{short}" AS SELECT *{final} FROM "__{layer}__{short}"')
    return connection


def run(lake: Lake, sql: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """Column names and rows of a query.

    Raises:
        QueryError: if DuckDB refuses it.
    """
    try:
        result = connect(lake).execute(sql)
        return [column[0] for column in result.description or ()], result.fetchall()
    except duckdb.Error as error:
        known = ", ".join(table_names(lake)) or "none yet"
        raise QueryError(f"query {sql!r}: {error}. Tables of {lake.uri}: {known}.") from error
