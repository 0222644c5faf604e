"""A repair as a person reads it."""

from spark_jobs.operations.repair.plan import RepairPlan
from spark_jobs.operations.words import counted, reads_text
from spark_jobs.recompute.ranges import shown


def repair_text(plan: RepairPlan) -> str:
    """A plan in lines."""
    lines = [f"repair of {plan.pipeline}: {counted(plan.late, 'late or replayed event')} not counted in a result yet"]
    if plan.nothing_to_do:
        lines.append(f"nothing to do: {plan.nothing_to_do}")
        return "\n".join(lines)
    lines += [f"events   {shown(begin)} to {shown(end)}" for begin, end in plan.times[:10]]
    lines += [f"         and {len(plan.times) - 10:,} more ranges"] if len(plan.times) > 10 else []
    return "\n".join([*lines, *reads_text(plan.reads)])
