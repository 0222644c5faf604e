"""`tidemark bootstrap`: a new pipeline with its history computed in batch."""

import typer

from spark_jobs.cli.batch import DryRunOption
from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.signals import interruptible
from spark_jobs.cli.terminal import err, out, say
from spark_jobs.spec import Pipeline


def bootstrap(pipeline: PipelineArgument, lake: LakeOption = None, dry_run: DryRunOption = False) -> None:
    """Begin a new pipeline: compute its history in batch up to a cut, from which its stream goes on."""
    from spark_jobs.console.operation import NOTHING_WRITTEN, Operation
    from spark_jobs.operations.bootstrap.plan import plan_bootstrap
    from spark_jobs.operations.bootstrap.text import bootstrap_text

    definition, operation = one(pipeline), Operation(out, err, lake_of(lake))
    plan = plan_bootstrap(operation.lake, definition, begins=not dry_run)
    operation.say(bootstrap_text(plan))
    if dry_run or not isinstance(definition, Pipeline):
        say(NOTHING_WRITTEN)
        return
    from spark_jobs.operations.bootstrap.execute import carry_out

    with interruptible() as stop:
        code = operation.with_streams(
            definition,
            lambda spark, say, watch: carry_out(spark, operation.lake, definition, plan, say, watch=watch, stop=stop),
        )
    raise typer.Exit(code)
