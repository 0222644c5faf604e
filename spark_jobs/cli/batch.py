"""`tidemark backfill` and `tidemark repair`: results computed again in batch."""

from pathlib import Path
from typing import Annotated

import typer

from spark_jobs.cli.definitions import one, registered, resolved
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.terminal import err, out, say, warn
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
    pipeline: PipelineArgument,
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
    """Compute the results of a range of event time again, late events included, and put right what differs."""
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.backfill.execute import carry_out
    from spark_jobs.operations.backfill.plan import plan_backfill, rows_to_compare
    from spark_jobs.operations.backfill.text import backfill_text, compared_text
    from spark_jobs.recompute.ranges import Range

    definition, operation, asked = one(pipeline), Operation(out, err, lake_of(lake)), Range.parse(begin, end)
    target, plan = plan_backfill(
        operation.lake,
        definition,
        asked.begin,
        asked.end,
        mode="as-streamed" if as_streamed else "corrected",
        strict=strict,
        force=force,
        allow_empty=allow_empty,
    )
    operation.say(backfill_text(plan))
    if dry_run and plan.slices:
        operation.say(compared_text(plan, *rows_to_compare(target, plan)))
    if operation.ends_here(
        plan, dry_run=dry_run, force="To compute it all the same: --force." if plan.slices else None
    ):
        return
    changed = operation.execute(
        f"backfill of {plan.pipeline}", [definition], lambda spark, say: carry_out(spark, target, plan, say)
    )
    operation.report(report, [changed])


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
    from spark_jobs.lake.checkpoints.epochs import current_epoch
    from spark_jobs.operations.repair.execute import carry_out
    from spark_jobs.operations.repair.plan import plan_repair
    from spark_jobs.operations.repair.text import repair_text
    from spark_jobs.recompute.target import BackfillRefusedError

    operation, planned = Operation(out, err, lake_of(lake)), []
    for definition in resolved(names) if names else registered():
        if not names and (
            not isinstance(definition, Pipeline) or current_epoch(operation.lake, definition.name) is None
        ):
            continue
        try:
            target, plan = plan_repair(operation.lake, definition, force=force)
        except BackfillRefusedError as error:
            if names:
                raise
            warn(str(error))
            continue
        operation.say(repair_text(plan))
        if not plan.nothing_to_do:
            planned.append((target, plan))
    if dry_run:
        say(NOTHING_WRITTEN)
    elif planned:
        changed = operation.execute(
            f"repair of {', '.join(target.name for target, _ in planned)}",
            [target.pipeline for target, _ in planned],
            lambda spark, say: [carry_out(spark, target, plan, say) for target, plan in planned],
        )
        operation.report(report, changed)
