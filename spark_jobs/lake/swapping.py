"""The results of a changed definition in place of those before: each table in one commit, then a new epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spark_jobs.lake.basis import Basis
from spark_jobs.lake.checkpoints import Epoch, begin_next_epoch, delete_checkpoint
from spark_jobs.lake.claims import Claim, take_over
from spark_jobs.lake.durable import force_commit
from spark_jobs.lake.location import Lake
from spark_jobs.lake.reset import EMPTIED, empty, tables_of_both
from spark_jobs.lake.revisions import Revision
from spark_jobs.lake.tables import exists, open_table, table_folders
from spark_jobs.lake.watermarks import withdraw
from spark_jobs.plan.tables import is_aside, result_of
from spark_jobs.spec import Definition


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
    epoch = begin_next_epoch(lake, definition, number, cut_us=cut_us)
    delete_checkpoint(lake, before)
    for content in contents:
        remove_aside(lake, content.aside)
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
        )

    claim.commit(content.table, write)
    _force_newest(lake, content.table)


def _force_newest(lake: Lake, table: str) -> None:
    force_commit(lake, table, open_table(lake, table).version())


def built_beside(lake: Lake, table: str) -> tuple[str, ...]:
    """The tables that were built aside for a table, by whatever run."""
    mine = (name for name in table_folders(lake) if is_aside(name) and result_of(name) == result_of(table))
    return tuple(name for name in mine if exists(lake, name))


def remove_aside(lake: Lake, table: str) -> None:
    """Removes a table that was built aside."""
    if not exists(lake, table):
        return
    paths = [item["path"] for item in lake.store.list(f"{table.replace('.', '/', 1)}/").collect()]
    for start in range(0, len(paths), 1000):
        lake.store.delete(paths[start : start + 1000])
