"""`tidemark state`: what a pipeline remembers, as rows."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from spark_jobs.cli.definitions import name_of
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import err, out, tell


def state(
    pipeline: Annotated[
        str,
        typer.Argument(help="Name of a pipeline that has run on the lake, or path of its file.", metavar="PIPELINE"),
    ],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only such rows; may be given again.", metavar="COLUMN=VALUE")
    ] = None,
    open_windows: Annotated[
        bool, typer.Option("--open-windows", help="Only windows that the watermark has not reached.")
    ] = False,
    at: Annotated[
        int | None, typer.Option("--at", help="A batch that has ended. [default: the newest]", show_default=False)
    ] = None,
    lake: LakeOption = None,
    limit: Annotated[int, typer.Option(help="Show so many rows.", min=1)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for a program.")] = False,
) -> None:
    """Show the state of a pipeline as rows, whether it runs or not: open windows, remembered keys, waiting events."""
    from spark_jobs.console.reports import print_rows
    from spark_jobs.operations.state.plan import plan_state

    pipeline, where = name_of(pipeline), lake_of(lake)
    asked = plan_state(where, pipeline, keys=tuple(key or ()), open_windows=open_windows, at=at, limit=limit)

    from spark_jobs.console.checkpoints import state_heading
    from spark_jobs.console.running import session
    from spark_jobs.operations.state.execute import read_state

    with session(where, err, about=(asked.pipeline,), brief=True, here=True) as spark:
        found = read_state(spark, where, asked)
    if as_json:
        tell(json.dumps([asdict(each) for each in found], indent=2, default=str))
        return
    for each in found:
        tell(state_heading(pipeline, each))
        print_rows(out, each.columns, each.rows)
        if each.more:
            tell(f"… and more: --limit {limit * 10}")
