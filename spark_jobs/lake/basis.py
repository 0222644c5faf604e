"""What a plan rests on, and how each commit that carries it out is held against that.

A plan of a backfill, a repair or a rebuild is made, shown, and carried out minutes later. Meanwhile another command may
have begun a new epoch, revised the same table or replaced it. Two transaction ids in the log of each table of a
pipeline tell. A commit that carries one of them conflicts with every commit that has moved it on since the table was
opened: so what is checked then is still true when the commit has its place in the log (docs/decisions/0028).

- `<pipeline>/<table>/revisions/<epoch>` is moved on by each revision of the epoch's rows. Who ends the epoch leaves a
  tombstone in it.
- `<pipeline>/<table>/epochs` is moved on by who ends an epoch. As long as nobody else has moved it on, the tables are
  his.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.checkpoints import Epoch, current_epoch
from spark_jobs.lake.durable import force_commit
from spark_jobs.lake.errors import CheckpointError, ConflictError, MissingTableError, TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.revisions import revisions
from spark_jobs.lake.spark_log import query_id
from spark_jobs.lake.tables import open_table

LAST_TXN_VERSION = 2**63 - 1
"""Of a transaction id under which nothing can be committed any more."""

_TRIES = 20


class OutdatedPlanError(TidemarkError):
    """What a plan was made for is not there any more: its tables are another epoch's, or are other ones."""

    exit_code = 75


class SupersededError(Exception):
    """Another run has revised the table since it was looked at: a difference is not the difference any more."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


class Seen(BaseModel):
    """A table as a plan has found it.

    Attributes:
        id: of the Delta table, which another one of its name has not.
        revisions: how far its rows had been revised in this epoch; None: never.
        epochs: how often an epoch of the pipeline had been ended in it; None: never.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    revisions: int | None = None
    epochs: int | None = None


class Basis(BaseModel):
    """What a plan rests on: an epoch of a pipeline, and the tables that it reads and writes.

    Attributes:
        pipeline: its name.
        epoch: of its checkpoint.
        tables: table -> how it was found; one that is not there is not among them.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    epoch: int
    tables: Mapping[str, Seen]

    @classmethod
    def of(cls, lake: Lake, pipeline: str, epoch: int, tables: Iterable[str]) -> Self:
        """How things are now.

        Args:
            lake: where.
            pipeline: its name.
            epoch: of its checkpoint.
            tables: that a plan reads or writes.
        """
        found = {}
        for table in dict.fromkeys(tables):
            try:
                opened = open_table(lake, table)
            except MissingTableError:
                continue
            found[table] = Seen(
                id=str(opened.metadata().id),
                revisions=opened.transaction_version(_revisions(pipeline, table, epoch)),
                epochs=opened.transaction_version(_epochs(pipeline, table)),
            )
        return cls(pipeline=pipeline, epoch=epoch, tables=found)

    @property
    def is_ending(self) -> bool:
        """Whether a reset or a rebuild has ended the epoch, and has not begun the next one."""
        return any(seen.revisions == LAST_TXN_VERSION for seen in self.tables.values())

    def refuse_outdated(self, lake: Lake) -> None:
        """Looks whether all is as the plan has found it; only revisions of the epoch's rows may have come since.

        Raises:
            OutdatedPlanError: if it is not.
        """
        current = current_epoch(lake, self.pipeline)
        if current is None or current.number != self.epoch:
            raise self._outdated(f"epoch {self.epoch} of it is over ({_called(current)} now)")
        for table in self.tables:
            self._refuse_other(table, _opened(lake, table))

    def revision(self, lake: Lake, table: str, opened: DeltaTable) -> tuple[str, int]:
        """The transaction under which the next revision of a table is committed, and only over `opened`.

        Args:
            lake: where.
            table: which the plan knows.
            opened: the table as the revision finds it.

        Raises:
            OutdatedPlanError: if the epoch is over, or the table another one.
            SupersededError: if its rows have been revised since the plan was made.
        """
        self._refuse_other(table, opened)
        writer, seen = _revisions(self.pipeline, table, self.epoch), self.tables.get(table)
        known, expected = opened.transaction_version(writer), seen.revisions if seen is not None else None
        if known == LAST_TXN_VERSION:
            raise self._outdated(f"epoch {self.epoch} of it has been ended")
        if known != expected:
            made = revisions(lake, table, self.pipeline, self.epoch)
            raise SupersededError(made[-1][1].run if made else "one that is unknown")
        return writer, 0 if known is None else known + 1

    def after(self, table: str, number: int) -> Self:
        """The same once a revision of a table has been committed under this number."""
        seen = self.tables[table].model_copy(update={"revisions": number})
        return self.model_copy(update={"tables": {**self.tables, table: seen}})

    def _refuse_other(self, table: str, opened: DeltaTable | None) -> None:
        seen = self.tables.get(table)
        if seen is None:
            return
        if opened is None or str(opened.metadata().id) != seen.id:
            what = "was removed" if opened is None else "was removed and made anew"
            raise self._outdated(f"table {table} {what}")
        if opened.transaction_version(_epochs(self.pipeline, table)) != seen.epochs:
            raise self._outdated(f"a reset or a rebuild has taken {table} since")

    def _outdated(self, what: str) -> OutdatedPlanError:
        return OutdatedPlanError(
            f"pipeline `{self.pipeline}`: what was planned does not hold any more: {what}. Nothing more was written "
            "here. Run the same command again: it makes its plan from what is there now."
        )


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
        writer, number = _epochs(self.epoch.pipeline, table), self.numbers[table]
        if opened.transaction_version(writer) != number:
            raise OutdatedPlanError(
                f"pipeline `{self.epoch.pipeline}`: another reset or rebuild has taken {table} meanwhile. Nothing more "
                "was written here. See what is there when it has ended: tidemark ledger "
                f"{self.epoch.pipeline}"
            )
        return [Transaction(writer, number)]

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
    known = query_id(lake, epoch.folder)
    claim = Claim(lake, epoch, {table: _take(lake, epoch, table, known, basis) for table in sorted(tables)})
    # A stream that begins meanwhile makes its id first and looks for an end of its epoch then: it finds this one, or is
    # found here.
    if (query := query_id(lake, epoch.folder)) != known:
        claim = Claim(lake, epoch, {table: _take(lake, epoch, table, query, None) for table in sorted(claim.numbers)})
    current = current_epoch(lake, epoch.pipeline)
    if current is not None and current.number > epoch.number:
        raise OutdatedPlanError(
            f"pipeline `{epoch.pipeline}`: another command has begun epoch {current.number} meanwhile. Nothing was "
            "removed or replaced here. If that is to be ended, too, run the same command again."
        )
    return claim


def refuse_ended(lake: Lake, epoch: Epoch, table: str) -> None:
    """Refuses to write in an epoch whose end has begun.

    Args:
        lake: where.
        epoch: of a pipeline.
        table: its result, which exists.

    Raises:
        CheckpointError: if a reset or a rebuild has ended it in the table.
    """
    ended = open_table(lake, table).transaction_version(_revisions(epoch.pipeline, table, epoch.number))
    if ended == LAST_TXN_VERSION:
        raise CheckpointError(
            f"pipeline `{epoch.pipeline}`: a reset or a rebuild has ended epoch {epoch.number}, and not begun the "
            "next one yet. Nothing was started or written. Start it again when that has ended. If it was interrupted, "
            f"repeat it as it was: tidemark rebuild {epoch.pipeline}, or tidemark reset {epoch.pipeline} with "
            "--keep-tables or --empty-tables, which takes away the rows"
        )


def _take(lake: Lake, epoch: Epoch, table: str, query: str | None, basis: Basis | None) -> int:
    name = epoch.pipeline
    for _ in range(_TRIES):
        opened = open_table(lake, table, to_write=True)
        if basis is not None:
            basis._refuse_other(table, opened)
        known = opened.transaction_version(_epochs(name, table))
        number = 0 if known is None else known + 1
        over = [_revisions(name, table, epoch.number)]
        over += [f"{name}/{table}/{query}/{epoch.number}"] if query is not None else []
        ended = [Transaction(each, LAST_TXN_VERSION) for each in over]
        nothing = opened.to_pyarrow_dataset().schema.empty_table()
        try:
            write_deltalake(
                opened,
                nothing,
                mode="append",
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(_epochs(name, table), number), *ended]
                ),
            )
        except CommitFailedError:
            continue
        force_commit(lake, table, opened.version(), data=False)
        return number
    raise ConflictError(
        f"pipeline `{name}`: others commit to {table} at the same moments, {_TRIES} times in a row. Its rows are as "
        "they were. Stop its stream, then run the same command again."
    )


def _revisions(pipeline: str, table: str, epoch: int) -> str:
    return f"{pipeline}/{table}/revisions/{epoch}"


def _epochs(pipeline: str, table: str) -> str:
    return f"{pipeline}/{table}/epochs"


def _opened(lake: Lake, table: str) -> DeltaTable | None:
    try:
        return open_table(lake, table)
    except MissingTableError:
        return None


def _called(epoch: Epoch | None) -> str:
    return "none" if epoch is None else f"epoch {epoch.number}"
