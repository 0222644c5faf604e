"""A new epoch for a pipeline: its checkpoint starts over, and nothing of the old one can be written any more."""

import json
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Transaction

from spark_jobs.lake.checkpoints.claims import Claim, take_over
from spark_jobs.lake.checkpoints.epochs import Epoch, begin_epoch, begin_next_epoch, current_epoch, delete_checkpoint
from spark_jobs.lake.checkpoints.ownership import give_back, other_owner, refuse_others
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.commit_records.history import find_stamp
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import exists, open_table, row_count
from spark_jobs.lake.tables.watermarks import published, withdraw
from spark_jobs.plan import logical as plan
from spark_jobs.plan.tables import all_beside
from spark_jobs.spec import Definition, Pipeline

EMPTIED = "tidemark"
"""In the `commitInfo` of the commit by which a reset emptied a table: `reset`."""


@dataclass(frozen=True)
class Reset:
    """What a reset did.

    Attributes:
        before: the epoch that is over.
        after: the epoch that the next start runs in.
        tables: the pipeline's tables.
        emptied: whether their rows were removed.
    """

    before: Epoch
    after: Epoch
    tables: tuple[str, ...]
    emptied: bool


def tables_of(definition: Definition) -> tuple[str, ...]:
    """Every table that a pipeline writes, the result last."""
    return tuple(table.name for table in plan.build(definition).tables)


def reset(lake: Lake, definition: Definition, *, empty_tables: bool) -> Reset:
    """Begins a new epoch with the definition as it is now.

    The old epoch's transaction id gets a tombstone in each table, so that a driver of the old epoch that still runs
    can commit nothing: its commit in flight conflicts, later ones are skipped.

    Args:
        lake: where.
        definition: of the pipeline.
        empty_tables: remove the rows of its tables; else they stay beside those of the new epoch.

    Raises:
        MissingTableError: if the pipeline has never run on this lake.
        OutdatedPlanError: if another reset or rebuild comes in between.
    """
    before, newest = current_epoch(lake, definition.name), newest_epoch(lake, definition)
    if before is None and newest:
        # All of its checkpoints are gone, and its tables know of them: there is nothing to bury.
        before = begin_epoch(lake, definition, newest)
    if before is None:
        raise MissingTableError(
            f"pipeline `{definition.name}` has not run on {lake.uri}: there is nothing to reset. "
            f"Start it: {command('run', definition.name)}"
        )
    tables = tables_of_both(lake, before, definition)
    # In this order: a reset that is interrupted leaves the old epoch, which can commit nothing, and can be repeated.
    claim = take_over(lake, before, tables)
    for table in tables:
        if empty_tables:
            empty(table, claim)
        # The new epoch must not outlive what makes room for it.
        last = open_table(lake, table).version()
        for version in range(max(0, last - 1), last + 1):
            force_commit(lake, table, version, data=False)
    # Beyond every epoch that a table has batches of: an older copy of the checkpoints does not know all of them.
    number = max(before.number, newest) + 1
    if isinstance(definition, Pipeline) and (definition.watermark or definition.name in published(lake)):
        withdraw(lake, pipeline=definition.name, table=definition.sink.table, epoch=number)
    claim.refuse_lost()
    after = begin_next_epoch(
        lake, definition, number, tables_emptied=empty_tables, claimed=claim.numbers.get(definition.sink.table)
    )
    delete_checkpoint(lake, before)
    old = _sink_of(before)
    for table in {old, definition.sink.table} if empty_tables else {old} - {definition.sink.table}:
        give_back(lake, table, definition.name)
    return Reset(before=before, after=after, tables=tables, emptied=empty_tables)


def empty(table: str, claim: Claim) -> None:
    """Removes the rows of a table that is claimed, in a commit that tells its readers."""

    def write(opened: DeltaTable, held: list[Transaction]) -> None:
        opened.delete(commit_properties=CommitProperties(custom_metadata={EMPTIED: "reset"}, app_transactions=held))

    claim.commit(table, write)


def newest_epoch(lake: Lake, definition: Definition) -> int:
    """The newest epoch that the result table has a batch of; 0: none."""
    table = definition.sink.table
    if not exists(lake, table):
        return 0
    found = find_stamp(lake, table, lambda stamp: (stamp.pipeline, stamp.role) == (definition.name, "result"))
    return found.epoch if found is not None else 0


def tables_of_both(lake: Lake, before: Epoch, definition: Definition) -> tuple[str, ...]:
    """What the definition writes now, and what it wrote in the epoch that is over, unless that is another's by now.

    Raises:
        CheckpointError: if what it writes now is another's.
    """
    old = _sink_of(before)
    refuse_others(lake, definition)
    names = list(tables_of(definition))
    for table in names:
        newest = find_stamp(lake, table, lambda stamp: stamp.role != "heartbeat") if exists(lake, table) else None
        if newest is not None and newest.pipeline != definition.name:
            raise CheckpointError(
                f"pipeline `{definition.name}`: its table {table} is written by `{newest.pipeline}`. Nothing was "
                f"reset. Give the pipeline another sink, or make the table nobody's: "
                f"{command('reset', newest.pipeline, '--empty-tables')}"
            )
    left = all_beside(old) if other_owner(lake, old, definition.name) is None else ()
    for table in left:
        if table not in names and exists(lake, table):
            newest = find_stamp(lake, table, lambda stamp: stamp.role != "heartbeat")
            if newest is not None and newest.pipeline == definition.name:
                names.append(table)
    return tuple(name for name in names if exists(lake, name))


def _sink_of(epoch: Epoch) -> str:
    return str(json.loads(epoch.definition)["sink"]["table"])


def refuse_tables_of_others(lake: Lake, definition: Definition) -> None:
    """Refuses to begin on a table that is another pipeline's, or holds its rows: each event would be in it twice.

    Raises:
        CheckpointError: if there is one. So it is where a pipeline was renamed: its new name has no checkpoint.
    """
    refuse_others(lake, definition)
    for table in tables_of(definition):
        if not exists(lake, table):
            continue
        newest = find_stamp(lake, table, lambda stamp: stamp.role != "heartbeat")
        if newest is not None and newest.pipeline != definition.name and row_count(open_table(lake, table)):
            raise CheckpointError(
                f"pipeline `{definition.name}`: its table {table} holds rows of `{newest.pipeline}`. Nothing was "
                "started or written. If it was renamed, give it its old name back; else give it another sink, or take "
                f"the rows away: {command('reset', newest.pipeline, '--empty-tables')}"
            )
