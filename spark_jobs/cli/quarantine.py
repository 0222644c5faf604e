"""`tidemark quarantine` and `tidemark replay`: rows that were set aside, and the way back."""

from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.cli.batch import DryRunOption, ReportOption
from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.terminal import err, out, say, warn
from spark_jobs.cli.users import user_of_system

if TYPE_CHECKING:
    from spark_jobs.console.operation import Operation
    from spark_jobs.lake.tables.quarantine import Selection
    from spark_jobs.operations.reports import BatchReport
    from spark_jobs.spec import Definition

ReasonsOption = Annotated[
    list[str] | None,
    typer.Option("--reason", help="Only rows with this reason; may be repeated. [default: all]", show_default=False),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Only rows that arrived at this instant (UTC) or later.")
]
UntilOption = Annotated[str | None, typer.Option("--until", help="Only rows that arrived before this instant (UTC).")]


def quarantine(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    reason: ReasonsOption = None,
    since: SinceOption = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Show so many rows of each reason.")] = 3,
) -> None:
    """Show what was set aside: how many rows for each reason, since when, and some of them."""
    from spark_jobs.console import reports
    from spark_jobs.lake.tables import quarantine as kept
    from spark_jobs.recompute.ranges import instant, us

    where = lake_of(lake)
    definition = one(pipeline, on=where)
    since_us = us(instant("--since", since)) if since is not None else None
    selection = kept.Selection(reasons=tuple(reason or ()), since_us=since_us)
    reports.print_quarantine(out, where, definition, selection, samples)


def replay(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    reason: ReasonsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    earlier_epochs: Annotated[
        bool,
        typer.Option(
            "--earlier-epochs",
            help="Also rows from before a reset: those that the source still had then are in bronze twice afterwards.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    comment: Annotated[str, typer.Option("--comment", help="Why; it is kept in ops.decisions.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who has decided it. [default: you]")] = None,
    report: ReportOption = None,
) -> None:
    """Take rows out of a quarantine that pass by now, each once.

    Rows of an ingest are read again, by its rules as they are now, and go to bronze. Events of a pipeline are looked up
    again, and counted.
    """
    from spark_jobs.console.operation import Operation
    from spark_jobs.lake.tables.quarantine import Selection
    from spark_jobs.recompute.ranges import instant, us
    from spark_jobs.spec import Ingest

    definition, where, who = one(pipeline), lake_of(lake), by or user_of_system()
    selection = Selection(
        reasons=tuple(reason or ()),
        since_us=us(instant("--since", since)) if since is not None else None,
        until_us=us(instant("--until", until)) if until is not None else None,
        earlier_epochs=earlier_epochs,
    )
    operation = Operation(out, err, where)
    replayed = _read_again if isinstance(definition, Ingest) else _look_up_again
    changed = replayed(operation, definition, selection, who, comment, dry_run=dry_run)
    if changed is not None:
        operation.report(report, [changed])


def _read_again(
    operation: "Operation", definition: "Definition", selection: "Selection", by: str, comment: str, *, dry_run: bool
) -> "BatchReport | None":
    from spark_jobs.operations.replay.plan import plan_replay
    from spark_jobs.operations.replay.text import replay_text

    plan = plan_replay(operation.lake, definition, selection)
    operation.say(replay_text(plan))
    if operation.ends_here(plan, dry_run=dry_run):
        return None
    from spark_jobs.operations.replay.execute import carry_out

    for notice in plan.notices:
        warn(notice)
    return operation.execute(
        f"replay of {definition.name}",
        [definition],
        lambda spark, say: carry_out(spark, operation.lake, definition, plan, say, by=by, comment=comment),
    )


def _look_up_again(
    operation: "Operation", definition: "Definition", selection: "Selection", by: str, comment: str, *, dry_run: bool
) -> "BatchReport | None":
    from spark_jobs.console.operation import NOTHING_WRITTEN
    from spark_jobs.operations.replay.lookup_plan import plan_lookup
    from spark_jobs.operations.replay.text import lookup_text

    plan = plan_lookup(operation.lake, definition, selection)
    operation.say(lookup_text(plan))
    if plan.nothing_to_do and not plan.uncounted:
        return None
    if dry_run:
        say(NOTHING_WRITTEN)
        return None
    from spark_jobs.operations.replay.lookup import carry_out

    return operation.execute(
        f"replay of {definition.name}",
        [definition],
        lambda spark, say: carry_out(spark, plan, say, by=by, comment=comment),
    )
