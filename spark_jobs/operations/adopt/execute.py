"""Makes checkpoints fit, as a plan says."""

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.moving import adopt
from spark_jobs.operations.adopt.plan import AdoptPlan
from spark_jobs.operations.shape import Say


def carry_out(lake: Lake, plan: AdoptPlan, say: Say, *, dry_run: bool) -> None:
    """Executes a plan, and says what was done, or would be.

    Args:
        lake: where it is now.
        plan: what has to be done.
        say: is told of each pipeline.
        dry_run: whether nothing is changed.
    """
    for each in plan.adoptions:
        name = each.epoch.pipeline
        if each.before is None:
            say(f"{name}: its checkpoint fits {lake.uri}.")
            continue
        if not dry_run:
            adopt(lake, each)
        what = "would be taken" if dry_run else "are taken"
        say(f"{name}: {each.files:,} files that were read below {each.before} {what} for those below {lake.uri}.")
