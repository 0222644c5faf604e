"""Audits in this process: what each has found, as a person reads it."""

from collections.abc import Sequence

from rich.console import Console

from spark_jobs.console.running import session
from spark_jobs.lake import Lake
from spark_jobs.operations.audit.execute import recount
from spark_jobs.operations.audit.plan import Audit, look, plan_recount
from spark_jobs.operations.audit.text import audit_text
from spark_jobs.recompute.ranges import Range
from spark_jobs.spec import Definition


def run_audits(
    out: Console, err: Console, lake: Lake, definitions: Sequence[Definition], asked: Range | None
) -> list[Audit]:
    """Audits pipelines, one after the other, and says what each audit has found."""
    planned, audits = [], []

    def tell(audit: Audit) -> None:
        audits.append(audit)
        out.print(audit_text(audit), highlight=False, markup=False, soft_wrap=True)

    for definition in definitions:
        found = look(lake, definition)
        plan = plan_recount(lake, definition, asked, found)
        if isinstance(plan, Audit):
            tell(plan)
        else:
            planned.append((*plan, found))
    if planned:
        with session(lake, err, about=[target.pipeline for target, *_ in planned]) as spark:
            for target, recounted, found in planned:
                tell(recount(spark, target, recounted, found))
    return audits
