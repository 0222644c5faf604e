"""`tidemark late`: what came too late."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.terminal import out
from spark_jobs.lake.commands import command
from spark_jobs.spec import DefinitionError, Pipeline


def late(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    limit: Annotated[int, typer.Option(help="Show so many of the newest.")] = 20,
) -> None:
    """Show the events that came too late for a pipeline, with the windows that they missed."""
    from spark_jobs.console import reports

    where = lake_of(lake)
    definition = one(pipeline, on=where)
    if not isinstance(definition, Pipeline):
        raise DefinitionError(
            f"pipeline `{definition.name}` is an ingest: nothing is late there. See its quarantine: "
            f"{command('quarantine', definition.name)}"
        )
    reports.print_late(out, where, definition, limit)
