"""`tidemark run`: pipelines in this process."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.cli.definitions import pointed_at, resolved
from spark_jobs.cli.options import LakeOption, PipelinesArgument, SourceOption, WithSourcesOption, lake_of
from spark_jobs.cli.signals import interruptible
from spark_jobs.cli.terminal import complain, err, out
from spark_jobs.pipelines import with_sources as add_sources
from spark_jobs.spec import Definition, DefinitionError, Ingest
from spark_jobs.spec.durations import parse_duration

if TYPE_CHECKING:
    from spark_jobs.operations.run.plan import RunPlan


def run(
    names: PipelinesArgument,
    lake: LakeOption = None,
    until_caught_up: Annotated[
        bool,
        typer.Option("--until-caught-up", help="Process what is there now, then end."),
    ] = False,
    close: Annotated[
        bool, typer.Option("--close", help="Then finish the input: make every open window final.")
    ] = False,
    with_sources: WithSourcesOption = False,
    idle_after: Annotated[
        str | None,
        typer.Option(help='Without input for so long ("30 seconds"), heartbeats move the watermark on.'),
    ] = None,
    source: SourceOption = None,
) -> None:
    """Run pipelines in one driver until Ctrl-C, or until they have caught up."""
    from spark_jobs.operations.run.plan import plan_run

    definitions = list(resolved(names))
    if with_sources:
        definitions = list(add_sources(definitions))
    if source is not None:
        definitions = pointed_at(definitions, source)
    if close and not until_caught_up:
        raise DefinitionError("--close finishes a finite input: use it with --until-caught-up")
    if idle_after and until_caught_up:
        raise DefinitionError("--idle-after waits for input; with --until-caught-up say --close, which closes at once")
    idle = _idle(idle_after, definitions) if idle_after else None
    where = lake_of(lake).ensure_exists()
    plan = plan_run(where, definitions, until_caught_up=until_caught_up and not close)
    for _, error in plan.refused:
        complain(str(error))
    if plan.nothing_to_do:
        _tell_caught_up(plan)
        raise typer.Exit(_code_of(plan))
    from spark_jobs.console.running import run_pipelines

    with interruptible() as stop:
        failed = run_pipelines(
            out,
            err,
            where,
            plan.definitions,
            until_caught_up=until_caught_up,
            close=close,
            idle_after=idle,
            stop=stop,
        )
    raise typer.Exit(failed or _code_of(plan))


def _tell_caught_up(plan: "RunPlan") -> None:
    """As a run that has found nothing new."""
    from spark_jobs.console.live import progress_table

    names = [each.name for each in plan.definitions]
    if names:
        out.print(progress_table(dict.fromkeys(names), dict.fromkeys(names), width=out.width))


def _code_of(plan: "RunPlan") -> int:
    """The exit code for what cannot run."""
    return next((error.exit_code for _, error in plan.refused), 0)


def _idle(text: str, definitions: Sequence[Definition]) -> timedelta | None:
    """What `--idle-after` says."""
    try:
        idle = parse_duration(text)
    except ValueError as error:
        raise DefinitionError(f"--idle-after: {error}") from None
    ingests = [d for d in definitions if isinstance(d, Ingest)]
    if idle and not ingests:
        raise DefinitionError(
            f"--idle-after {text}: heartbeats come from ingests, and this run has none; add --with-sources"
        )
    slow = [d.name for d in ingests if idle <= d.trigger_interval]
    if slow:
        raise DefinitionError(f"--idle-after {text}: {', '.join(slow)} has a trigger_interval as long: give more time")
    return idle
