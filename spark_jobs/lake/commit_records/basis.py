"""What a plan rests on, and how each commit that carries it out is held against that.

A plan of a backfill, a repair or a rebuild is made, shown, and carried out minutes later. Meanwhile another command may
have begun a new epoch, revised the same table or replaced it. Transaction ids in the log of each table of a pipeline
tell, and each commit carries those that it rests on (`conditional.py`).

- `<pipeline>/<table>/revisions/<epoch>` is moved on by each revision of the epoch's rows. Who ends the epoch leaves a
  tombstone in it.
- `<pipeline>/<table>/epochs` is moved on by who ends an epoch. As long as nobody else has moved it on, the tables are
  his.
- `<pipeline>/<table>/counted/<epoch>`, in a table of events beside a result, is moved on by who takes such events out
  of the result: to the number of revisions that there will be then. A mark that an event is counted is made only where
  as many revisions were known, so that a slow one, of a revision before, is refused.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from deltalake import DeltaTable, Transaction
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.commit_records.conditional import note
from spark_jobs.lake.commit_records.revisions import revisions
from spark_jobs.lake.errors import MissingTableError, TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import open_table

LAST_TXN_VERSION = 2**63 - 1
"""Of a transaction id under which nothing can be committed any more."""


class OutdatedPlanError(TidemarkError):
    """What a plan was made for is not there any more: its tables are another epoch's, or are other ones."""

    exit_code = 75


class SupersededError(Exception):
    """Another run has revised the table since it was looked at: a difference is not the difference any more."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


class TableState(BaseModel):
    """A table as a plan has found it.

    Attributes:
        id: of the Delta table, which another one of its name has not.
        revisions: how far its rows had been revised in this epoch; None: never.
        epochs: how often an epoch of the pipeline had been ended in it; None: never.
        counted: after how many revisions of the result its events may be marked as counted; None: after any number.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    revisions: int | None = None
    epochs: int | None = None
    counted: int | None = None


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
    tables: Mapping[str, TableState]

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
            found[table] = TableState(
                id=str(opened.metadata().id),
                revisions=opened.transaction_version(revisions_id(pipeline, table, epoch)),
                epochs=opened.transaction_version(epochs_id(pipeline, table)),
                counted=opened.transaction_version(counted_id(pipeline, table, epoch)),
            )
        return cls(pipeline=pipeline, epoch=epoch, tables=found)

    def is_ending(self, epoch: Epoch, result: str) -> bool:
        """Whether a reset or a rebuild has ended the epoch, and has not begun the next one.

        Args:
            epoch: whose number this is of.
            result: the table that was claimed for it.
        """
        seen = self.tables.get(result)
        overtaken = seen is not None and is_overtaken(epoch, seen.epochs)
        return overtaken or any(seen.revisions == LAST_TXN_VERSION for seen in self.tables.values())

    def refuse_outdated(self, lake: Lake) -> None:
        """Looks whether all is as the plan has found it; only revisions of the epoch's rows may have come since.

        Raises:
            OutdatedPlanError: if it is not.
        """
        current = current_epoch(lake, self.pipeline)
        if current is None or current.number != self.epoch:
            raise self._outdated(f"epoch {self.epoch} of it is over ({_called(current)} now)")
        for table in self.tables:
            self.refuse_other(table, _opened(lake, table))

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
        self.refuse_other(table, opened)
        writer, seen = revisions_id(self.pipeline, table, self.epoch), self.tables.get(table)
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

    def is_behind(self, result: str) -> bool:
        """Whether events beside a result may be marked as counted only after one more revision of it."""
        done = self._revised(result)
        return any(seen.counted is not None and seen.counted > done for seen in self.tables.values())

    def marking(self, table: str, opened: DeltaTable, result: str) -> list[Transaction]:
        """What a commit carries that marks events as counted, so that it is made only while they are.

        Args:
            table: of events beside a result.
            opened: that table, as the commit finds it.
            result: the table that counts them.

        Raises:
            OutdatedPlanError: if the epoch is over, the table another one, or the result does not count them any more.
        """
        self.refuse_other(table, opened)
        writer = counted_id(self.pipeline, table, self.epoch)
        known = opened.transaction_version(writer) or 0
        if known == LAST_TXN_VERSION:
            raise self._outdated(f"epoch {self.epoch} of it has been ended")
        if known > self._revised(result):
            raise OutdatedPlanError(
                f"pipeline `{self.pipeline}`: a backfill --as-streamed has taken late or replayed events out of "
                f"{result} since this run counted them. What this run changed there was committed before that, and "
                f"none of its events are marked as counted in {table}: all of them are open. To count them after "
                "all, run the same command again when the other one has ended; to leave them out, do nothing."
            )
        return [Transaction(writer, known)]

    def take_out(self, lake: Lake, table: str, result: str) -> None:
        """Says that the next revision of a result does not count the events beside it, before these are looked at.

        From then on nobody marks them as counted who has not seen that revision.

        Args:
            lake: where.
            table: of events beside the result, which exists.
            result: the table that counts them.

        Raises:
            OutdatedPlanError: if the epoch is over, or the table another one.
            ConflictError: if others commit to the table again and again.
        """
        writer = counted_id(self.pipeline, table, self.epoch)

        def said(opened: DeltaTable) -> list[Transaction]:
            self.refuse_other(table, opened)
            known = opened.transaction_version(writer) or 0
            if known == LAST_TXN_VERSION:
                raise self._outdated(f"epoch {self.epoch} of it has been ended")
            return [Transaction(writer, max(known, self._revised(result) + 1))]

        note(lake, table, said, f"pipeline `{self.pipeline}`")

    def _revised(self, result: str) -> int:
        """How many revisions of it are known."""
        seen = self.tables.get(result)
        return 0 if seen is None or seen.revisions is None else seen.revisions + 1

    def refuse_other(self, table: str, opened: DeltaTable | None) -> None:
        """Refuses a table that is another one than the plan has found, or that a reset or a rebuild has taken since.

        Args:
            table: its name; one that was not there when the plan was made is not refused.
            opened: it, as it is now; None: it is not there.

        Raises:
            OutdatedPlanError: if it is.
        """
        seen = self.tables.get(table)
        if seen is None:
            return
        if opened is None or str(opened.metadata().id) != seen.id:
            what = "was removed" if opened is None else "was removed and made anew"
            raise self._outdated(f"table {table} {what}")
        if opened.transaction_version(epochs_id(self.pipeline, table)) != seen.epochs:
            raise self._outdated(f"a reset or a rebuild has taken {table} since")

    def _outdated(self, what: str) -> OutdatedPlanError:
        return OutdatedPlanError(
            f"pipeline `{self.pipeline}`: what was planned does not hold any more: {what}. Nothing more was written "
            "here. Run the same command again: it makes its plan from what is there now."
        )


def is_overtaken(epoch: Epoch, claimed: int | None) -> bool:
    """Whether another reset or rebuild has claimed the result after who began this epoch.

    Args:
        epoch: as it was begun.
        claimed: how far `epochs_id` has come in its result.
    """
    return epoch.claimed is not None and claimed is not None and claimed > epoch.claimed


def revisions_id(pipeline: str, table: str, epoch: int) -> str:
    """The transaction id by which revisions of an epoch's rows are counted."""
    return f"{pipeline}/{table}/revisions/{epoch}"


def epochs_id(pipeline: str, table: str) -> str:
    """The transaction id by which ends of epochs are counted."""
    return f"{pipeline}/{table}/epochs"


def counted_id(pipeline: str, table: str, epoch: int) -> str:
    """The transaction id that says after how many revisions events may be marked as counted."""
    return f"{pipeline}/{table}/counted/{epoch}"


def _opened(lake: Lake, table: str) -> DeltaTable | None:
    try:
        return open_table(lake, table)
    except MissingTableError:
        return None


def _called(epoch: Epoch | None) -> str:
    return "none" if epoch is None else f"epoch {epoch.number}"
