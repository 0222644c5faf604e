"""`tidemark check`: expectations of tables."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import end_with, named_or_ran
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import complain, err, out, say
from spark_jobs.spec import DefinitionError


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, or paths of pipeline files. [default: all that have run and have expectations]",
            metavar="[PIPELINE]...",
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Look at all rows, instead of what is new since the check before.")
    ] = False,
) -> None:
    """Check what tables gained against their expectations; exit with 1 if one of severity `fail` is broken."""
    from spark_jobs.console.checking import run_checks, summary
    from spark_jobs.lake.tables.opening import exists

    where = lake_of(lake)
    ran = named_or_ran(names, where)
    for each in ran.definitions if names else ():
        if not each.is_checked:
            raise DefinitionError(
                f"pipeline `{each.name}`: expected expectations=(…) in its definition, got none: there is nothing "
                "to check. Nothing was read. docs/guides/quality.md says how to write them."
            )
    definitions = [each for each in ran.definitions if names or (each.is_checked and exists(where, each.sink.table))]
    if ran.definitions and not definitions:
        say(f"{where.uri} has no tables with expectations yet.")
    broken = [each for each in run_checks(out, err, where, definitions, all_rows=all_rows) if each.broken]
    for found in broken:
        complain(summary(found))
    end_with(ran.unreadable)
    if broken:
        raise typer.Exit(1)
