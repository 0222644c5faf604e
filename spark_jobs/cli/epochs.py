"""`tidemark reset` and `tidemark adopt`: epochs of a checkpoint, and the place where it lies."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import named_or_ran, one, pointed_at
from spark_jobs.cli.options import LakeOption, PipelineArgument, SourceOption, lake_of
from spark_jobs.cli.terminal import say
from spark_jobs.lake import Lake
from spark_jobs.lake.commands import command


def reset(
    pipeline: PipelineArgument,
    keep_tables: Annotated[
        bool | None,
        typer.Option(
            "--keep-tables/--empty-tables", help="Whether the rows written so far stay beside those of the new epoch."
        ),
    ] = None,
    source: SourceOption = None,
    lake: LakeOption = None,
) -> None:
    """Begin a new epoch: the pipeline starts over from its source, with its definition as it is now."""
    from spark_jobs.operations.reset.execute import carry_out
    from spark_jobs.operations.reset.plan import left_on, plan_reset

    where = lake_of(lake)
    left = left_on(where, pipeline)
    definition = left or one(pipeline)
    if source is not None:
        definition = pointed_at([definition], source)[0]
    carry_out(where, plan_reset(where, definition, keep_tables=keep_tables, registered=left is None), say)
    if left is None:
        say(f"Start it: {command('run', definition.name)}")


def adopt(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, or paths of pipeline files. [default: all that have a checkpoint on the lake]",
            metavar="[PIPELINE]...",
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
    before: Annotated[
        str | None,
        typer.Option("--from", help="Where the lake was. [default: the checkpoints tell]", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be changed; change nothing.")] = False,
) -> None:
    """Make the checkpoints of a lake fit that was moved or copied as a whole to where it is now."""
    from spark_jobs.operations.adopt.execute import carry_out
    from spark_jobs.operations.adopt.plan import plan_adoptions

    where, old = lake_of(lake), None if before is None else Lake.parse(before).uri
    plan = plan_adoptions(where, named_or_ran(names, where).all_or_none(), before=old)
    carry_out(where, plan, say, dry_run=dry_run)
    if dry_run:
        say("Nothing was written: --dry-run.")
