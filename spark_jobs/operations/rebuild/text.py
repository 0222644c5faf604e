"""A rebuild as a person reads it: its plan, and the comparison."""

from collections.abc import Iterator

from spark_jobs.operations.rebuild.plan import Comparison, RebuildPlan
from spark_jobs.operations.words import reads_text
from spark_jobs.recompute.ranges import shown


def rebuild_text(plan: RebuildPlan) -> str:
    """A plan in lines."""
    return "\n".join(_plan_lines(plan))


def _plan_lines(plan: RebuildPlan) -> Iterator[str]:
    yield (
        f"rebuild of {plan.pipeline}: {', '.join(plan.changed)} changed; epoch {plan.epoch} takes the place of "
        f"epoch {plan.before}"
    )
    yield f"cut      {shown(plan.cut_us)} UTC; the newest event is of {shown(plan.newest_us)}"
    yield f"builds   windows that end at or before it, in {plan.aside}"
    yield from reads_text(plan.reads)
    yield f"then     compares them with {plan.table}, swaps them in one commit if told to, streams on from the cut"


def comparison_text(plan: RebuildPlan, found: Comparison) -> str:
    """What a rebuild changes, in lines."""
    return "\n".join(_comparison_lines(plan, found))


def _comparison_lines(plan: RebuildPlan, found: Comparison) -> Iterator[str]:
    yield f"{plan.table} up to the cut, before and after:"
    for what, names in (("added", found.added), ("removed", found.removed), ("of another type", found.retyped)):
        if names:
            yield f"columns  {what}: {', '.join(names)}"
    if not found.keyed:
        yield "rows     cannot be compared one by one, because rows are told apart by other columns than before"
    yield (
        f"rows     {found.same:,} the same, {found.changed:,} changed, {found.new:,} new, {found.gone:,} gone"
        + (f"; {found.beyond:,} beyond the cut, which the stream gives again" if found.beyond else "")
    )
    for each in found.examples:
        yield f"         {each.row}: {each.what}"
