"""`tidemark quarantine` and `tidemark replay`: rows that were set aside, and the way back."""

import getpass
from typing import Annotated

import typer

from spark_jobs.cli.batch import DryRunOption, ReportOption
from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.terminal import err, out, say, warn

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
    from spark_jobs.batch.ranges import instant, us
    from spark_jobs.console import reports
    from spark_jobs.lake import quarantine as kept

    definition, where = one(pipeline), lake_of(lake)
    since_us = us(instant("--since", since)) if since is not None else None
    selection = kept.Selection(reasons=tuple(reason or ()), since_us=since_us)
    reports.print_quarantine(out, where, definition, selection, samples)


def replay(
    ingest: PipelineArgument,
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
    """Read quarantined rows of an ingest again, by its rules as they are now: those that pass go to bronze, once."""
    from spark_jobs.batch.ranges import instant, us
    from spark_jobs.batch.replay import plan_replay
    from spark_jobs.console.quarantine import replay_text, run_replay
    from spark_jobs.control import batch_reports
    from spark_jobs.lake.quarantine import Selection

    definition, where = one(ingest), lake_of(lake)
    selection = Selection(
        reasons=tuple(reason or ()),
        since_us=us(instant("--since", since)) if since is not None else None,
        until_us=us(instant("--until", until)) if until is not None else None,
        earlier_epochs=earlier_epochs,
    )
    plan = plan_replay(where, definition, selection)
    out.print(replay_text(plan), highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        say("Nothing was written: --dry-run.")
    elif not plan.found.rows and plan.unfinished is None:
        say("Nothing to do.")
    else:
        if plan.unfinished is not None:
            warn(f"{plan.unfinished.run} has begun and not ended; it is carried out to its end first.")
        changed = run_replay(out, err, where, definition, plan, by=by or getpass.getuser(), comment=comment)
        if report is not None:
            batch_reports.write(report, [changed])
