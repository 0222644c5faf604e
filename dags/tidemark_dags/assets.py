"""Each table of the lake is an Airflow asset of the same name."""

from airflow.sdk import Asset, AssetAlias

MOVED = AssetAlias("tidemark.tables")
"""Through this the monitor tells which tables have moved; it knows them only once it has looked."""


def table_asset(table: str) -> Asset:
    """The asset of a table such as `gold.top_products`: what a DAG names as its `schedule`."""
    return Asset(name=table, uri=f"tidemark://{table.replace('.', '/', 1)}")
