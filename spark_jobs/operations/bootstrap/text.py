"""A bootstrap as a person reads it."""

from collections.abc import Iterator

from spark_jobs.operations.bootstrap.plan import BootstrapPlan
from spark_jobs.operations.words import reads_text
from spark_jobs.recompute.ranges import shown


def bootstrap_text(plan: BootstrapPlan) -> str:
    """A plan in lines."""
    return "\n".join(_lines(plan))


def _lines(plan: BootstrapPlan) -> Iterator[str]:
    yield f"bootstrap of {plan.pipeline}: epoch {plan.epoch} {'has begun' if plan.begun else 'begins'}"
    yield f"cut      {shown(plan.cut_us)} UTC; the newest event is of {shown(plan.newest_us)}"
    yield f"stream   windows that end after the cut, for {plan.table}"
    yield from reads_text(plan.streams)
    yield "batch    windows that end at or before it, over the events that the stream has read by then"
    yield from reads_text(plan.computes)
