"""Removes what a plan names."""

from spark_jobs.lake import Lake
from spark_jobs.lake.store.folders import common_folder, remove_marks, remove_objects
from spark_jobs.operations.prune.plan import PrunePlan
from spark_jobs.operations.prune.text import done_text
from spark_jobs.operations.shape import Say


def carry_out(lake: Lake, plan: PrunePlan, say: Say) -> None:
    """Removes it, what says that a savepoint is there before its files."""
    for each in plan.remains:
        remove_objects(lake, each.paths)
        if each.reason != "state that no batch names":
            remove_marks(lake, common_folder(each.paths))
    say(done_text(plan))
