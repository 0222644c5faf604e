"""`tidemark maintain`: tables are kept small and quick."""

from typing import Annotated

import typer

from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import complain, out, say
from spark_jobs.lake.errors import MissingTableError


def maintain(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables, such as gold.top_products. [default: all]", metavar="[TABLE]...", show_default=False
        ),
    ] = None,
    lake: LakeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and write nothing.")] = False,
) -> None:
    """Compact small files, keep the ledger, cut logs and remove what nothing needs any more; streams may run."""
    from spark_jobs.console.maintaining import run_maintenance
    from spark_jobs.lake.tables.opening import exists
    from spark_jobs.operations.maintain.execute import Maintenance
    from spark_jobs.operations.maintain.text import plan_text

    where = lake_of(lake)
    for name in names or ():
        if not exists(where, name):
            raise MissingTableError(f"table {name}: not in the lake {where.uri}. What there is: tidemark tables")
    maintenance = Maintenance(where)
    if dry_run:
        for table in maintenance.tables(names or ()):
            out.print(plan_text(maintenance.plan(table)), highlight=False, markup=False, soft_wrap=True)
        say("Nothing was written: --dry-run.")
        return
    failed = [each for each in run_maintenance(out, maintenance, names or ()) if each.problem]
    for each in failed:
        complain(f"{each.table}: {each.problem}")
    if failed:
        raise typer.Exit(1)
