"""`tidemark rescale`: another number of state partitions for a stopped pipeline."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import name_of
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import err, out


def rescale(
    pipeline: Annotated[
        str,
        typer.Argument(help="Name of a pipeline that has run on the lake, or path of its file.", metavar="PIPELINE"),
    ],
    partitions: Annotated[int, typer.Option("--partitions", help="So many partitions its state is to have.", min=1)],
    lake: LakeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be changed; change nothing.")] = False,
) -> None:
    """Divide the state of a stopped pipeline into another number of partitions; all of it is kept."""
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.rescale.plan import plan_rescale
    from spark_jobs.operations.rescale.text import rescale_text

    pipeline, operation = name_of(pipeline), Operation(out, err, lake_of(lake))
    plan = plan_rescale(operation.lake, pipeline, partitions)
    operation.say(rescale_text(plan))
    if operation.ends_here(plan, dry_run=dry_run):
        return

    from spark_jobs.operations.rescale.execute import carry_out

    operation.execute(
        f"rescale of {pipeline}",
        (plan.definition,),
        lambda spark, say: carry_out(spark, operation.lake, plan, say),
    )
