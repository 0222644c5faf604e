"""The plan of a deploy, for people."""

from collections import Counter
from collections.abc import Iterator

from spark_jobs.control.desired.deployment import Action, Plan, Step


def as_text(plan: Plan) -> str:
    """A line for each pipeline, by job; below it each field that differs, and the commands for a new epoch."""
    width = max((len(step.pipeline) for step in plan.steps), default=0)
    actions = max((len(step.action) for step in plan.steps), default=0)
    lines = [f"On {plan.lake}:"]
    for job in dict.fromkeys(step.job for step in plan.steps):
        lines.append(f"job {job}:")
        for step in plan.steps:
            if step.job == job:
                lines.append(f"  {step.action:<{actions}}  {step.pipeline:<{width}}  {step.why}")
                lines += _details(step)
    return "\n".join([*lines, _summary(plan)])


def _details(step: Step) -> Iterator[str]:
    fields = max((len(change.field) for change in step.changes), default=0)
    widths = max((len(change.compatibility) for change in step.changes), default=0)
    for change in step.changes:
        yield f"      {change.field:<{fields}}  {change.compatibility:<{widths}}  {change.why}"
    yield from (f"      source: {notice}" for notice in step.notices)
    if step.action is Action.NEW_EPOCH:
        yield "      Put the definition back, or begin a new epoch (or with --keep-tables: results so far stay):"
        yield from (f"        {command}" for command in step.commands)
        if step.rebuild:
            yield "      Or swap in results that a batch has computed and compared with these:"
            yield from (f"        {command}" for command in step.rebuild)


def _summary(plan: Plan) -> str:
    counts = Counter(step.action for step in plan.steps)
    told = ", ".join(f"{counts[action]} {action}" for action in Action if counts[action]) or "nothing to deploy"
    if not plan.blocked:
        return f"{told}."
    names = ", ".join(step.pipeline for step in plan.blocked)
    return f"{told}. Nothing can be deployed together with {names}; running pipelines continue."
