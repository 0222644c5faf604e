"""The history of a table: who committed what, and the ledger that rides in it.

The newest commits are in the table's log, one small file each; what the log does not have any more is in `ops.ledger`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import obstore
from obstore.exceptions import NotFoundError

from spark_jobs.lake.accounting.ledger import LedgerEntry, LedgerSums, Totals
from spark_jobs.lake.accounting.ledger_table import (
    BATCH,
    HEARTBEAT,
    OTHER,
    REPLAY,
    RESET,
    REVISION,
    SIDE,
    Actions,
    KeptCommits,
)
from spark_jobs.lake.checkpoints.lineage import Lineage, lineage
from spark_jobs.lake.commit_records.replay_commits import ReplayCommit, decode_replay
from spark_jobs.lake.commit_records.stamps import Stamp, decode
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.plan.equations import Equation

T = TypeVar("T")

Numbered = Stamp | ReplayCommit
"""What may say which `_ingest_seq` comes next."""

_AT_ONCE = 16


def latest_version(lake: Lake, table: str) -> int:
    """The newest version of a table.

    Raises:
        MissingTableError: if it does not exist.
    """
    return open_table(lake, table).version()


def commit_at(lake: Lake, table: str, version: int) -> dict[str, Any] | None:
    """The `commitInfo` of one version, read from its file alone; None if there is no such version (any more)."""
    actions = actions_at(lake, table, version)
    return None if actions is None else info_of(actions)


def info_of(actions: Actions) -> dict[str, Any]:
    """What a commit says of itself."""
    return next((dict(action["commitInfo"]) for action in actions if "commitInfo" in action), {})


def actions_at(lake: Lake, table: str, version: int) -> Actions | None:
    """The actions of one version, in the order of its commit; None if the log has no such version (any more)."""
    path = f"{table.replace('.', '/', 1)}/_delta_log/{version:020d}.json"
    try:
        content = bytes(obstore.get(lake.store, path).bytes())
    except (NotFoundError, FileNotFoundError):
        return None
    return [json.loads(line) for line in content.splitlines()]


def commits_between(lake: Lake, table: str, first: int, last: int) -> Iterator[tuple[int, Actions]]:
    """Version and actions of the commits of a range, the oldest first, from the log or from `ops.ledger`.

    Args:
        lake: where.
        table: such as `bronze.sales`.
        first: version.
        last: version, itself included; one that is not there yet is left out.
    """
    versions = range(first, last + 1)
    head = actions_at(lake, table, first) if versions else None
    if versions and head is None:
        kept = KeptCommits(lake, table)
        yield from reversed(kept.newest_first(first=first, below=min(kept.below, last + 1)))
        versions = range(max(first, kept.below), last + 1)
    elif head is not None:
        yield first, head
        versions = versions[1:]
    yield from _in_log(lake, table, versions)


def version_after(lake: Lake, table: str, pipeline: str, epoch: int, batch_id: int) -> int:
    """The newest version of a table that no later batch of an epoch has written.

    Args:
        lake: where.
        table: of the pipeline.
        pipeline: its name.
        epoch: of its checkpoint.
        batch_id: of the batch.
    """
    version = newest = latest_version(lake, table)
    while version >= 0 and (commit := commit_at(lake, table, version)) is not None:
        stamp = decode(commit)
        if stamp is not None and (stamp.pipeline, stamp.epoch) == (pipeline, epoch):
            if stamp.batch_id <= batch_id:
                return newest
            newest = version - 1
        version -= 1
    return newest


def revision_commits(lake: Lake, table: str) -> list[tuple[int, Actions]]:
    """Version and actions of the commits of backfills and repairs, the oldest first; and others that are new."""
    kept = KeptCommits(lake, table)
    below = kept.below
    before = kept.newest_first(kinds=(REVISION,)) if below else []
    return [*reversed(before), *_in_log(lake, table, range(below, latest_version(lake, table) + 1))]


def replay_commits(lake: Lake, table: str) -> list[tuple[int, Actions]]:
    """Version and actions of the commits of replays, the oldest first; and others that are new."""
    kept = KeptCommits(lake, table)
    below = kept.below
    before = kept.newest_first(kinds=(REPLAY,)) if below else []
    return [*reversed(before), *_in_log(lake, table, range(below, latest_version(lake, table) + 1))]


def unsigned_commits(lake: Lake, table: str) -> list[tuple[int, Actions]]:
    """Version and actions of the commits that no batch has made, the newest first; and others that are new."""
    kept = KeptCommits(lake, table)
    below = kept.below
    before = kept.newest_first(kinds=(OTHER, RESET, REVISION)) if below else []
    return [*reversed([*_in_log(lake, table, range(below, latest_version(lake, table) + 1))]), *before]


def _in_log(lake: Lake, table: str, versions: range) -> Iterator[tuple[int, Actions]]:
    """The commits of these versions that the log has."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        look = pool.map if len(versions) > _AT_ONCE else map
        for version, actions in zip(versions, look(lambda v: actions_at(lake, table, v), versions), strict=True):
            if actions is not None:
                yield version, actions


def find_stamp(lake: Lake, table: str, wanted: Callable[[Stamp], bool]) -> Stamp | None:
    """The newest commit of a table that somebody stamped so; None if there is none.

    Walks back from the newest version, one small file each: what is looked for is nearly always among the last.
    """

    found = find_commit(lake, table, wanted)
    return None if found is None else found[0]


def find_commit(lake: Lake, table: str, wanted: Callable[[Stamp], bool]) -> tuple[Stamp, dict[str, Any]] | None:
    """The same with the whole of its `commitInfo`."""

    def look(commit: dict[str, Any]) -> tuple[Stamp, dict[str, Any]] | None:
        stamp = decode(commit)
        return (stamp, commit) if stamp is not None and wanted(stamp) else None

    return _find(lake, table, look, (BATCH, SIDE, HEARTBEAT))


def newest_numbered(lake: Lake, table: str, *, upto: int | None = None) -> Numbered | None:
    """The newest commit of a bronze table that says which `_ingest_seq` comes next; None if there is none.

    Args:
        lake: where.
        table: such as `bronze.sales`.
        upto: the newest version that counts; None: any.
    """

    def look(commit: dict[str, Any]) -> Numbered | None:
        if (stamp := decode(commit)) is not None:
            return stamp if stamp.next_seq is not None else None
        replayed = decode_replay(commit)
        return replayed if replayed is not None and replayed.next_seq is not None else None

    return _find(lake, table, look, (BATCH, REPLAY), upto)


def _find(
    lake: Lake, table: str, look: Callable[[dict[str, Any]], T], kinds: Sequence[str], upto: int | None = None
) -> T | None:
    version = latest_version(lake, table) if upto is None else upto
    kept: KeptCommits | None = None
    steps = 0
    while version >= 0 and (kept is None or version >= kept.below):
        if (commit := commit_at(lake, table, version)) is None:
            break
        if (found := look(commit)) is not None:
            return found
        version, steps = version - 1, steps + 1
        if steps == _AT_ONCE:
            kept = KeptCommits(lake, table)
    for _, actions in _kept(kept or KeptCommits(lake, table), version + 1, kinds) if version >= 0 else ():
        if (found := look(info_of(actions))) is not None:
            return found
    return None


def _kept(kept: KeptCommits, below: int, kinds: Sequence[str]) -> Iterator[tuple[int, Actions]]:
    """Commits of these kinds, the newest first; a few at a time, then more."""
    limit = 100
    while found := kept.newest_first(below=below, kinds=kinds, limit=limit):
        yield from found
        below, limit = found[-1][0], limit * 10


@dataclass(frozen=True)
class EpochLedger:
    """The ledger of one epoch of a pipeline.

    Attributes:
        checked: what its entries add up to, and what does not agree.
        rows: batch number and entry, in order of batches: the newest, or all.
    """

    checked: LedgerSums
    rows: Sequence[tuple[int, LedgerEntry]]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, LedgerEntry]], equations: Sequence[Equation]) -> "EpochLedger":
        """From all entries of the epoch."""
        return cls(LedgerSums().plus(rows, equations), rows)

    @property
    def totals(self) -> Totals:
        """The sums over all of its entries."""
        return self.checked.totals


def epoch_ledger(
    lake: Lake, table: str, pipeline: str, epoch: int, equations: Sequence[Equation], *, last: int | None = None
) -> EpochLedger:
    """The ledger of one epoch of a pipeline: the sums that `ops.ledger` has, and the entries since.

    Args:
        lake: where.
        table: the result.
        pipeline: its name.
        epoch: of the checkpoint.
        equations: of the pipeline's plan.
        last: read so many of the newest entries one by one, at least; None: all of them.
    """
    kept = KeptCommits(lake, table)
    sums = kept.sums(pipeline, epoch)
    if sums is None:
        return EpochLedger.of(ledger_rows(lake, table, pipeline, epoch), equations)
    upto, checked = sums[0], LedgerSums.model_validate_json(sums[1])
    which = lineage(lake, pipeline, epoch)
    tail = _entries(_in_log(lake, table, range(upto + 1, latest_version(lake, table) + 1)), pipeline, table, which)
    # A batch has one entry; of another one of its number the first counts.
    rows = [(batch_id, entry) for batch_id, entry in tail if batch_id >= checked.next_batch]
    more = None if last is None else max(0, last - len(rows))
    if more is None or more:
        before = kept.newest_first(below=upto + 1, kinds=(BATCH,), pipeline=pipeline, epochs=which.epochs, limit=more)
        older = _entries(reversed(before), pipeline, table, which)
        return EpochLedger(checked.plus(rows, equations), [*older, *rows])
    return EpochLedger(checked.plus(rows, equations), rows)


def ledger_rows(lake: Lake, table: str, pipeline: str, epoch: int) -> list[tuple[int, LedgerEntry]]:
    """The ledger of one epoch of a pipeline, from the history of its result table, in order of batches."""
    kept, which = KeptCommits(lake, table), lineage(lake, pipeline, epoch)
    below = kept.below
    before = kept.newest_first(kinds=(BATCH,), pipeline=pipeline, epochs=which.epochs) if below else []
    since = _in_log(lake, table, range(below, latest_version(lake, table) + 1))
    return _entries(chain(reversed(before), since), pipeline, table, which)


def _entries(
    commits: Iterable[tuple[int, Actions]], pipeline: str, table: str, which: Lineage
) -> list[tuple[int, LedgerEntry]]:
    """Batch and its entry, in order; the entry of a restore has the number of the batch after which it goes on."""
    rows: dict[tuple[int, int], LedgerEntry] = {}
    for version, actions in commits:
        stamp = decode(info_of(actions))
        if stamp and stamp.ledger and stamp.pipeline == pipeline and _counts(stamp, table, version, which):
            rows.setdefault((stamp.epoch, stamp.batch_id), stamp.ledger)
    return [(batch_id, entry) for (_, batch_id), entry in sorted(rows.items())]


def _counts(stamp: Stamp, table: str, version: int, which: Lineage) -> bool:
    return which.has(stamp.epoch, stamp.batch_id) and not which.undone(table, version)


def newest_ledger_rows(
    lake: Lake, table: str, pipeline: str, epoch: int, batches: int
) -> list[tuple[int, LedgerEntry]]:
    """The ledger rows of the newest batches of one epoch, in order; reads no more of the history than it needs.

    Other writers may commit in between: at most ten commits are read for each batch that is wanted.
    """
    rows: dict[tuple[int, int], LedgerEntry] = {}
    version, which = latest_version(lake, table), lineage(lake, pipeline, epoch)
    for number in range(version, max(-1, version - 10 * batches), -1):
        commit = commit_at(lake, table, number)
        stamp = decode(commit) if commit else None
        if stamp and stamp.ledger and stamp.pipeline == pipeline and _counts(stamp, table, number, which):
            rows.setdefault((stamp.epoch, stamp.batch_id), stamp.ledger)
            if len(rows) >= batches:
                break
    return [(batch_id, entry) for (_, batch_id), entry in sorted(rows.items())]


def newest_batch(lake: Lake, table: str, pipeline: str, epoch: int) -> tuple[int, LedgerEntry] | None:
    """The newest batch of an epoch and its ledger entry, however many other commits came since; None: none ended."""
    if found := newest_ledger_rows(lake, table, pipeline, epoch, 1):
        return found[-1]

    def is_it_or_before(stamp: Stamp) -> bool:
        return stamp.pipeline == pipeline and (stamp.epoch < epoch or stamp.ledger is not None)

    stamp = find_stamp(lake, table, is_it_or_before)
    return (stamp.batch_id, stamp.ledger) if stamp is not None and stamp.ledger and stamp.epoch == epoch else None
