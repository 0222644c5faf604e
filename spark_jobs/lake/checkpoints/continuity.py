"""Whether a checkpoint and the tables of its pipeline hold the same batches.

Each batch is in Spark's log of offsets before it runs, in the tables when it has been written, and in Spark's log of
commits after that. So the newest batch of the result table is the newest that Spark has finished, or the one after it.
"""

from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.checkpoints.rescaling import unfinished
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.lake.checkpoints.spark_log import newest_batch, query_id
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.durability import force_commit, torn_file
from spark_jobs.lake.commit_records.history import commit_at, find_stamp, latest_version
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import exists
from spark_jobs.spec import Definition


def restore_or_reset(pipeline: str) -> str:
    """What to do where a checkpoint and its tables do not fit."""
    return (
        "Bring back what is missing, as it was after the table's newest batch; or begin a new epoch, which reads the "
        f"source again from its start: `{command('reset', pipeline, '--empty-tables')}` computes the tables again "
        "(what the source does not hold any more is lost), `--keep-tables` keeps their rows (what it still holds comes "
        "twice)."
    )


def refuse_torn_commits(lake: Lake, definition: Definition, epoch: Epoch) -> None:
    """Refuses to take a batch for written of which a loss of power has left the commit, but not all of its rows.

    Only commits of batches that Spark has not noted as finished can be torn: before that they are forced to the disk. A
    torn one is a small merge; the data files of appends are on the disk before a commit names them.

    Raises:
        CheckpointError: if there is one; it says which file to remove, so that the batch is written again.
    """
    if lake.on_s3:
        return  # objects are whole
    newest = newest_batch(lake, epoch.folder, "commits")
    finished = (epoch.number, -1 if newest is None else newest)
    for table in tables_of(definition):
        for version in range(latest_version(lake, table) if exists(lake, table) else -1, -1, -1):
            stamp = decode(commit_at(lake, table, version) or {})
            mine = stamp is not None and stamp.pipeline == definition.name
            if mine and stamp is not None and (stamp.epoch, stamp.batch_id) <= finished:
                break
            if not mine:
                continue
            if torn := torn_file(lake, table, version):
                commit = f"{lake.table_path(table)}/_delta_log/{version:020d}.json"
                remedy = f"remove {commit}, then start again, and it is written again."
                if version < latest_version(lake, table):
                    remedy = (
                        f"others have written after it, so {commit} must stay: bring the file back, or begin a new "
                    )
                    remedy += f"epoch: `{command('reset', definition.name, '--keep-tables')}` or `--empty-tables`."
                raise CheckpointError(
                    f"pipeline `{definition.name}`: the newest commit of {table} is not whole, as after a loss of "
                    f"power: {torn}. Nothing was started or written. The batch that wrote it was not finished: {remedy}"
                )
            # A driver that was killed may have left it in memory only; from here on it counts.
            force_commit(lake, table, version)


def refuse_lost_batches(lake: Lake, definition: Definition, epoch: Epoch) -> None:
    """Refuses to start where the checkpoint has lost batches that the table has, or the table some that it had.

    Raises:
        CheckpointError: if the one does not fit the other, also because a rescale was interrupted.
    """
    table, name = definition.sink.table, definition.name
    # In this order: another driver may write a batch between two looks, which must not seem lost.
    finished = newest_batch(lake, epoch.folder, "commits")
    try:
        stamp = find_stamp(lake, table, lambda found: (found.pipeline, found.role) == (name, "result"))
    except MissingTableError:
        stamp = None
    written = stamp.batch_id if stamp is not None and stamp.epoch == epoch.number else None
    query, planned = query_id(lake, epoch.folder), newest_batch(lake, epoch.folder, "offsets")
    folder = lake.path(epoch.folder)
    lost: str | None = None
    if stamp is not None and stamp.epoch > epoch.number:
        known = lake.path("_checkpoints", name)
        lost = f"{table} has batches of epoch {stamp.epoch}, but the newest epoch in {known} is {epoch.number}"
    elif stamp is not None and written is not None and query is None:
        lost = f"{table} has batch {written} of epoch {epoch.number}, but its checkpoint {folder} is gone"
    elif stamp is not None and written is not None and stamp.query_id not in (None, query):
        lost = f"{table} has batch {written} of checkpoint {stamp.query_id}, but {folder} is checkpoint {query}"
    elif written is not None and (planned is None or planned < written):
        end = "has planned none" if planned is None else f"ends at batch {planned}: it is an older copy"
        lost = f"{table} has batch {written} of epoch {epoch.number}, but its checkpoint {folder} {end}"
    elif (begun := unfinished(lake, epoch, written)) is not None:
        lacks = "the ledger lacks that batch" if begun.repartitioned else "its state is not divided anew yet"
        raise CheckpointError(
            f"pipeline `{name}`: a rescale to {begun.partitions} partitions was interrupted in batch {begun.batch}: "
            f"{lacks}. Nothing was started or written. Finish it: {begun.finish(name)}"
        )
    elif finished is not None and (written is None or written < finished):
        end = "no batch" if written is None else f"no batch after {written}"
        lost = f"its checkpoint {folder} has finished batch {finished}, but {table} has {end} of epoch {epoch.number}"
    if lost is not None:
        remedy = restore_or_reset(name)
        raise CheckpointError(f"pipeline `{name}`: {lost}. Nothing was started or written. {remedy}")
