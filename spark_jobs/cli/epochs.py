"""`tidemark reset` and `tidemark adopt`: epochs of a checkpoint, and the place where it lies."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import one, pointed_at, registered, resolved
from spark_jobs.cli.options import LakeOption, PipelineArgument, SourceOption, lake_of
from spark_jobs.cli.terminal import out, say
from spark_jobs.lake import Lake
from spark_jobs.pipelines import registry
from spark_jobs.spec import Definition, DefinitionError, Ingest, Pipeline, is_name


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
    from spark_jobs.control.awaiting import refuse_deployed
    from spark_jobs.lake.checkpoints.reset import reset as reset_pipeline

    where = lake_of(lake)
    left = _left_on(where, pipeline)
    definition = left or one(pipeline)
    if source is not None:
        definition = pointed_at([definition], source)[0]
    if keep_tables is None:
        raise DefinitionError(
            f"reset {definition.name}: say what becomes of its rows so far, --keep-tables or --empty-tables. "
            "Nothing was changed."
        )
    refuse_deployed(where, [definition.name])
    done = reset_pipeline(where, definition, empty_tables=not keep_tables)
    rows = "were emptied" if done.emptied else "keep their rows"
    out.print(
        f"{definition.name}: epoch {done.before.number} is over, epoch {done.after.number} begins. "
        f"{', '.join(done.tables)} {rows}."
    )
    if isinstance(definition, Ingest):
        readers = [d.name for d in registry().values() if isinstance(d, Pipeline) and _reads(d, definition.sink.table)]
        if readers and done.emptied:
            out.print(
                f"These have counted the rows that are gone, and stop until they are reset: {', '.join(readers)}."
            )
        elif readers:
            out.print(
                f"Events that are read again will be in {definition.sink.table} twice. These count them twice: "
                f"{', '.join(readers)}."
            )
    if left is None:
        out.print(f"Start it: tidemark run {pipeline}")
    elif done.emptied:
        out.print(f"{definition.name} is not registered. Another pipeline may have {definition.sink.table} now.")


def _left_on(lake: Lake, name: str) -> Definition | None:
    """What a pipeline was whose file is gone, by its checkpoint: so that it can give its table back."""
    from spark_jobs.lake.checkpoints.epochs import begun_with, current_epoch

    if name in registry() or not is_name(name):
        return None
    epoch = current_epoch(lake, name)
    return begun_with(epoch) if epoch is not None else None


def _reads(pipeline: Pipeline, table: str) -> bool:
    return table in {source.name for source in pipeline.tables}


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
    from spark_jobs.control.awaiting import refuse_deployed
    from spark_jobs.lake.checkpoints.moving import adopt as adopt_checkpoint
    from spark_jobs.lake.checkpoints.moving import plan_adoption, that_have_run

    where, old = lake_of(lake), None if before is None else Lake.parse(before).uri
    definitions = resolved(names) if names else that_have_run(where, registered())
    refuse_deployed(where, [each.name for each in definitions])
    # All of them first: where one cannot be adopted, none is.
    plans = [plan_adoption(where, each, before=old) for each in definitions]
    for plan in plans:
        name = plan.epoch.pipeline
        if plan.before is None:
            say(f"{name}: its checkpoint fits {where.uri}.")
            continue
        if not dry_run:
            adopt_checkpoint(where, plan)
        what = "would be taken" if dry_run else "are taken"
        say(f"{name}: {plan.files:,} files that were read below {plan.before} {what} for those below {where.uri}.")
    if dry_run:
        say("Nothing was written: --dry-run.")
