"""The results of a changed definition in place of those before: each table in one commit, then a new epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spark_jobs.lake.checkpoints.claims import Claim, take_over
from spark_jobs.lake.checkpoints.epochs import Epoch, begin_next_epoch, delete_checkpoint
from spark_jobs.lake.checkpoints.reset import EMPTIED, empty, tables_of, tables_of_both
from spark_jobs.lake.commit_records.basis import Basis
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.commit_records.revisions import Revision, revisions
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.appends import COMPRESSED
from spark_jobs.lake.tables.opening import exists, open_table, table_folders
from spark_jobs.lake.tables.watermarks import withdraw
from spark_jobs.plan.tables import aside, is_aside, result_of
from spark_jobs.spec import Definition

if TYPE_CHECKING:
    from obstore import ObjectMeta


@dataclass(frozen=True)
class Content:
    """What a table is to have.

    Attributes:
        table: such as `gold.top_products`.
        aside: the table that has it already.
        revision: what the commit says of itself.
    """

    table: str
    aside: str
    revision: Revision


def swap(
    lake: Lake,
    definition: Definition,
    before: Epoch,
    number: int,
    contents: Sequence[Content],
    *,
    cut_us: int,
    basis: Basis,
) -> Epoch:
    """Ends an epoch, gives its tables their new content and begins the next one at a cut.

    In this order: a swap that is interrupted leaves the old epoch, which can commit nothing, and can be repeated.
    Readers of a table see its old rows until the commit that brings the new ones.

    Args:
        lake: where.
        definition: as it is now.
        before: the epoch that ends.
        number: of the one that begins.
        contents: of the tables that have new rows, the result last; the rows of the others are removed.
        cut_us: as `Epoch.cut_us`.
        basis: what was found when the swap was planned.

    Returns:
        The epoch that has begun.

    Raises:
        OutdatedPlanError: if another reset or rebuild has come in between.
    """
    swapped = {content.table for content in contents}
    tables = tables_of_both(lake, before, definition)
    claim = take_over(lake, before, tables, basis=basis)
    for table in (name for name in tables if name not in swapped):
        empty(table, claim)
        _force_newest(lake, table)
    for content in contents:
        _overwrite(lake, content, claim)
    withdraw(lake, pipeline=definition.name, table=definition.sink.table, epoch=number)
    claim.refuse_lost()
    epoch = begin_next_epoch(lake, definition, number, cut_us=cut_us, claimed=claim.numbers.get(definition.sink.table))
    delete_checkpoint(lake, before)
    for content in contents:
        remove_table(lake, content.aside)
    return epoch


def _overwrite(lake: Lake, content: Content, claim: Claim) -> None:
    new = open_table(lake, content.aside).to_pyarrow_dataset()
    # Who reads the table as a stream has counted rows that go.
    metadata = {"userMetadata": content.revision.encode(), EMPTIED: "reset"}

    def write(opened: DeltaTable, held: list[Transaction]) -> None:
        write_deltalake(
            opened,
            # As a stream of batches: no table need fit in memory.
            new.scanner(batch_size=65_536, batch_readahead=2, fragment_readahead=1).to_reader(),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=CommitProperties(custom_metadata=metadata, app_transactions=held),
            writer_properties=COMPRESSED,
        )

    claim.commit(content.table, write)
    _force_newest(lake, content.table)


def _force_newest(lake: Lake, table: str) -> None:
    force_commit(lake, table, open_table(lake, table).version())


def built_beside(lake: Lake, table: str) -> tuple[str, ...]:
    """The tables that were built aside for a table, by whatever run."""
    mine = (name for name in table_folders(lake) if is_aside(name) and result_of(name) == result_of(table))
    return tuple(name for name in mine if exists(lake, name))


def is_abandoned(lake: Lake, table: str, *, keep: timedelta, now: datetime) -> bool:
    """Whether a table was built aside, and nothing has been written to it for so long that no run works on it.

    Args:
        lake: where.
        table: any.
        keep: for how long.
        now: the time.
    """
    written = [item["last_modified"] for item in _objects(lake, table)] if is_aside(table) else []
    return bool(written) and max(written) < now - keep


def remove_built(lake: Lake, definition: Definition, epoch: int, *, keep: timedelta) -> None:
    """Removes what was built aside for a pipeline by runs that are over.

    What a run has built that waits for an answer, or still computes, stays until it is abandoned.

    Args:
        lake: where.
        definition: of the pipeline.
        epoch: that has begun: the rows of the runs that it began with are in the tables, whole or as far as these runs
            came.
        keep: as `is_abandoned`.
    """
    tables = [name for name in tables_of(definition) if exists(lake, name)]
    over = {each.run for table in tables for _, each in revisions(lake, table, definition.name, epoch)}
    for table in tables:
        for built in built_beside(lake, table):
            is_over = built in {aside(table, run) for run in over}
            if is_over or is_abandoned(lake, built, keep=keep, now=datetime.now(UTC)):
                remove_table(lake, built)


def remove_table(lake: Lake, table: str) -> tuple[int, int]:
    """Removes a table that only its pipeline knows; how many objects, and of how many bytes."""
    found = _objects(lake, table)
    # The commits last: as long as there is one, an interrupted removal is seen and finished. What else a log has makes
    # no table, and keeps one from being made.
    for step in range(3):
        paths = [item["path"] for item in found if _removed_in_step(item["path"]) == step]
        for start in range(0, len(paths), 1000):
            lake.store.delete(paths[start : start + 1000])
    return len(found), sum(item["size"] for item in found)


def _removed_in_step(path: str) -> int:
    return ("/_delta_log/" in path) + path.endswith(".json")


def _objects(lake: Lake, table: str) -> Sequence["ObjectMeta"]:
    return lake.store.list(f"{table.replace('.', '/', 1)}/").collect()
