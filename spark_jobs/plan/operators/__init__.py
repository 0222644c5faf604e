"""The kinds of stateful steps: what is particular to each, answered once."""

from spark_jobs.plan.operators.aggregate import Grouped
from spark_jobs.plan.operators.base import Operator, Replay, Side
from spark_jobs.plan.operators.deduplicate import Deduplicated
from spark_jobs.plan.operators.join import Joined
from spark_jobs.plan.operators.stateless import Stateless
from spark_jobs.spec import Pipeline

# Kind of the first stateful step -> its operator.
_OPERATORS: dict[str, type[Operator]] = {"aggregate": Grouped, "deduplicate": Deduplicated, "join": Joined}


def operator_of(pipeline: Pipeline) -> Operator:
    """The operator of a pipeline."""
    stateful = pipeline.stateful_steps
    return _OPERATORS[stateful[0].kind](pipeline) if stateful else Stateless(pipeline)


__all__ = ["Operator", "Replay", "Side", "operator_of"]
