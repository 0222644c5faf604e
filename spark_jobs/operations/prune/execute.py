"""Removes what a plan names."""

from spark_jobs.lake import Lake
from spark_jobs.operations.prune.plan import PrunePlan
from spark_jobs.operations.prune.text import done_text
from spark_jobs.operations.shape import Say

_AT_ONCE = 1_000


def carry_out(lake: Lake, plan: PrunePlan, say: Say) -> None:
    """Removes it, what says that a savepoint is there before its files."""
    for each in plan.remains:
        for start in range(0, len(each.paths), _AT_ONCE):
            lake.store.delete(list(each.paths[start : start + _AT_ONCE]))
    say(done_text(plan))
