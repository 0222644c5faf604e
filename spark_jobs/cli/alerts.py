"""`tidemark mute` and `acknowledge`: what becomes of alerts."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from spark_jobs.cli.options import DeployedArgument, LakeOption, duration, lake_of
from spark_jobs.cli.terminal import out, say
from spark_jobs.lake import Lake
from spark_jobs.spec import DefinitionError


def mute(
    names: DeployedArgument,
    lake: LakeOption = None,
    during: Annotated[str, typer.Option("--for", help="For how long.")] = "1 hour",
    off: Annotated[bool, typer.Option("--off", help="Alert again.")] = False,
) -> None:
    """Keep a pipeline's alerts from failing its task and notifying anybody, for a while."""
    from spark_jobs.control.monitoring import mutes

    until = None if off else datetime.now(UTC) + duration("--for", during)
    where = lake_of(lake)
    _refuse_unknown("mute", where, names)
    mutes.mute(where, names, until=until)
    told = "mute ended; alerts are sent again" if until is None else f"muted until {until:%Y-%m-%d %H:%M} UTC"
    say(f"{', '.join(names)}: {told}")


def acknowledge(names: DeployedArgument, lake: LakeOption = None) -> None:
    """Take note of what has happened to pipelines so far: their alert `restarts` clears with the next look."""
    from spark_jobs.control.monitoring import acknowledgements

    at, where = datetime.now(UTC), lake_of(lake)
    _refuse_unknown("acknowledge", where, names)
    acknowledgements.acknowledge(where, names, at=at)
    out.print(
        f"{', '.join(names)}: restarts up to {at:%Y-%m-%d %H:%M:%S} UTC are acknowledged. Only those after it "
        "count for the alert `restarts`.",
        highlight=False,
        soft_wrap=True,
    )


def _refuse_unknown(verb: str, lake: Lake, names: list[str]) -> None:
    from spark_jobs.control.desired import orders

    known = {name for desired in orders.all_desired(lake).values() for name in desired.pipelines}
    unknown = sorted(set(names) - known)
    if unknown:
        raise DefinitionError(
            f"{verb}: {unknown[0]} has not been deployed. Deployed: {', '.join(sorted(known)) or 'nothing'}. Nothing "
            "was changed."
        )
