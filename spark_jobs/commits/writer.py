"""Idempotent commits: each table of a batch gets its rows exactly once, and a commit that was skipped is noticed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark_jobs.commits.changes import Append, Change, Upsert
from spark_jobs.commits.large import LargeCommits
from spark_jobs.commits.merging import CommitId
from spark_jobs.commits.small import SmallCommits
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger_compaction import compact_ledger_now_and_then
from spark_jobs.lake.checkpoints.continuity import restore_or_reset
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.conflicts import SAME_TRANSACTION
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.commit_records.history import commit_at, find_commit, latest_version
from spark_jobs.lake.commit_records.replay_commits import decode_replay
from spark_jobs.lake.commit_records.stamps import Role, Stamp, decode
from spark_jobs.lake.errors import CheckpointError, ConcurrentDriverError, LedgerError
from spark_jobs.lake.tables.held import HeldTable
from spark_jobs.lake.tables.opening import prune_log_checkpoints

# What Spark and `deltalake` call the number of rows that an append wrote.
_ROWS_WRITTEN = ("numOutputRows", "num_added_rows")

_APPEND = "WRITE"

# A job that fails reaches Python as the one, an error of the plan as the other.
_SPARK_ERRORS = (Py4JJavaError, PySparkException)


class OvertakenError(Exception):
    """A replay has taken numbers of the table since this writer has: its rows need others. Nothing was written."""


@dataclass
class TableWriter:
    """Writes the batches of one query to one of its tables.

    Attributes:
        lake: where.
        table: such as `gold.top_products__late`.
        role: which of the query's tables it is.
        pipeline: name of the pipeline.
        query_id: of Spark's checkpoint; another checkpoint must not be taken for this one.
        epoch: of the checkpoint; a reset restarts batch numbers, which the table would otherwise skip as known.
    """

    lake: Lake
    table: str
    role: Role
    pipeline: str
    query_id: str
    epoch: int

    def __post_init__(self) -> None:
        self._version = latest_version(self.lake, self.table)
        self._overtaken = False
        self._held = HeldTable(self.lake, self.table, to_write=True)

    @property
    def txn_app_id(self) -> str:
        """The id under which Delta remembers the newest batch of this query in this table."""
        return f"{self.pipeline}/{self.table}/{self.query_id}/{self.epoch}"

    def commit(self, change: Change, stamp: Stamp) -> Stamp:
        """Commits a change of a batch once, however often it is called.

        Args:
            change: of the batch.
            stamp: of the batch; `stamp.rows` is the number of rows of the change. The table remembers it under
                `stamp.txn`, or else under the number of the batch.

        Returns:
            The stamp that the table has: of this commit, or of the one that a retry found.

        Raises:
            ConcurrentDriverError: if another driver commits the same batch at this moment.
            LedgerError: if the write was skipped though the table does not have this batch, or wrote another number
                of rows than the batch's plan holds.
            OvertakenError: if a replay was committed since this writer's last commit, and has moved its id on.
        """
        if isinstance(change, Upsert):
            # Without rows a merge would read the whole table for nothing.
            if change.count:
                self._write(change, stamp)
            if (found := self._verify(stamp, ())) is not None:
                return found
            # A merge that changes nothing commits nothing: the ledger row needs a commit all the same.
            stamp = stamp.model_copy(update={"rows": 0})
            change = Append(change.rows, 0, 0)
        self._write(change, stamp)
        written = self._verify(stamp, _ROWS_WRITTEN)
        if written is None and self._overtaken:
            raise OvertakenError
        if written is None:
            raise LedgerError(
                f"table {self.table}: batch {stamp.batch_id} of `{self.pipeline}`, epoch {self.epoch}, was skipped "
                f"as known, though the table's history does not have it. The stream has stopped; nothing was "
                f"written. The checkpoint has been reset meanwhile: start the stream again; or a reset was "
                f"interrupted: repeat it, `{command('reset', self.pipeline)}`."
            )
        return written

    def _write(self, change: Change, stamp: Stamp) -> None:
        by = SmallCommits(self.lake, self.table, self._held) if change.few else LargeCommits(self.lake, self.table)
        number = stamp.batch_id if stamp.txn is None else stamp.txn
        self._overtaken = False
        with self._conflicts_explained(stamp):
            by.commit(change, CommitId(self.txn_app_id, number), stamp.encode())

    @contextmanager
    def _conflicts_explained(self, stamp: Stamp) -> Iterator[None]:
        try:
            yield
        except (*_SPARK_ERRORS, CommitFailedError) as error:
            self._held.forget()
            # A commit whose answer got lost fails against itself: then the table has this batch, from this driver.
            if isinstance(error, CommitFailedError) and self.has(stamp):
                return
            if "ConcurrentTransactionException" in str(error) or SAME_TRANSACTION in str(error):
                if self._is_overtaken():
                    raise OvertakenError from error
                raise ConcurrentDriverError(
                    f"pipeline `{self.pipeline}`: another driver committed batch {stamp.batch_id} to {self.table} at "
                    "the same moment. This driver stops; the other one continues. Nothing was written twice."
                ) from error
            raise

    def _verify(self, stamp: Stamp, row_metrics: tuple[str, ...]) -> Stamp | None:
        """Looks for the batch in the table's own log: a skip is right only if it is there."""
        while (commit := commit_at(self.lake, self.table, self._version + 1)) is not None:
            self._version += 1
            self._overtaken = self._overtaken or self._moves_on(commit)
            committed = decode(commit)
            if committed is not None and self._is_ours(committed, stamp):
                force_commit(self.lake, self.table, self._version)
                prune_log_checkpoints(self.lake, self.table, self._version)
                compact_ledger_now_and_then(self.lake, self.table, self._version)
                self._refuse_other_count(commit, stamp if row_metrics else committed)
                # It may be another driver's, of the same number.
                self._refuse_other_plan(committed, stamp)
                self._refuse_other_rows(committed, stamp, counted=bool(row_metrics))
                return committed
        before = self.find(stamp)
        if before is not None:
            # An upsert that changed nothing has no rows of its own, whatever it was given.
            self._refuse_other_rows(before, stamp, counted=bool(row_metrics))
        return before

    def _refuse_other_count(self, commit: dict[str, Any], stamp: Stamp) -> None:
        """An append must have written as many rows as its batch holds: whenever it is looked at, not just at first.

        How many rows a merge writes goes by the files that it touches.
        """
        if commit.get("operation") != _APPEND:
            return
        metrics = commit.get("operationMetrics") or {}
        written = sum(int(metrics.get(name, 0)) for name in _ROWS_WRITTEN)
        if written != stamp.rows:
            raise LedgerError(
                f"table {self.table}: batch {stamp.batch_id} of `{self.pipeline}` holds {stamp.rows} rows, but "
                f"{written} were written. The stream has stopped, and stops at each start: what the table holds is not "
                f"what its ledger says. See `{command('ledger', self.pipeline)}`. To compute the table again: "
                f"`{command('reset', self.pipeline, '--empty-tables')}`."
            )

    def _is_overtaken(self) -> bool:
        """Whether a replay was committed since this writer's last commit."""
        version = self._version + 1
        while (commit := commit_at(self.lake, self.table, version)) is not None:
            if self._moves_on(commit):
                return True
            version += 1
        return False

    def _moves_on(self, commit: dict[str, Any]) -> bool:
        replayed = decode_replay(commit)
        return replayed is not None and replayed.writer == self.txn_app_id

    def _refuse_other_rows(self, found: Stamp, stamp: Stamp, *, counted: bool) -> None:
        """A retry must give the rows that the table has: another number, or as many others, means a changed input."""
        if found.has_same_content(stamp) and (found.rows == stamp.rows or not counted):
            return
        raise LedgerError(
            f"table {self.table}: batch {stamp.batch_id} of `{self.pipeline}` was written with {_described(found)}; "
            f"trying it again gives {_described(stamp)}{'' if found.rows != stamp.rows else ' that differ'}. The "
            "stream has stopped; nothing more was written. What the batch reads, a rule, or the version of a processor "
            "has changed since it was first read, as where a file was moved away: bring it back as it was, then start "
            "the stream again."
        )

    def has(self, stamp: Stamp) -> bool:
        """Whether the table has exactly this commit."""
        return self.find(stamp) == stamp

    def find(self, stamp: Stamp) -> Stamp | None:
        """This batch's commit, looked for no further back than this writer's commit before it.

        Raises:
            CheckpointError: if the table has another batch of this number: the checkpoint is not the one that wrote it.
            LedgerError: if the commit has written another number of rows than it says.
        """

        def is_ours_or_older(committed: Stamp) -> bool:
            same_writer = (committed.pipeline, committed.role) == (stamp.pipeline, stamp.role)
            return same_writer and (committed.epoch, committed.batch_id) <= (stamp.epoch, stamp.batch_id)

        both = find_commit(self.lake, self.table, is_ours_or_older)
        if both is None or not self._is_ours(both[0], stamp):
            return None
        committed, commit = both
        self._refuse_other_count(commit, committed)
        self._refuse_other_plan(committed, stamp)
        return committed

    def _refuse_other_plan(self, found: Stamp, stamp: Stamp) -> None:
        if difference := found.differs(stamp):
            raise CheckpointError(
                f"table {self.table}: has another batch {stamp.batch_id} of `{self.pipeline}`, epoch {self.epoch}, "
                f"than its checkpoint ({difference}). The checkpoint was lost, or is an older copy. Nothing was "
                f"written. {restore_or_reset(self.pipeline)}"
            )

    def _is_ours(self, found: Stamp, stamp: Stamp) -> bool:
        return (found.pipeline, found.epoch, found.batch_id, found.role) == (
            stamp.pipeline,
            stamp.epoch,
            stamp.batch_id,
            stamp.role,
        )


def _described(stamp: Stamp) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(stamp.reasons.items()))
    return f"{stamp.rows:,} rows" + (f" ({reasons})" if reasons else "")
