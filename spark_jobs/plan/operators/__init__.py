"""The kinds of stateful steps: what each means, built once as values that all others read."""

from collections.abc import Callable

from spark_jobs.plan.operators.aggregate import grouped
from spark_jobs.plan.operators.deduplicate import deduplicated
from spark_jobs.plan.operators.join import as_of, joined
from spark_jobs.plan.operators.ordered import counting, running, sliding
from spark_jobs.plan.operators.process import processed
from spark_jobs.plan.operators.stateless import stateless
from spark_jobs.plan.operators.values import AsStreamed, Operator, Side, setting_aside, step_of
from spark_jobs.spec import Pipeline

_KINDS: dict[str, Callable[[Pipeline], Operator]] = {
    "aggregate": grouped,
    "as_of": as_of,
    "counting": counting,
    "deduplicate": deduplicated,
    "join": joined,
    "process": processed,
    "running": running,
    "sliding": sliding,
}
"""Kind of the first stateful step -> what builds its operator."""


def operator_of(pipeline: Pipeline) -> Operator:
    """The operator of a pipeline."""
    stateful = pipeline.stateful_steps
    return _KINDS[stateful[0].kind](pipeline) if stateful else stateless(pipeline)


__all__ = ["AsStreamed", "Operator", "Side", "operator_of", "setting_aside", "step_of"]
