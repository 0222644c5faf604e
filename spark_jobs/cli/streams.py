"""`tidemark plan`, `deploy`, `stop` and `status`: deployed streams; the same verbs as the DAGs."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from spark_jobs.cli.definitions import registered, resolved
from spark_jobs.cli.options import (
    DeployedArgument,
    LakeOption,
    PipelinesArgument,
    WithSourcesOption,
    duration,
    lake_of,
)
from spark_jobs.cli.terminal import out, say
from spark_jobs.cli.users import user_of_system
from spark_jobs.pipelines import with_sources as add_sources
from spark_jobs.spec import Definition, DefinitionError
from spark_jobs.spec.shadows import shadow_of


class DeployMode(StrEnum):
    """As `operations.deploy.execute.Mode`, for the command line."""

    GUARDED = "guarded"
    DIRECT = "direct"
    SHADOW = "shadow"


def plan(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, or paths of pipeline files. [default: all that are registered]",
            metavar="[PIPELINE]...",
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
    with_sources: WithSourcesOption = False,
) -> None:
    """Show what a deploy would do to each pipeline, and why; exit with 1 where something cannot be deployed."""
    from spark_jobs.control.desired import deployment, orders
    from spark_jobs.control.desired.deployment_text import as_text

    where = lake_of(lake)
    definitions = _wanted(names or (), with_sources=with_sources)
    planned = deployment.plan(where, definitions)
    out.print(as_text(planned), highlight=False, markup=False, soft_wrap=True)
    if not names:
        running = {name for desired in orders.all_desired(where).values() for name in desired.running}
        others = sorted(name for name in running - set(planned.definitions) if shadow_of(name) is None)
        if others:
            say(f"Deployed, and not registered: {', '.join(others)}. Left alone; name their files to plan them.")
    raise typer.Exit(1 if planned.blocked else 0)


def deploy(
    names: PipelinesArgument,
    lake: LakeOption = None,
    with_sources: WithSourcesOption = False,
    wait: Annotated[str, typer.Option(help='How long to wait for the first progress; "0 seconds": not at all.')] = (
        "3 minutes"
    ),
    mode: Annotated[
        DeployMode,
        typer.Option(
            help="guarded: a version that fails, or makes no progress in time, gives way to the one before. "
            "direct: its order remains. shadow: a changed version runs beside the one that runs, into a table of its "
            "own; `tidemark shadow` compares them.",
        ),
    ] = DeployMode.GUARDED,
) -> None:
    """Order that pipelines run, and wait for their first progress. What already runs so is left alone."""
    from spark_jobs.control.desired import deployment
    from spark_jobs.operations.deploy.execute import order, watch
    from spark_jobs.operations.shadow.plan import plan_shadows

    timeout, by, beside = duration("--wait", wait), _person(), mode is DeployMode.SHADOW
    if beside and with_sources:
        raise DefinitionError(
            "--with-sources: a shadow reads the tables that are filled already. Nothing was ordered. Leave it out."
        )
    definitions = _wanted(names, with_sources=with_sources)
    where = lake_of(lake).ensure_exists()
    planned, told = plan_shadows(where, definitions) if beside else (deployment.plan(where, definitions), ())
    for line in told:
        say(line)
    ordered = order(where, planned, by=by, say=say)
    if timeout:
        watch(where, ordered, mode=mode.value, timeout=timeout, by=by, say=say)


def stop(
    names: DeployedArgument,
    lake: LakeOption = None,
    wait: Annotated[str, typer.Option(help="How long to wait until they have stopped.")] = "3 minutes",
) -> None:
    """Order that deployed pipelines finish their batch and end."""
    from spark_jobs.control.desired import awaiting, orders

    where, timeout = lake_of(lake), duration("--wait", wait)
    ordered = orders.stop(where, names, by=_person())
    if timeout:
        awaiting.await_stopped(where, ordered, timeout=timeout)
    say(f"stopped: {', '.join(each.pipeline for each in ordered)}")


def status(
    lake: LakeOption = None,
    machine: Annotated[
        bool, typer.Option("--machine", help="Also what `tidemark up` has started on this machine.")
    ] = False,
) -> None:
    """Show what is deployed, what runs and its state; exit with 1 where something is not as ordered."""
    if machine:
        from spark_jobs.console import laptop

        raise typer.Exit(laptop.status(out, lake_of(lake)))
    from spark_jobs.console import streams

    raise typer.Exit(0 if streams.print_status(out, lake_of(lake)) else 1)


def _wanted(names: Sequence[str], *, with_sources: bool) -> tuple[Definition, ...]:
    """What a user named; all that is registered where that is nothing."""
    definitions = resolved(names) if names else registered()
    return add_sources(definitions) if with_sources else definitions


def _person() -> str:
    return f"{user_of_system()} at the command line"
