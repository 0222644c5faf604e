"""`tidemark audit`: results recounted from bronze."""

from typing import Annotated

import typer

from spark_jobs.cli.definitions import end_with, named_or_ran
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import complain, err, out
from spark_jobs.spec import DefinitionError


def audit(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, or paths of pipeline files. [default: all that have run]",
            metavar="[PIPELINE]...",
            show_default=False,
        ),
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", help="Begin of the range (UTC). [default: the first event]")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End of the range. [default: what is closed]")] = None,
    lake: LakeOption = None,
) -> None:
    """Recount results from bronze, row by row; exit with 1 where something is wrong. Nothing is written."""
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.audit.plan import plan_audit
    from spark_jobs.operations.audit.text import audit_text, summary
    from spark_jobs.recompute.ranges import Range

    if (begin is None) != (end is None):
        raise DefinitionError("expected both --from and --to, or neither. Nothing was read.")
    asked = Range.parse(begin, end) if begin is not None and end is not None else None
    where = lake_of(lake)
    ran = named_or_ran(names, where)
    operation, plan = Operation(out, err, where), plan_audit(where, ran.definitions, asked)
    for each in plan.found:
        operation.say(audit_text(each))
    audits = list(plan.found)
    if plan.recounts:
        from spark_jobs.operations.audit.execute import carry_out

        about = [target.pipeline for target, *_ in plan.recounts]
        audits += operation.execute("audit", about, lambda spark, say: carry_out(spark, plan, say))
    unsound = [each for each in audits if not each.sound]
    for each in unsound:
        complain(summary(each))
    end_with(ran.unreadable)
    if unsound:
        raise typer.Exit(1)
