"""What a deploy will do, as data: a function of what is wanted, what runs and what has failed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from spark_jobs.control.orders import Desired, Order
    from spark_jobs.spec import Definition

Action = Literal["start", "restart", "leave", "refuse"]


@dataclass(frozen=True)
class Step:
    """What becomes of one pipeline.

    Attributes:
        pipeline: its name.
        job: whose driver it runs in.
        action: what is done.
        why: in words.
    """

    pipeline: str
    job: str
    action: Action
    why: str


def plan(
    definitions: Iterable["Definition"],
    *,
    desired: Mapping[str, "Desired"],
    failed: Mapping[str, int],
    refused: Mapping[str, str],
) -> tuple[Step, ...]:
    """Plans a deploy.

    Args:
        definitions: what is to run.
        desired: job -> what is wanted of it so far.
        failed: pipeline -> generation that has failed for good.
        refused: pipeline -> why its checkpoint does not take the definition.
    """
    steps = []
    for definition in definitions:
        name = definition.name
        orders = {job: wanted.pipelines[name] for job, wanted in desired.items() if name in wanted.pipelines}
        elsewhere = [job for job, order in orders.items() if job != definition.job and order.state == "running"]
        action, why = _decide(definition, orders.get(definition.job), failed.get(name))
        if elsewhere:
            why = f"moves from job {', '.join(elsewhere)}"
        if name in refused:
            action, why = "refuse", refused[name]
        steps.append(Step(name, definition.job, action, why))
    return tuple(steps)


def _decide(definition: "Definition", order: "Order | None", failed: int | None) -> tuple[Action, str]:
    if order is None:
        return "start", "for the first time"
    if order.state == "stopped":
        return "start", "it was stopped"
    if failed == order.generation:
        return "restart", "it had failed"
    if order.definition != definition.to_json():
        return "restart", "limits, alerts or other settings that a checkpoint allows to change have changed"
    return "leave", "runs so already"


def as_text(steps: Iterable[Step]) -> str:
    """The plan for people, a line for each pipeline, by job."""
    lines = []
    steps = tuple(steps)
    width = max((len(step.pipeline) for step in steps), default=0)
    for job in dict.fromkeys(step.job for step in steps):
        lines.append(f"job {job}:")
        lines += [f"  {s.action:<8} {s.pipeline:<{width}}  {s.why}" for s in steps if s.job == job]
    return "\n".join(lines)
