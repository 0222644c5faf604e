"""`tidemark backfill` and `tidemark repair`: results computed again in batch."""

from pathlib import Path
from typing import Annotated

import typer

from spark_jobs.cli.definitions import end_with, named_or_ran, resolved
from spark_jobs.cli.options import LakeOption, PipelinesArgument, lake_of
from spark_jobs.cli.terminal import err, out, say
from spark_jobs.spec import Pipeline

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan; start no JVM and write nothing.")]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Compute also where nothing seems to have changed, or another program has changed rows."
    ),
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", hidden=True, help="File that takes what has changed, as JSON.")
]


def backfill(
    names: PipelinesArgument,
    begin: Annotated[str, typer.Option("--from", help="Begin of the range (UTC), such as 2026-11-01.")],
    end: Annotated[str, typer.Option("--to", help="End of the range (exclusive).")],
    lake: LakeOption = None,
    as_streamed: Annotated[
        bool,
        typer.Option("--as-streamed", help="Give back the rows that the stream wrote, without late events."),
    ] = False,
    dry_run: DryRunOption = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a range of which results are still open, instead of cutting it.")
    ] = False,
    force: ForceOption = False,
    allow_empty: Annotated[
        bool,
        typer.Option(
            "--allow-empty",
            help="Before the first event, or where all is open yet: nothing to do, instead of an error.",
        ),
    ] = False,
    report: ReportOption = None,
) -> None:
    """Compute the results of a range of event time again, late events included, and put right what differs.

    Of several pipelines all are planned first: where one is refused, nothing is written. Then each is computed.
    """
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.backfill.plan import plan_backfills, rows_to_compare
    from spark_jobs.operations.backfill.text import backfill_text, compared_text, summary
    from spark_jobs.recompute.ranges import Range

    asked, where = Range.parse(begin, end), lake_of(lake)
    operation = Operation(out, err, where)
    plan = plan_backfills(
        where,
        resolved(names, on=where),
        asked.begin,
        asked.end,
        mode="as-streamed" if as_streamed else "corrected",
        strict=strict,
        force=force,
        allow_empty=allow_empty,
    )
    for notice in plan.notices:
        operation.say(notice)
    for target, each in plan.backfills:
        operation.say(backfill_text(each))
        if dry_run and each.slices:
            operation.say(compared_text(each, *rows_to_compare(target, each)))
    slices = any(each.slices for _, each in plan.backfills)
    if operation.ends_here(plan, dry_run=dry_run, force="To compute it all the same: --force." if slices else None):
        return
    from spark_jobs.operations.backfill.execute import carry_out_all

    changed = operation.execute(
        f"backfill of {plan.pipeline}",
        [target.pipeline for target, _ in plan.planned],
        lambda spark, say: carry_out_all(spark, plan, say),
    )
    if len(plan.backfills) > 1:
        operation.say(summary(plan, changed))
    operation.report(report, changed)


def repair(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, or paths of pipeline files. [default: all that have run]",
            metavar="[PIPELINE]...",
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    report: ReportOption = None,
) -> None:
    """Count late events after all: compute again only the results that they can change."""
    from spark_jobs.console.operation import NOTHING_WRITTEN, Operation
    from spark_jobs.operations.repair.plan import plan_repairs
    from spark_jobs.operations.repair.text import repair_text

    where = lake_of(lake)
    ran, operation = named_or_ran(names, where), Operation(out, err, where)
    pipelines = ran.definitions if names else [each for each in ran.definitions if isinstance(each, Pipeline)]
    plan = plan_repairs(where, pipelines, force=force)
    for notice in plan.notices:
        operation.say(notice)
    for _, each in plan.repairs:
        operation.say(repair_text(each))
    if dry_run:
        say(NOTHING_WRITTEN)
    elif plan.planned:
        from spark_jobs.operations.repair.execute import carry_out

        changed = operation.execute(
            f"repair of {plan.pipeline}",
            [target.pipeline for target, _ in plan.planned],
            lambda spark, say: [carry_out(spark, *each, say) for each in plan.planned],
        )
        operation.report(report, changed)
    end_with((*ran.unreadable, *plan.refused))
