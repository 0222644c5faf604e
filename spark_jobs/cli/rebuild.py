"""`tidemark rebuild`: the results of a changed definition in place of those before."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.signals import interruptible
from spark_jobs.cli.terminal import err, out
from spark_jobs.spec import Pipeline


def rebuild(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build in a separate table and compare; leave the table as it is.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Swap without asking.")] = False,
) -> None:
    """Put the results of a changed definition in place: built in a separate table, compared, swapped at once."""
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.rebuild.execute import carry_on, carry_out
    from spark_jobs.operations.rebuild.plan import plan_carrying_on, plan_rebuild
    from spark_jobs.operations.rebuild.text import rebuild_text

    definition, operation = one(pipeline), Operation(out, err, lake_of(lake))
    if isinstance(definition, Pipeline) and not dry_run:
        epoch = plan_carrying_on(operation.lake, definition)
        if epoch is not None:
            with interruptible() as stop:
                code = operation.with_streams(
                    definition,
                    lambda spark, say, watch: carry_on(
                        spark, operation.lake, definition, epoch, say, watch=watch, stop=stop
                    ),
                )
            raise typer.Exit(code)
    target, plan = plan_rebuild(operation.lake, definition, swaps=yes)
    operation.say(rebuild_text(plan))

    def allowed() -> bool:
        return operation.confirmed(f"Put these rows in place of those of {plan.table}?", yes=yes)

    with interruptible() as stop:
        code = operation.with_streams(
            definition,
            lambda spark, say, watch: carry_out(
                spark, target, plan, say, allowed=None if dry_run else allowed, watch=watch, stop=stop
            ),
        )
    raise typer.Exit(code)
