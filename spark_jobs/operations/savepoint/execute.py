"""Takes savepoints, and removes those that are not needed any more."""

from datetime import UTC, datetime

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.savepoints import (
    Kind,
    Savepoint,
    drop,
    refuse_changed_files,
    refuse_missing_files,
    savepoint_named,
    savepoints,
    take,
)
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.operations.savepoint.text import description_lines, taken_text
from spark_jobs.operations.shape import Say

KEPT = 7
"""So many of the savepoints that a deploy, or a restore, has taken of a pipeline stay."""


def take_savepoint(
    lake: Lake, pipeline: str, say: Say, *, name: str | None, note: str = "", by: str, kind: Kind = "manual"
) -> Savepoint:
    """Takes a savepoint of the newest batch that has ended.

    Args:
        lake: where.
        pipeline: its name.
        say: is told what was saved.
        name: of the savepoint; None: it gets one, of its kind and the time.
        note: why.
        by: who.
        kind: why; of all but `manual` the oldest are removed.

    Raises:
        MissingTableError: if the pipeline has not run.
        SavepointError: if it cannot be taken.
        CheckpointError: if its checkpoint or a table is not whole.
    """
    epoch = current_epoch(lake, pipeline)
    if epoch is None:
        raise MissingTableError(
            f"pipeline `{pipeline}` has not run on {lake.uri} yet: there is nothing to save. Start it: "
            f"{command('run', pipeline)}"
        )
    found = take(lake, epoch, name=name or named_by_time(kind), by=by, note=note, kind=kind)
    say(taken_text(found))
    return found


def named_by_time(kind: Kind) -> str:
    """A name that says when and why."""
    return f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"


def thin_out(lake: Lake, pipeline: str, kind: Kind, keep: int) -> list[Savepoint]:
    """Removes the oldest savepoints of a kind, and gives them back.

    Args:
        lake: where.
        pipeline: its name.
        kind: which savepoints.
        keep: so many of the newest stay.
    """
    of_kind = [each for each in savepoints(lake, pipeline) if each.kind == kind]
    old = of_kind[: max(0, len(of_kind) - keep)]
    for each in old:
        drop(lake, each)
    return old


def show_savepoint(lake: Lake, pipeline: str, name: str, say: Say, *, as_json: bool) -> None:
    """Shows what a savepoint holds.

    Raises:
        SavepointError: if there is none of this name.
        CheckpointError: if it cannot be gone back to; what it holds was shown before.
    """
    found = savepoint_named(lake, pipeline, name)
    say(found.model_dump_json(indent=2) if as_json else "\n".join(description_lines(found)))
    refuse_changed_files(lake, found)
    refuse_missing_files(lake, found)
    if not as_json:
        say("restore      yes, all that it needs is there")


def drop_savepoint(lake: Lake, pipeline: str, name: str, say: Say) -> None:
    """Removes a savepoint.

    Raises:
        SavepointError: if there is none of this name.
    """
    found = savepoint_named(lake, pipeline, name)
    drop(lake, found)
    say(f"{pipeline}: savepoint `{name}` is removed. What only it needed goes with the next `{command('maintain')}`.")
