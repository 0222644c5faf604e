"""Who writes a result: one pipeline, from its first start on, also while the table has no rows yet.

`_checkpoints/_owners/<table>/<number>.json`, numbered records: of two pipelines that begin at the same moment exactly
one gets the table. A reset that empties it gives it back.
"""

import json
from datetime import UTC, datetime, timedelta

from spark_jobs.lake.checkpoints.epochs import current_epoch, running_definitions
from spark_jobs.lake.checkpoints.spark_log import query_id
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import find_stamp
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError
from spark_jobs.lake.tables.opening import exists
from spark_jobs.spec import Definition

FOLDER = "_checkpoints/_owners"

_STARTING = timedelta(minutes=2)
"""So long after it took a table a pipeline may be about to begin its first epoch."""


class Owner(PersistedValue):
    """Whose a table is.

    Attributes:
        pipeline: that writes it; None: nobody's.
        since: when that became so.
    """

    pipeline: str | None
    since: datetime


def records(lake: Lake, table: str) -> Records[Owner]:
    """The owners of a table; the newest counts."""
    return Records(lake, f"{FOLDER}/{table}", Owner)


def refuse_others(lake: Lake, definition: Definition) -> None:
    """Refuses a pipeline whose result is another's.

    Raises:
        CheckpointError: if it is.
    """
    if (other := other_owner(lake, definition.sink.table, definition.name)) is not None:
        raise _refused(definition, other)


def own(lake: Lake, definition: Definition) -> None:
    """Takes the result of a pipeline for it, before its epoch is made; whoever owns it already keeps it.

    One that took it and never began an epoch, because it died, keeps nobody out for long. Should it go on after all,
    one of the two sees the other: it looks for another owner after its epoch was made (`refuse_lost`), and who took
    the table from it looks for that epoch afterwards, here.

    Raises:
        CheckpointError: if it is another's.
    """
    kept = records(lake, definition.sink.table)
    number, owner = kept.newest()
    if owner is not None and owner.pipeline == definition.name:
        return
    refuse_others(lake, definition)
    try:
        kept.append(number + 1, Owner(pipeline=definition.name, since=datetime.now(UTC)))
    except RecordTakenError:
        refuse_lost(lake, definition)  # of two starts of one pipeline either may have been first
        return
    if owner is not None and owner.pipeline is not None and _writes(lake, owner.pipeline, definition.sink.table):
        give_back(lake, definition.sink.table, definition.name, to=owner.pipeline)
        raise _refused(definition, owner.pipeline)


def refuse_lost(lake: Lake, definition: Definition) -> None:
    """Refuses a pipeline that does not own its result (any more).

    Raises:
        CheckpointError: if it does not.
    """
    _, owner = records(lake, definition.sink.table).newest()
    if owner is None or owner.pipeline is None:
        raise CheckpointError(
            f"pipeline `{definition.name}`: a reset has given its table {definition.sink.table} back meanwhile. "
            f"Nothing was started or written. Start it again when that has ended: {command('run', definition.name)}"
        )
    if owner.pipeline != definition.name:
        raise _refused(definition, owner.pipeline)


def give_back(lake: Lake, table: str, pipeline: str, *, to: str | None = None) -> None:
    """Gives a table back that a pipeline owns: any other may have it from now on, or the one that is named."""
    kept = records(lake, table)
    number, owner = kept.newest()
    if owner is None or owner.pipeline != pipeline:
        return
    try:
        kept.append(number + 1, Owner(pipeline=to, since=datetime.now(UTC)))
    except RecordTakenError:
        return  # another reset has, or somebody has taken it since


def other_owner(lake: Lake, table: str, name: str) -> str | None:
    """Whose a table is, if it is not the pipeline's of this name; None: it is nobody else's."""
    number, owner = records(lake, table).newest()
    if owner is not None:
        if owner.pipeline is None or owner.pipeline == name:
            return None
        begins = datetime.now(UTC) - owner.since < _STARTING
        return owner.pipeline if begins or _writes(lake, owner.pipeline, table) else None
    if number:
        return None
    found = _by_checkpoints(lake, table)
    return None if found == name else found


def _by_checkpoints(lake: Lake, table: str) -> str | None:
    """Whose a table is in a lake from before there were owners: the pipeline's whose checkpoint writes to it.

    Of several the one that has written last: one of them can go on, so that the others can be told to leave.
    """
    writing = sorted(
        name
        for name, (epoch, its) in running_definitions(lake).items()
        if its.sink.table == table and query_id(lake, epoch.folder) is not None
    )
    if len(writing) > 1 and exists(lake, table):
        last = find_stamp(lake, table, lambda stamp: stamp.role != "heartbeat" and stamp.pipeline in writing)
        return last.pipeline if last is not None else writing[0]
    return writing[0] if writing else None


def _writes(lake: Lake, pipeline: str, table: str) -> bool:
    """Whether the current epoch of a pipeline has a table for its result: one that left it may have died before it
    gave it back."""
    epoch = current_epoch(lake, pipeline)
    return epoch is not None and json.loads(epoch.definition)["sink"]["table"] == table


def _refused(definition: Definition, other: str) -> CheckpointError:
    table = definition.sink.table
    return CheckpointError(
        f"pipeline `{definition.name}`: its table {table} is written by `{other}`: each result would be in it twice. "
        f"Nothing was started or written. Give it another sink. If `{other}` is its old name, give it that back. Or "
        f"empty the table, which takes its rows away and makes it nobody's, also where the file of `{other}` is gone: "
        f"{command('reset', other, '--empty-tables')}"
    )
