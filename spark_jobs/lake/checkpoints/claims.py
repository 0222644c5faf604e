"""The right to give the tables of a pipeline what its next epoch begins with; of several who want it one has it.

Whoever ends an epoch moves a transaction id on in each of its tables (`commit_records/basis.py`). As long as nobody
else has moved it on, the tables are theirs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deltalake import DeltaTable, Transaction

from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.checkpoints.spark_log import query_id
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.basis import (
    LAST_TXN_VERSION,
    Basis,
    OutdatedPlanError,
    counted_id,
    epochs_id,
    is_overtaken,
    revisions_id,
)
from spark_jobs.lake.commit_records.conditional import Write, commit, note
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import open_table


@dataclass(frozen=True)
class Claim:
    """The right to give the tables of an epoch that is over what the next one begins with.

    Attributes:
        lake: where.
        epoch: that is over.
        numbers: table -> under which it was claimed.
    """

    lake: Lake
    epoch: Epoch
    numbers: Mapping[str, int]

    def held(self, table: str, opened: DeltaTable) -> list[Transaction]:
        """What a commit to a table carries so that it is made only while nobody else has claimed the table.

        Raises:
            OutdatedPlanError: if somebody has.
        """
        writer, number = epochs_id(self.epoch.pipeline, table), self.numbers[table]
        if opened.transaction_version(writer) != number:
            raise OutdatedPlanError(
                f"pipeline `{self.epoch.pipeline}`: another reset or rebuild has taken {table} meanwhile. Nothing more "
                f"was written here. See what is there when it has ended: "
                f"{command('ledger', self.epoch.pipeline)}"
            )
        return [Transaction(writer, number)]

    def commit(self, table: str, write: Write) -> None:
        """Makes a commit to a table while nobody else has claimed it.

        Args:
            table: that is claimed.
            write: makes it, of the table and of what the commit carries; it is called again where another one, such as
                that of maintenance, comes in between.

        Raises:
            OutdatedPlanError: if somebody has claimed the table.
            ConflictError: if others commit to it again and again.
            LakeUnavailableError: if the table, or its store, refuses the commit.
        """
        commit(self.lake, table, lambda opened: self.held(table, opened), write, f"pipeline `{self.epoch.pipeline}`")

    def refuse_lost(self) -> None:
        """Looks whether all tables are still claimed.

        Raises:
            OutdatedPlanError: if one is not.
        """
        for table in self.numbers:
            self.held(table, open_table(self.lake, table))


def take_over(lake: Lake, epoch: Epoch, tables: Iterable[str], *, basis: Basis | None = None) -> Claim:
    """Ends an epoch in its tables: whatever would still be committed to one in its name conflicts, or is skipped.

    All who end an epoch go through its tables in one order, so that of two the second one is refused at the first
    table, where it has written nothing.

    Args:
        lake: where.
        epoch: to be ended.
        tables: of the pipeline, which exist.
        basis: what was found when it was planned; None: nothing was planned, it is done whatever others do.

    Raises:
        OutdatedPlanError: if things are not as they were planned, or another has begun the next epoch.
        ConflictError: if others commit to a table again and again.
    """
    if basis is not None:
        basis.refuse_outdated(lake)
    _refuse_overtaken(lake, epoch, "Nothing was written here.")
    known = query_id(lake, epoch.folder)
    claim = Claim(lake, epoch, {table: _take(lake, epoch, table, known, basis) for table in sorted(tables)})
    # A stream that begins meanwhile makes its id first and looks for an end of its epoch then: it finds this one, or is
    # found here.
    if (query := query_id(lake, epoch.folder)) != known:
        claim = Claim(lake, epoch, {table: _take(lake, epoch, table, query, None) for table in sorted(claim.numbers)})
    # Who begins the next one just now binds it to a claim that this one has overtaken: nothing is written in it.
    _refuse_overtaken(lake, epoch, "Its tables were claimed here at the same moment, so that it ends as well.")
    return claim


def _refuse_overtaken(lake: Lake, epoch: Epoch, what: str) -> None:
    current = current_epoch(lake, epoch.pipeline)
    if current is not None and current.number > epoch.number:
        raise OutdatedPlanError(
            f"pipeline `{epoch.pipeline}`: another command has begun epoch {current.number} meanwhile. {what} Nothing "
            "was removed or replaced here. If that is to be ended, too, run the same command again."
        )


def refuse_ended(lake: Lake, epoch: Epoch, table: str) -> None:
    """Refuses to write in an epoch whose end has begun.

    Args:
        lake: where.
        epoch: of a pipeline.
        table: its result, which exists.

    Raises:
        CheckpointError: if a reset or a rebuild has ended it in the table.
    """
    opened = open_table(lake, table)
    ended = opened.transaction_version(revisions_id(epoch.pipeline, table, epoch.number)) == LAST_TXN_VERSION
    if ended or is_overtaken(epoch, opened.transaction_version(epochs_id(epoch.pipeline, table))):
        raise CheckpointError(
            f"pipeline `{epoch.pipeline}`: a reset or a rebuild has ended epoch {epoch.number}, and not begun the "
            "next one yet. Nothing was started or written. Start it again when that has ended. If it was interrupted, "
            f"repeat it as it was: {command('rebuild', epoch.pipeline)}, or "
            f"{command('reset', epoch.pipeline, '--keep-tables')} (or --empty-tables, which takes away the rows)"
        )


def _take(lake: Lake, epoch: Epoch, table: str, query: str | None, basis: Basis | None) -> int:
    name, number = epoch.pipeline, 0

    def taking(opened: DeltaTable) -> list[Transaction]:
        nonlocal number
        if basis is not None:
            basis.refuse_other(table, opened)
        known = opened.transaction_version(epochs_id(name, table))
        number = 0 if known is None else known + 1
        over = [revisions_id(name, table, epoch.number), counted_id(name, table, epoch.number)]
        over += [f"{name}/{table}/{query}/{epoch.number}"] if query is not None else []
        return [Transaction(epochs_id(name, table), number), *(Transaction(each, LAST_TXN_VERSION) for each in over)]

    note(lake, table, taking, f"pipeline `{name}`")
    return number
