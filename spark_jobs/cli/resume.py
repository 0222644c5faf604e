"""`tidemark resume`: how a halted pipeline goes on."""

from typing import Annotated

import typer

from spark_jobs.cli.options import LakeOption, duration, lake_of
from spark_jobs.cli.terminal import say
from spark_jobs.cli.users import user_of_system


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
    """Decide how a halted pipeline goes on: try the batch again, or set rows of it aside, or all of them."""
    from spark_jobs.operations.resume.execute import carry_out
    from spark_jobs.operations.resume.plan import choice_of, plan_resume

    choice = choice_of(pipeline, skip=skip, quarantine=quarantine)
    timeout, where = duration("--wait", wait), lake_of(lake)
    carry_out(
        where, plan_resume(where, pipeline, choice), say, by=by or user_of_system(), comment=comment, timeout=timeout
    )
