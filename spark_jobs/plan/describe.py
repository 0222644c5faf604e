"""A plan as a person reads it."""

from collections.abc import Iterator

from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spec.durations import format_duration


def describe(plan: LogicalPlan) -> str:
    """What a pipeline reads, remembers and writes, what must add up, and what a late event can change."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: LogicalPlan) -> Iterator[str]:
    definition, operator = plan.definition, plan.operator
    yield f"{definition.kind} {definition.name}"
    if plan.reads:
        yield f"reads        {', '.join(table.name for table in plan.reads)}"
    if plan.lookups:
        yield f"looks up in  {', '.join(step.table for step in plan.lookups)}"
    if operator is not None:
        yield f"step         {operator.description}"
        yield f"late         {operator.lateness.describe()}"
        if operator.horizon:
            yield f"horizon      {format_duration(operator.horizon)} past the newest event"
        if operator.state.operators:
            yield f"state        {', '.join(operator.state.operators)}"
    for table in plan.tables:
        keys = f", a row for each {', '.join(table.keys)}" if table.keys else ""
        found_by = f", files by {', '.join(table.statistics)}" if table.statistics else ""
        yield f"writes       {table.name} ({table.role}){keys}{found_by}"
    for equation in plan.equations:
        yield f"equation     {equation.describe()}"
    for invariant in plan.invariants:
        yield f"table        {invariant.describe()}"
    if operator is not None:
        yield f"as streamed  {plan.as_streamed}"
        yield f"repair unit  {operator.recomputation.repair_unit}"
