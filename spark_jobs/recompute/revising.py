"""Commits by which a backfill or a repair revises the tables of a pipeline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.commits.changes import Append, Revise
from spark_jobs.commits.large import LargeCommits
from spark_jobs.commits.merging import TRIES, CommitId, is_conflict, is_same_transaction
from spark_jobs.commits.small import SmallCommits
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.accounting.ledger_compaction import compact_ledger_now_and_then
from spark_jobs.lake.commit_records.conflicts import cannot_commit
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.commit_records.history import commit_at
from spark_jobs.lake.commit_records.revisions import Revision, decode_revision, newest_writer
from spark_jobs.lake.errors import ConflictError, LedgerError
from spark_jobs.lake.tables.opening import open_table, prune_log_checkpoints
from spark_jobs.plan.tables import TableRef
from spark_jobs.recompute.ranges import Range
from spark_jobs.recompute.target import Target
from spark_jobs.spark.frames import size_of
from spark_jobs.spec.names import first_of, in_spark

_KINDS = ("inserted", "updated", "deleted")


@dataclass(frozen=True)
class ChangeCount:
    """By how much a table has changed.

    Attributes:
        inserted: rows that were missing.
        updated: rows that had other values.
        deleted: rows that must not be there.
        grown: by how many events, or (event, window) pairs, its rows stand for more than before.
        version: of the table, in which they changed; where nothing did, its newest.
    """

    inserted: int
    updated: int
    deleted: int
    grown: int
    version: int

    @property
    def rows(self) -> int:
        """The number of rows that were added, revised or deleted."""
        return self.inserted + self.updated + self.deleted


def revise(
    target: Target,
    table: TableRef,
    difference: Callable[[], DataFrame],
    revision: Revision,
    entry: LedgerEntry,
    *,
    whole: Range | None = None,
) -> ChangeCount:
    """Commits a difference, in one version of a table; where there is none and nothing else is to be said, nothing.

    What other programs had changed in a range that was computed whole is booked with it, also where nothing differs.

    Args:
        target: the pipeline.
        table: which of its tables.
        difference: computes it, as `TableComparison.difference`.
        revision: what the commit says of itself.
        entry: of the ledger, for the commit to the table that has all groups; it is completed by what has changed.
        whole: a range all of whose rows were compared; None: only some were.

    Raises:
        SupersededError: if another run has revised the table since the pipeline was looked at. It may have counted
            events that this one does not know.
        OutdatedPlanError: if its epoch has been ended since, or a table that was read is another one.
        ConflictError: if another writer was faster each time.
    """
    opened = open_table(target.lake, table.name)
    commit_id, base = CommitId(*target.basis.revision(target.lake, table.name, opened)), opened.version()
    if whole is not None:
        booked = target.put_right(table.name, whole.begin_us, whole.end_us)
        revision = revision.model_copy(update={"replaced": booked.versions})
        entry = entry.with_terms(**booked.terms)
    kept = difference().persist()
    try:
        return _commit(target, table, kept, commit_id, base, revision, entry)
    finally:
        kept.unpersist()


def _commit(
    target: Target,
    table: TableRef,
    kept: DataFrame,
    commit_id: CommitId,
    base: int,
    revision: Revision,
    entry: LedgerEntry,
) -> ChangeCount:
    operator = target.operator
    placed = first_of(operator.recomputation.placed_by, in_spark)
    counted = kept.agg(
        *(F.count(F.when(F.col("__kind") == kind, 1)).alias(kind) for kind in _KINDS),
        F.coalesce(F.sum("__grown"), F.lit(0)).alias("grown"),
        F.expr(f"min(unix_micros({placed}))").alias("low"),
        F.expr(f"max(unix_micros({placed}))").alias("high"),
    ).collect()[0]
    inserted, updated, deleted, grown = (int(counted[name]) for name in (*_KINDS, "grown"))
    changed = ChangeCount(inserted, updated, deleted, grown, base)
    of_groups = table.name == operator.output.groups.name
    # Events are marked as counted only after a revision that comes behind the one which took them out; that may have
    # been interrupted.
    said = revision.mode == "corrected" and of_groups and target.basis.is_behind(table.name)
    if not changed.rows and not revision.replaced and not said:
        return changed
    if of_groups:
        revision = revision.model_copy(update={"ledger": _completed(entry, changed)})
    change: Append | Revise = Append(kept, 0, 0)  # says what it says without a row
    if changed.rows:
        change = _revise(target, table, kept, changed.rows, (counted["low"], counted["high"]))
    # What was read must have been what the plan names, and so must be what is written: that the commit itself asks.
    target.basis.refuse_outdated(target.lake)
    backend = SmallCommits if change.few else LargeCommits
    try:
        backend(target.lake, table.name).commit(change, commit_id, revision.encode())
    except (Py4JJavaError, PySparkException, CommitFailedError) as error:
        conflicts = is_conflict(error) or "DELTA_CONCURRENT" in str(error)
        if conflicts and not is_same_transaction(error):
            raise ConflictError(
                f"{revision.run} of `{target.name}`: another writer changed the same files of {table.name} at the "
                f"same moments, {TRIES} times in a row. The newest commit there is by "
                f"{newest_writer(target.lake, table.name)}. Nothing of this run was written to it. Run the "
                "same command again."
            ) from error
        # Of the same transaction the table's log tells whether it is this one's, whose answer got lost, or another's.
        if not is_same_transaction(error):
            if isinstance(error, CommitFailedError):
                undone = f"Nothing of {revision.run} of `{target.name}` was written to it."
                raise cannot_commit(table.name, error, undone) from error
            raise
    version = _found(target, table.name, revision, base)
    if version is None:
        # It was skipped, because another has taken its number.
        target.basis.revision(target.lake, table.name, open_table(target.lake, table.name))
        raise LedgerError(
            f"table {table.name}: {revision.run} of `{target.name}` was committed, but no version has it."
        )
    return _noted(target, table.name, commit_id, ChangeCount(inserted, updated, deleted, grown, version))


def _revise(target: Target, table: TableRef, kept: DataFrame, count: int, between_us: tuple[int, int]) -> Revise:
    (column, *others) = target.operator.recomputation.placed_by
    return Revise(
        kept.drop("__kind", "__grown"),
        count,
        size_of(kept),
        [name for name in target.operator.output.row_keys if name in kept.columns],
        # In another case it is none to `deltalake`, which takes a name in quotes as it is.
        None if others or column not in kept.columns else (column, *between_us),
        lambda opened: target.basis.revision(target.lake, table.name, opened),
    )


def _noted(target: Target, table: str, commit_id: CommitId, changed: ChangeCount) -> ChangeCount:
    target.basis = target.basis.after(table, commit_id.number)
    return changed


def _completed(entry: LedgerEntry, changed: ChangeCount) -> LedgerEntry:
    """The entry, with what this commit changes beside what others had changed in its range."""
    terms: Mapping[str, int] = {"rows": changed.inserted - changed.deleted, "pairs_revised": changed.grown}
    return entry.with_terms(**{name: entry[name] + count for name, count in terms.items()})


def _found(target: Target, table: str, revision: Revision, before: int) -> int | None:
    """The version in which the table has a commit, which is forced to the disk; None: it has none."""
    version = before
    while (commit := commit_at(target.lake, table, version + 1)) is not None:
        version += 1
        found = decode_revision(commit)
        if found is not None and (found.run, found.number) == (revision.run, revision.number):
            force_commit(target.lake, table, version)
            prune_log_checkpoints(target.lake, table, version)
            compact_ledger_now_and_then(target.lake, table, version)
            return version
    return None


@dataclass(frozen=True)
class RevisionOutcome:
    """What a slice, or a repair, has changed.

    Attributes:
        changed: in the result.
        repaired: late events, and replayed ones, that are counted from now on.
        taken_out: likewise, that are not counted any more.
        replayed: of either, such as were looked up again.
        seconds: that it took.
    """

    changed: ChangeCount
    repaired: int = 0
    taken_out: int = 0
    replayed: int = 0
    seconds: float = 0.0
