"""`tidemark reset`: epochs of a checkpoint."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import one, pointed_at
from spark_jobs.cli.options import LakeOption, PipelineArgument, SourceOption, lake_of
from spark_jobs.cli.terminal import out
from spark_jobs.pipelines import registry
from spark_jobs.spec import DefinitionError, Ingest, Pipeline


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
    from spark_jobs.lake.reset import reset as reset_pipeline

    definition, where = one(pipeline), lake_of(lake)
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
    out.print(f"Start it: tidemark run {pipeline}")


def _reads(pipeline: Pipeline, table: str) -> bool:
    return table in {source.name for source in pipeline.tables}
