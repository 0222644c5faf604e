"""`tidemark mute` and `acknowledge`: what becomes of alerts."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from spark_jobs.cli.options import DeployedArgument, LakeOption, duration, lake_of
from spark_jobs.cli.terminal import tell


def mute(
    names: DeployedArgument,
    lake: LakeOption = None,
    during: Annotated[str, typer.Option("--for", help="For how long.")] = "1 hour",
    off: Annotated[bool, typer.Option("--off", help="Alert again.")] = False,
) -> None:
    """Keep a pipeline's alerts from failing its task and notifying anybody, for a while."""
    from spark_jobs.control.monitoring import asking

    until = None if off else datetime.now(UTC) + duration("--for", during)
    tell(asking.mute(lake_of(lake), names, until=until))


def acknowledge(names: DeployedArgument, lake: LakeOption = None) -> None:
    """Take note of what has happened to pipelines so far: their alert `restarts` clears with the next look."""
    from spark_jobs.control.monitoring import asking

    at = datetime.now(UTC)
    tell(asking.acknowledge(lake_of(lake), names, at=at))
