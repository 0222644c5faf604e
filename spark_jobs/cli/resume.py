"""`tidemark resume`: how a halted pipeline goes on."""

import getpass
import os
from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.cli.options import LakeOption, duration, lake_of
from spark_jobs.cli.terminal import say
from spark_jobs.spec import DefinitionError

if TYPE_CHECKING:
    from spark_jobs.lake.checkpoints.halts import Choice


def resume(
    pipeline: Annotated[str, typer.Argument(help="Name of a halted pipeline.")],
    skip: Annotated[
        bool, typer.Option("--skip", help="Set all rows of the batch aside in the quarantine, reason `skipped`.")
    ] = False,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Set the rows that break the rule aside, for this batch; write the others."),
    ] = False,
    comment: Annotated[str, typer.Option(help="Why; kept in ops.decisions.")] = "",
    by: Annotated[
        str | None, typer.Option(help="Who decides. [default: the user of the system]", show_default=False)
    ] = None,
    lake: LakeOption = None,
    wait: Annotated[str, typer.Option(help="Of a deployed pipeline: how long to wait until the batch is written.")] = (
        "1 minute"
    ),
) -> None:
    """Decide how a pipeline goes on that a broken rule has halted: try the batch again, or set rows aside."""
    from spark_jobs.lake.checkpoints import halts
    from spark_jobs.operations.resume.execute import await_carried_out

    if skip and quarantine:
        raise DefinitionError(
            f"resume {pipeline}: expected --skip (all rows of the batch are set aside) or --quarantine (those that "
            "break the rule), got both. Nothing was changed."
        )
    choice: Choice = "skip" if skip else "quarantine" if quarantine else "resume"
    timeout, where = duration("--wait", wait), lake_of(lake)
    decided = halts.decide(where, pipeline, choice, by=by or _user(), comment=comment)
    say(f"{pipeline}: `{choice}` for {decided.subject} is decided, by {decided.decided_by}")
    await_carried_out(where, decided, timeout=timeout, tell=say)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container that runs under a number that has no name
        return f"user {os.getuid()}"
