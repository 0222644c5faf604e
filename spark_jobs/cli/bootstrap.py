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
    from spark_jobs.console.bootstrap import run_bootstrap
    from spark_jobs.control.awaiting import refuse_deployed
    from spark_jobs.operations.bootstrap.plan import plan_bootstrap
    from spark_jobs.operations.bootstrap.text import bootstrap_text

    definition, where = one(pipeline), lake_of(lake)
    plan = plan_bootstrap(where, definition)
    out.print(bootstrap_text(plan), highlight=False, markup=False, soft_wrap=True)
    if dry_run or not isinstance(definition, Pipeline):
        say("Nothing was written: --dry-run.")
        return
    refuse_deployed(where, [definition.name])
    with interruptible() as stop:
        raise typer.Exit(run_bootstrap(out, err, where, definition, plan, stop=stop))
