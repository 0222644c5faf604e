"""`tidemark ledger`: what became of every event."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.terminal import out
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.plan import logical as plan
from spark_jobs.spec import DefinitionError, Ingest, Pipeline

_SHOWN = 200
"""So many batches are shown at least, where nobody says how many."""


def ledger(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    last: Annotated[
        int | None,
        typer.Option(help="Show so many of the newest batches; the totals cover all. [default: about 200]"),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(help="An earlier life of the checkpoint. [default: the current one]")
    ] = None,
    state: Annotated[
        bool, typer.Option("--state", help="Also read Spark's state and count the open windows (slow).")
    ] = False,
) -> None:
    """Show what became of every event, batch by batch; exit with 1 where the figures do not balance."""
    from spark_jobs.console import reports
    from spark_jobs.lake.accounting import audit
    from spark_jobs.lake.checkpoints.epochs import current_epoch, epoch_at
    from spark_jobs.lake.commit_records.history import epoch_ledger

    where = lake_of(lake)
    definition = one(pipeline, on=where)
    current = current_epoch(where, definition.name)
    if current is None:
        raise MissingTableError(
            f"pipeline `{definition.name}` has not run on {where.uri} yet. Start it: {command('run', definition.name)}"
        )
    number = current.number if epoch is None else epoch
    if epoch_at(where, definition.name, number) is None:
        raise MissingTableError(
            f"pipeline `{definition.name}`: no epoch {number}; the current one is {current.number}."
        )
    if state and (isinstance(definition, Ingest) or number != current.number):
        raise DefinitionError("--state reads the state of a pipeline's current epoch; an ingest has none: leave it out")
    equations = plan.build(definition).equations
    wanted = last if last is not None else _SHOWN
    books = epoch_ledger(where, definition.sink.table, definition.name, number, equations, last=wanted)
    checks = audit.checks(where, definition, number, books)
    if state and isinstance(definition, Pipeline):
        from spark_jobs.console.running import state_check

        checks.append(state_check(where, definition, number, books))
    reports.print_ledger(out, definition.name, number, books, equations, checks, last=last)
    if not all(holds for holds, _ in checks):
        raise typer.Exit(1)
