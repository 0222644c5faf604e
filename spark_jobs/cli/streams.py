"""`tidemark deploy`, `stop` and `status`: deployed streams; the same verbs as the DAGs."""

import getpass
import os
from typing import Annotated

import typer

from spark_jobs.cli.definitions import resolved
from spark_jobs.cli.options import (
    DeployedArgument,
    LakeOption,
    PipelinesArgument,
    WithSourcesOption,
    duration,
    lake_of,
)
from spark_jobs.cli.terminal import out, say
from spark_jobs.pipelines import with_sources as add_sources


def deploy(
    names: PipelinesArgument,
    lake: LakeOption = None,
    with_sources: WithSourcesOption = False,
    wait: Annotated[str, typer.Option(help='How long to wait for the first progress; "0 seconds": not at all.')] = (
        "3 minutes"
    ),
) -> None:
    """Order that pipelines run, and wait for their first progress. What already runs so is left alone."""
    from spark_jobs.control import awaiting, orders

    timeout = duration("--wait", wait)
    definitions = list(resolved(names))
    if with_sources:
        definitions = list(add_sources(definitions))
    where = lake_of(lake).made()
    ordered = orders.deploy(where, definitions, by=_person(), failed=awaiting.failed_generations(where))
    for each in ordered:
        told = f"generation {each.generation} ordered" if each.changed else "runs so already, left alone"
        say(f"{each.pipeline}: {told} (job {each.job})")
    if timeout:
        awaiting.await_running(where, ordered, timeout=timeout, tell=say)


def stop(
    names: DeployedArgument,
    lake: LakeOption = None,
    wait: Annotated[str, typer.Option(help="How long to wait until they have.")] = "3 minutes",
) -> None:
    """Order that deployed pipelines finish their batch and end."""
    from spark_jobs.control import awaiting, orders

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
    """Show what is deployed, what runs and how it fares; exit with 1 where something is not as ordered."""
    if machine:
        from spark_jobs.console import laptop

        raise typer.Exit(laptop.status(out, lake_of(lake)))
    from spark_jobs.console import streams

    raise typer.Exit(0 if streams.print_status(out, lake_of(lake)) else 1)


def _person() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # as in a container that runs under a number that has no name
        user = f"user {os.getuid()}"
    return f"{user} at the command line"
