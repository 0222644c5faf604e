"""`tidemark maintain`: tables are kept small and quick."""

from typing import Annotated

import typer

from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import complain, say, tell


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
    from spark_jobs.console.priority import step_aside
    from spark_jobs.operations.maintain.execute import Maintenance, carry_out
    from spark_jobs.operations.maintain.text import plan_text

    maintenance = Maintenance(lake_of(lake))
    if dry_run:
        for table in maintenance.plan_all(names or ()).tables:
            tell(plan_text(table))
        say("Nothing was written: --dry-run.")
        return
    step_aside()
    failed = [each for each in carry_out(maintenance, names or (), tell) if each.problem]
    for each in failed:
        complain(f"{each.table}: {each.problem}")
    if failed:
        raise typer.Exit(1)
