"""`tidemark rebuild`: the results of a changed definition in place of those before."""

import sys
from typing import Annotated

import typer

from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.signals import interruptible
from spark_jobs.cli.terminal import err, out
from spark_jobs.pipelines import registry
from spark_jobs.spec import Definition, DefinitionError, Pipeline


def rebuild(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build in a separate table and compare; leave the table as it is.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Swap without asking.")] = False,
) -> None:
    """Put the results of a changed definition in place: built in a separate table, compared, swapped at once."""
    from spark_jobs.console.rebuild import finish_rebuild, run_rebuild
    from spark_jobs.control.awaiting import refuse_deployed
    from spark_jobs.operations.rebuild.plan import plan_rebuild, unfinished
    from spark_jobs.operations.rebuild.text import rebuild_text

    definition, where = one(pipeline), lake_of(lake)
    if isinstance(definition, Pipeline) and not dry_run and (epoch := unfinished(where, definition)) is not None:
        refuse_deployed(where, [definition.name])
        with interruptible() as stop:
            raise typer.Exit(finish_rebuild(out, err, where, definition, epoch, stop=stop))
    target, plan = plan_rebuild(where, definition)
    _refuse_readers(definition)
    if yes:
        refuse_deployed(where, [definition.name])
    out.print(rebuild_text(plan), highlight=False, markup=False, soft_wrap=True)

    def allowed() -> bool:
        told = yes or (sys.stdin.isatty() and typer.confirm(f"Put these rows in place of those of {plan.table}?"))
        if told:
            # It may run since the rows were built.
            refuse_deployed(where, [definition.name])
        return told

    with interruptible() as stop:
        raise typer.Exit(run_rebuild(out, err, target, plan, allowed=None if dry_run else allowed, stop=stop))


def _refuse_readers(definition: Definition) -> None:
    """Refuses to swap rows that another stream has counted: the new ones come in a commit that streams pass over."""
    table = definition.sink.table
    readers = [
        each.name
        for each in registry().values()
        if isinstance(each, Pipeline) and table in {source.name for source in each.tables}
    ]
    if readers:
        raise DefinitionError(
            f"pipeline `{definition.name}`: {', '.join(readers)} read {table} as a stream, and would count the rows "
            "before and not those after. Nothing was read or written. Begin all of them again: tidemark reset "
            f"{definition.name} --empty-tables, likewise {', '.join(readers)}"
        )
