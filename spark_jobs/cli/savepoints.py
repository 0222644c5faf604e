"""`tidemark savepoint`, `savepoints` and `restore`: what a pipeline was, kept and gone back to."""

import json
from pathlib import Path
from typing import Annotated

import typer

from spark_jobs.cli.definitions import name_of, one
from spark_jobs.cli.options import LakeOption, PipelineArgument, lake_of
from spark_jobs.cli.terminal import err, out, say, tell
from spark_jobs.cli.users import user_of_system

app = typer.Typer(name="savepoints", help="Savepoints of pipelines: list, show, drop.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(help="Name of a pipeline that has run on the lake, or path of its file.", metavar="PIPELINE")
]
SavepointArgument = Annotated[str, typer.Argument(help="Name of the savepoint.", metavar="NAME")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, for a program.")]
ByOption = Annotated[
    str | None, typer.Option(help="Who asks for it. [default: the user of the system]", show_default=False)
]


def savepoint(
    pipeline: NameArgument,
    name: Annotated[str | None, typer.Option(help="Of the savepoint. [default: the time]", show_default=False)] = None,
    note: Annotated[str, typer.Option(help="Why; kept with it.")] = "",
    by: ByOption = None,
    lake: LakeOption = None,
) -> None:
    """Save what a pipeline is after its newest batch: its checkpoint, and the versions of its tables."""
    from spark_jobs.operations.savepoint.execute import take_savepoint

    take_savepoint(lake_of(lake), name_of(pipeline), tell, name=name, note=note, by=by or user_of_system())


@app.command("list")
def list_(
    pipeline: Annotated[
        str | None, typer.Argument(help="Name of a pipeline. [default: all]", show_default=False)
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List savepoints, the oldest first."""
    from spark_jobs.console.checkpoints import print_savepoints
    from spark_jobs.lake.checkpoints.savepoints import savepoints

    where = lake_of(lake)
    found = savepoints(where, pipeline)
    if as_json:
        tell(json.dumps([each.model_dump(mode="json", exclude={"files"}) for each in found], indent=2))
    elif not found:
        say(f"No savepoint of {pipeline or 'any pipeline'} on {where.uri} yet.")
    else:
        print_savepoints(out, found)


@app.command()
def show(pipeline: NameArgument, name: SavepointArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Show what a savepoint holds, and whether it can be gone back to."""
    from spark_jobs.operations.savepoint.execute import show_savepoint

    show_savepoint(lake_of(lake), name_of(pipeline), name, tell, as_json=as_json)


@app.command()
def drop(pipeline: NameArgument, name: SavepointArgument, lake: LakeOption = None) -> None:
    """Remove a savepoint; maintenance may then remove what only it needed."""
    from spark_jobs.operations.savepoint.execute import drop_savepoint

    drop_savepoint(lake_of(lake), name_of(pipeline), name, say)


def restore(
    pipeline: PipelineArgument,
    to: Annotated[str | None, typer.Option("--to", help="Name of a savepoint.", show_default=False)] = None,
    to_batch: Annotated[
        int | None, typer.Option("--to-batch", help="A batch that the checkpoint still has.", show_default=False)
    ] = None,
    without_tables: Annotated[
        bool, typer.Option("--without-tables", help="Only the checkpoint; refused where rows would come twice.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Go back without asking.")] = False,
    comment: Annotated[str, typer.Option(help="Why; kept in ops.decisions.")] = "",
    by: ByOption = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", hidden=True, help="A plan that was made, and approved, before.")
    ] = None,
    lake: LakeOption = None,
) -> None:
    """Go back to a savepoint or a batch: the checkpoint, the tables, and the pipelines that read them."""
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.restore.execute import carry_out
    from spark_jobs.operations.restore.plan import RestorePlan, plan_restore
    from spark_jobs.operations.restore.text import restore_text

    operation, who = Operation(out, err, lake_of(lake)), by or user_of_system()
    if plan_file is not None:
        carry_out(operation.lake, RestorePlan.model_validate_json(plan_file.read_text()).by(who), tell)
        return
    plan = plan_restore(
        operation.lake,
        one(pipeline, on=operation.lake),
        to=to,
        to_batch=to_batch,
        with_tables=not without_tables,
        by=who,
        comment=comment,
    )
    operation.say(restore_text(plan))
    if operation.ends_here(plan, dry_run=dry_run):
        return
    if not operation.confirmed("Go back?", yes=yes):
        operation.say("Nothing was changed. To go back without being asked: --yes.")
        raise typer.Exit(1)
    carry_out(operation.lake, plan, tell)
