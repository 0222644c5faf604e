"""`tidemark checkpoints`: what Spark's checkpoints hold, whether they are whole, and how they differ."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.cli.definitions import name_of
from spark_jobs.cli.options import LakeOption, lake_of
from spark_jobs.cli.terminal import err, out, say, tell
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.spec import DefinitionError

if TYPE_CHECKING:
    from spark_jobs.lake.checkpoints.contents import Checkpoint
    from spark_jobs.lake.checkpoints.verifying import Fault

app = typer.Typer(
    name="checkpoints", help="Look inside Spark's checkpoints: list, show, verify, diff, prune.", no_args_is_help=True
)

NameArgument = Annotated[
    str, typer.Argument(help="Name of a pipeline that has run on the lake, or path of its file.", metavar="PIPELINE")
]
AtOption = Annotated[
    int | None, typer.Option("--at", help="A batch that has ended. [default: the newest]", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, for a program.")]


@app.command("list")
def list_(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the checkpoints of the lake: batches, watermark, size, age of the newest snapshot of state."""
    from spark_jobs.console.checkpoints import print_summaries
    from spark_jobs.lake.checkpoints.describing import plain, summaries

    where = lake_of(lake)
    found = summaries(where)
    if as_json:
        tell(json.dumps([plain(asdict(each)) for each in found], indent=2))
    elif not found:
        say(f"No pipeline has run on {where.uri} yet.")
    else:
        print_summaries(out, found)


@app.command()
def show(pipeline: NameArgument, at: AtOption = None, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Show what a checkpoint holds: its definition, batches, offsets, watermark and state; whether it is whole."""
    from spark_jobs.console.checkpoints import description_lines, print_costs, print_stores
    from spark_jobs.control.supervision import terms
    from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe

    pipeline = name_of(pipeline)
    checkpoint = checkpoint_of(lake_of(lake), pipeline)
    found, faults = describe(checkpoint, at=at), _faults(checkpoint)
    job = str(json.loads(checkpoint.epoch.definition)["job"])
    term = terms.records(checkpoint.lake, job).newest_number() or None
    if as_json:
        more = {"term": term, "faults": [asdict(fault) for fault in faults]}
        tell(json.dumps({**found.as_json(), **more}, indent=2))
        return
    tell("\n".join(description_lines(found)))
    tell(f"term         {'- (never deployed)' if term is None else f'{term}, of job {job}'}")
    print_costs(out, found)
    print_stores(out, found)
    missing = sum(fault.stops for fault in faults)
    verdict = f"no: {missing} faults, see them: " if missing else "yes, all that it needs is there"
    tell(f"next start   {verdict}{_verify_command(pipeline) if missing else ''}")


@app.command()
def verify(pipeline: NameArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Look for what is missing, cut off, or of another query or epoch; exit with 1 where something is."""
    from spark_jobs.lake.checkpoints.describing import checkpoint_of

    pipeline = name_of(pipeline)
    checkpoint = checkpoint_of(lake_of(lake), pipeline)
    faults = _faults(checkpoint)
    if as_json:
        tell(json.dumps([asdict(fault) for fault in faults], indent=2))
    else:
        for fault in faults:
            tell(str(fault))
        if not faults:
            newest = max(checkpoint.batches("commits"), default=None)
            up_to = "no batch has ended yet" if newest is None else f"the next start goes on after batch {newest}"
            tell(f"{pipeline}, epoch {checkpoint.epoch.number}: whole, {len(checkpoint.files)} files; {up_to}")
    if faults:
        raise typer.Exit(CheckpointError.exit_code)


@app.command()
def diff(
    one: Annotated[str, typer.Argument(help="A pipeline, or one of its batches: NAME@BATCH.", metavar="A")],
    other: Annotated[str, typer.Argument(help="Another, or another batch of it.", metavar="B")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how two checkpoints, or two batches of one, differ: offsets, watermark, operators, files of state."""
    from spark_jobs.console.reports import print_rows
    from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe, differences, state_files_of

    where = lake_of(lake)
    sides = [(checkpoint_of(where, name), batch) for name, batch in map(_at, (one, other))]
    found = [describe(checkpoint, at=batch) for checkpoint, batch in sides]
    rows = list(differences(*found))
    files = [state_files_of(checkpoint, each.batch) for (checkpoint, _), each in zip(sides, found, strict=True)]
    only = {one: sorted(files[0] - files[1]), other: sorted(files[1] - files[0])}
    if as_json:
        tell(
            json.dumps(
                {
                    "differences": [dict(zip(("what", "a", "b"), row, strict=True)) for row in rows],
                    "only_in_a": only.get(one, []),
                    "only_in_b": only.get(other, []),
                },
                indent=2,
            )
        )
        return
    if not rows and not any(only.values()):
        tell(f"{one} and {other}: no difference")
        return
    print_rows(out, ("what", one, other), rows)
    for name, paths in only.items():
        for path in paths:
            tell(f"only {name} reads {path}")


@app.command()
def prune(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of pipelines. [default: all]", metavar="[PIPELINE]...")
    ] = None,
    lake: LakeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", hidden=True, help="A plan that was made, and approved, before.")
    ] = None,
) -> None:
    """Remove what nothing needs any more: savepoints past their retention, checkpoints of epochs that are over."""
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.prune.execute import carry_out
    from spark_jobs.operations.prune.plan import PrunePlan, plan_prune
    from spark_jobs.operations.prune.text import prune_text

    operation = Operation(out, err, lake_of(lake))
    if plan_file is not None:
        carry_out(operation.lake, PrunePlan.model_validate_json(plan_file.read_text()), tell)
        return
    plan = plan_prune(operation.lake, names or ())
    if text := prune_text(plan):
        operation.say(text)
    if operation.ends_here(plan, dry_run=dry_run):
        return
    if not operation.confirmed("Remove all of this?", yes=yes):
        operation.say("Nothing was removed. To remove it without being asked: --yes.")
        raise typer.Exit(1)
    carry_out(operation.lake, plan, tell)


def _faults(checkpoint: "Checkpoint") -> "list[Fault]":
    from spark_jobs.lake.checkpoints.epochs import begun_with
    from spark_jobs.lake.checkpoints.verifying import verify as look

    return look(checkpoint, begun_with(checkpoint.epoch))


def _verify_command(pipeline: str) -> str:
    from spark_jobs.lake.commands import command

    return command("checkpoints", "verify", pipeline)


def _at(text: str) -> tuple[str, int | None]:
    name, _, batch = text.partition("@")
    if batch and not batch.isdigit():
        raise DefinitionError(f"expected NAME or NAME@BATCH, got {text!r}. Nothing was read.")
    return name, int(batch) if batch else None
