"""Begins a new epoch, as a plan says."""

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.operations.reset.plan import ResetPlan
from spark_jobs.operations.shape import Say


def carry_out(lake: Lake, plan: ResetPlan, say: Say) -> None:
    """Executes a plan, and says what was done.

    Raises:
        DeployError: if a driver runs the pipeline by now.
    """
    refuse_deployed(lake, [plan.pipeline])
    done = reset(lake, plan.definition, empty_tables=plan.empty_tables)
    rows = "were emptied" if done.emptied else "keep their rows"
    say(
        f"{plan.pipeline}: epoch {done.before.number} is over, epoch {done.after.number} begins. "
        f"{', '.join(done.tables)} {rows}."
    )
    for notice in plan.notices:
        say(notice)
    if not plan.registered and done.emptied:
        table = plan.definition.sink.table
        say(f"{plan.pipeline} is not registered. Another pipeline may have {table} now.")
