"""A shadow as a person reads it: where it is, how its rows differ, what becomes of it."""

from collections.abc import Iterator

from spark_jobs.operations.shadow.compare import TOLERANCE, Beside, Comparison, Standing
from spark_jobs.operations.shadow.plan import DropPlan, PromotionPlan
from spark_jobs.spec.names import visible_line


def beside_text(found: Beside) -> str:
    """A pipeline and its shadow, in lines."""
    return "\n".join(_lines(found))


def _lines(found: Beside) -> Iterator[str]:
    fields = ", ".join(found.changed) or "nothing"
    yield f"{found.shadow.pipeline} is a shadow of {found.pipeline.pipeline}; what is changed: {fields}"
    for each in (found.pipeline, found.shadow):
        yield _standing(each)
    if found.comparison is None:
        yield f"rows     cannot be compared yet: {found.why}"
        return
    upto = f"up to {found.upto:%Y-%m-%d %H:%M:%S} UTC, which both have passed" if found.upto else "as both are now"
    yield f"{found.pipeline.table} beside {found.shadow.table}, {upto}:"
    yield from _comparison(found.comparison)
    if found.why:
        yield f"note     {found.why}"


def _standing(each: Standing) -> str:
    watermark = f"{each.watermark:%Y-%m-%d %H:%M:%S}" if each.watermark and each.watermark.timestamp() > 0 else "-"
    behind = "-" if each.rows_behind is None else f"{each.rows_behind:,}"
    return (
        f"{each.pipeline}: {each.state}, {each.batches:,} batches, {each.read:,} events, watermark {watermark}, "
        f"behind {behind}, late {_share(each.late_share)}, set aside {_share(each.quarantine_share)}"
    )


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _comparison(found: Comparison) -> Iterator[str]:
    for what, names in (
        ("only in the table", found.columns_pipeline),
        ("only in the shadow", found.columns_shadow),
        ("of another type", found.retyped),
    ):
        if names:
            yield f"columns  {what}: {', '.join(names)}"
    if not found.keyed:
        yield "rows     cannot be compared one by one, because the two tell rows apart by other columns"
        rows = f"{found.only_pipeline:,} in the table, {found.only_shadow:,} in the shadow"
        yield f"rows     {rows}; {found.beyond:,} beyond"
        return
    yield (
        f"rows     {found.same:,} the same, {found.changed:,} with other values, {found.only_pipeline:,} only in the "
        f"table, {found.only_shadow:,} only in the shadow; {found.beyond:,} beyond"
    )
    yield f"         floating-point values are the same up to a relative difference of {TOLERANCE:g}"
    for each in found.examples:
        yield f"         {visible_line(each.row)}: {visible_line(each.what)}"


def drop_text(plan: DropPlan) -> str:
    """What dropping a shadow does."""
    stops = "is stopped, then " if plan.runs else ""
    return (
        f"{plan.shadow} {stops}goes, with its checkpoint and {', '.join(plan.results)}; {plan.pipeline} stays as it is"
    )


def promotion_text(plan: PromotionPlan) -> str:
    """What promoting a shadow does, in lines."""
    return "\n".join(_promotion_lines(plan))


def _promotion_lines(plan: PromotionPlan) -> Iterator[str]:
    name = plan.pipeline
    yield f"{plan.drop.shadow} takes the place of {name}:"
    if plan.swaps:
        yield "first    both stop; the results of the new definition are built, compared, and swapped in one commit"
    elif plan.carries_on:
        yield "first    the rows are swapped already; the history of the new epoch is computed"
    else:
        yield f"first    the checkpoint of {name} takes the new definition as it is"
    yield (
        f"then     {name} is deployed with it"
        if plan.deploys
        else f"then     {name} stays stopped, as it was not deployed"
    )
    yield "last     the shadow is dropped"
