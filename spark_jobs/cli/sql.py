"""`tidemark sql`: queries over all tables."""

from typing import Annotated

import typer

from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import out


def sql(
    text: Annotated[str, typer.Argument(help="A query for DuckDB.", metavar="QUERY")],
    lake: LakeOption = None,
    allow_files: Annotated[
        bool,
        typer.Option(
            "--allow-files",
            help="The query may also read and write files, attach databases, load extensions and change settings.",
        ),
    ] = False,
) -> None:
    """Query all tables of the lake with DuckDB: bronze.sales, gold.top_products, gold.top_products__late, …"""
    from spark_jobs.console import reports
    from spark_jobs.lake.tables import query

    columns, rows = query.run(lake_of(lake), text, allow_files=allow_files)
    out.print(reports.rows_table(columns, rows))
