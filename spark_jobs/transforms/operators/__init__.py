"""The kinds of stateful steps as DataFrame operations."""

from spark_jobs.plan.operators import Operator
from spark_jobs.transforms.operators.aggregate import GroupedTransform
from spark_jobs.transforms.operators.base import Transform
from spark_jobs.transforms.operators.deduplicate import DeduplicatedTransform
from spark_jobs.transforms.operators.join import JoinedTransform
from spark_jobs.transforms.operators.ordered import LatestTransform, OrderedTransform
from spark_jobs.transforms.operators.process import ProcessTransform
from spark_jobs.transforms.operators.stateless import StatelessTransform

# Kind of an operator -> what computes it.
_TRANSFORMS: dict[str, type[Transform]] = {
    "aggregate": GroupedTransform,
    "deduplicate": DeduplicatedTransform,
    "join": JoinedTransform,
    "latest": LatestTransform,
    "ordered": OrderedTransform,
    "process": ProcessTransform,
    "stateless": StatelessTransform,
}


def transform_of(operator: Operator, *, to_compare: bool = False) -> Transform:
    """What computes an operator."""
    return _TRANSFORMS[operator.kind](operator, to_compare=to_compare)


__all__ = ["Transform", "transform_of"]
