"""What is pruned, as a person reads it."""

from spark_jobs.operations.prune.plan import PrunePlan, Remains
from spark_jobs.operations.words import counted, size_text


def prune_text(plan: PrunePlan) -> str:
    """What would be removed, a line for each thing."""
    lines = [f"{each.pipeline}: {each.what}: {each.reason}, {_size(each)}" for each in plan.remains]
    return "\n".join([*lines, *plan.notices])


def _size(remains: Remains) -> str:
    return f"{counted(len(remains.paths), 'object')}, {size_text(remains.size_bytes)}"


def done_text(plan: PrunePlan) -> str:
    """What was removed."""
    objects, size = sum(len(each.paths) for each in plan.remains), sum(each.size_bytes for each in plan.remains)
    return f"Removed {counted(objects, 'object')}, {size_text(size)}."
