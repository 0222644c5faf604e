"""`tidemark sql`: queries over all tables."""

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import out, say
from spark_jobs.spec import DefinitionError

if TYPE_CHECKING:
    from spark_jobs.lake import Lake


class Format(StrEnum):
    """How rows are given."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


_BY_NAME = {".csv": Format.CSV, ".json": Format.JSON, ".ndjson": Format.JSON, ".parquet": Format.PARQUET}


def sql(
    text: Annotated[str, typer.Argument(help="A query for DuckDB.", metavar="QUERY")],
    lake: LakeOption = None,
    file_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="How rows are given; json: an object on each line. [default: what FILE ends with, else table]",
            show_default=False,
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", help="Write the rows to this file.", metavar="FILE")] = None,
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

    wanted, where = _wanted(file_format, file), lake_of(lake)
    if wanted is Format.TABLE:
        reports.print_rows(out, *query.run(where, text, allow_files=allow_files))
    else:
        _write(where, text, wanted, file, allow_files=allow_files)


def _wanted(given: Format | None, file: Path | None) -> Format:
    """The format of the rows.

    Raises:
        DefinitionError: if they cannot be given so.
    """
    wanted = given or (_BY_NAME.get(file.suffix.lower()) if file is not None else Format.TABLE)
    if wanted is None:
        raise DefinitionError(
            f"--out {file}: expected a name that ends with {', '.join(_BY_NAME)}, or --format. Nothing was written."
        )
    if wanted is Format.TABLE and file is not None:
        raise DefinitionError(f"--format table is for people; for --out {file} say csv, json or parquet.")
    if wanted is Format.PARQUET and file is None:
        raise DefinitionError("--format parquet: a terminal cannot show it; say --out FILE. Nothing was read.")
    return wanted


def _write(lake: "Lake", text: str, wanted: Format, file: Path | None, *, allow_files: bool) -> None:
    """Writes the rows; a query that fails leaves a file as it was."""
    from spark_jobs.lake.tables import query

    with TemporaryDirectory(prefix="tidemark-rows-", dir=file.absolute().parent if file else None) as folder:
        rows = Path(folder, "rows")
        query.write(lake, text, rows, wanted.value, allow_files=allow_files)  # type: ignore[arg-type]
        if file is not None:
            rows.replace(file)
            say(f"written: {file}")
            return
        with rows.open("rb") as content:
            sys.stdout.flush()
            shutil.copyfileobj(content, sys.stdout.buffer)
            sys.stdout.buffer.flush()
