"""In which version of a table each event of a stream was looked up, from the stream's ledger."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from spark_jobs.lake.accounting.ledger_table import Actions
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.spark_log import Place, in_snapshot, place
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import commits_between, latest_version, ledger_rows
from spark_jobs.lake.maintenance.retention import first_version
from spark_jobs.lake.tables.files import refuse_missing
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.plan.columns import INGEST_SEQ
from spark_jobs.recompute.target import BackfillRefusedError, NotComparableError, Target
from spark_jobs.spec import Enrich


@dataclass(frozen=True)
class VersionRange:
    """Batches in a row that looked columns up in the same versions.

    Attributes:
        versions: lookup table -> its version.
        ids: lookup table -> the id of the Delta table that had it, as far as the ledger says.
        last_batch: the number of the last of them.
        ends: source table -> how far the batches of this version range and of those before have read.
    """

    versions: Mapping[str, int]
    last_batch: int
    ends: Mapping[str, Place]
    ids: Mapping[str, str] = field(default_factory=dict)


def version_ranges(target: Target) -> tuple[VersionRange, ...]:
    """The version ranges of a pipeline's epoch, in order; none where it looks nothing up."""
    lookups = {step.table for step in target.logical.lookups}
    ranges: list[VersionRange] = []
    unclear: str | None = None
    if not lookups:
        return ()
    for batch_id, entry in ledger_rows(target.lake, target.result, target.name, target.epoch.number):
        if entry.kind != "batch":
            continue
        versions = {table: entry.reads[table][0] for table in sorted(lookups)}
        read = {table_read(source, target.pipeline): offset for source, offset in entry.sources.items() if offset}
        ends = {table: place(offset) for table, offset in read.items() if table is not None}
        ids = {table: entry.table_ids[table] for table in sorted(lookups & entry.table_ids.keys())}
        if ranges and ranges[-1].versions == versions and _same_tables(ranges[-1].ids, ids):
            ranges.pop()
        elif unclear:
            raise _refused(target, unclear, place(read[unclear])[0])
        unclear = next((table for table, offset in read.items() if table is not None and in_snapshot(offset)), None)
        ranges.append(VersionRange(versions, batch_id, ends, ids))
    return tuple(ranges)


def _same_tables(some: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether no table is known to be another one; entries from before there were ids say nothing."""
    return all(others[table] == some[table] for table in some.keys() & others.keys())


@dataclass(frozen=True)
class Span:
    """Version ranges in a row, by their numbers.

    Attributes:
        first: of them.
        last: itself included.
    """

    first: int
    last: int

    @property
    def numbers(self) -> range:
        """The numbers of the version ranges that it reads."""
        return range(self.first, self.last + 1)

    def with_(self, other: "Span") -> "Span":
        """Both, and what lies between them."""
        return Span(min(self.first, other.first), max(self.last, other.last))


@dataclass(frozen=True)
class End:
    """How far a stream had read a table when an version range ended, in `_ingest_seq`.

    Attributes:
        below: all events before it were read.
        further: least and greatest of files that were read beyond.
    """

    below: float
    further: tuple[tuple[int, int], ...] = ()

    @property
    def reached(self) -> float:
        """No event after it was read."""
        return max(self.below - 1, *(high for _, high in self.further), -inf)


def span_of(target: Target, table: str, known: Sequence[VersionRange], low: int, high: int) -> Span:
    """The version ranges in which a stream has read events of a table; each end costs a look at the table's log.

    Args:
        target: the pipeline.
        table: the source.
        known: the version ranges.
        low: least `_ingest_seq` of the events.
        high: greatest.

    Raises:
        BackfillRefusedError: if the table's log does not tell any more.
    """
    before = known[:-1]
    first = bisect_left(before, True, key=lambda version_range: end_of(target, table, version_range).reached >= low)
    last = bisect_left(before, True, key=lambda version_range: end_of(target, table, version_range).below > high)
    return Span(first, max(first, last))


def range_of_batch(known: Sequence[VersionRange], batch: int) -> int:
    """The number of the version range that a batch belongs to."""
    return span_of_batches(known, batch, batch).first


def refuse_lost_versions(target: Target, known: Sequence[VersionRange], which: Iterable[int], remedy: str) -> None:
    """Looks whether the lookup tables still have the versions of some version ranges.

    Args:
        target: the pipeline.
        known: the version ranges.
        which: their numbers.
        remedy: what was not done, and what to do instead.

    Raises:
        NotComparableError: if maintenance has removed a version, or a table was removed and made anew.
        TidemarkError: if a table, or a data file of a version that it has, is gone, or the store does not answer.
    """
    refuse_made_anew(target, known, which, remedy)
    versions = {(table, version) for number in set(which) for table, version in known[number].versions.items()}
    for table, version in sorted(versions):
        # A version that the log has not got any more is checked first: a fault of the store must not pass for it.
        if version < first_version(target.lake, table):
            raise NotComparableError(
                f"pipeline `{target.name}`: version {version} of {table}, in which events were looked up, is not kept "
                f"any more (TIDEMARK_KEEP_LOOKUPS). {remedy} "
                f"`{command('reset', target.name, '--empty-tables')}` computes everything again."
            )
        refuse_missing(target.lake, table, open_table(target.lake, table, version=version))


def refuse_made_anew(target: Target, known: Sequence[VersionRange], which: Iterable[int], remedy: str) -> None:
    """Looks whether lookup tables are those of some version ranges: one made anew begins at version 0 again.

    Args:
        target: the pipeline.
        known: the version ranges.
        which: their numbers.
        remedy: what was not done, and what to do instead.

    Raises:
        NotComparableError: if one is another.
    """
    noted = {(table, ident) for number in set(which) for table, ident in known[number].ids.items()}
    for table in sorted({table for table, _ in noted}):
        now = str(open_table(target.lake, table).metadata().id)
        if (table, now) not in noted or len({ident for each, ident in noted if each == table}) > 1:
            raise NotComparableError(
                f"pipeline `{target.name}`: {table}, in which events were looked up, was removed and made anew since: "
                f"its versions are other ones now, and what the events found is not known any more. {remedy} "
                f"`{command('reset', target.name, '--empty-tables')}` computes everything again."
            )


def span_of_batches(known: Sequence[VersionRange], low: int, high: int) -> Span:
    """The version ranges of batches, by their numbers."""
    first, last = (
        bisect_left(known[:-1], number, key=lambda version_range: version_range.last_batch) for number in (low, high)
    )
    return Span(first, last)


def end_of(target: Target, table: str, version_range: VersionRange) -> End:
    """How far the stream had read a table when a version range ended."""
    end = version_range.ends.get(table)
    if end is None:
        return End(-inf)
    version, index = end
    # Commits without events, such as those of a compaction, tell nothing: the next one does.
    for number, files in numbers_between(target, table, version, latest_version(target.lake, table)):
        if any(files):
            read = [(each[0], each[1]) for each in files[: index + 1] if each] if number == version else []
            return End(min(each[0] for each in files if each), tuple(read))
    return End(inf)


def after_snapshot(target: Target, table: str, first: Place, offsets: Sequence[str]) -> Place:
    """Where a stream that began with all that a table held was after its first batch.

    Raises:
        BackfillRefusedError: if it read that in several batches: nothing tells which of them read what.
    """
    if any(in_snapshot(offset) for offset in offsets):
        raise _refused(target, table, first[0])
    return first


def numbers_between(target: Target, table: str, first: int, last: int) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
    """Versions, each with the least and the greatest `_ingest_seq` in each file that it adds; empty for heartbeats'.

    Raises:
        BackfillRefusedError: if the table's log does not tell any more.
    """
    expected, jumps = first, target.epochs.jumps(table)
    for version, actions in commits_between(target.lake, table, first, last):
        if version != expected:
            raise _refused(target, table, expected)
        expected += 1
        files = enumerate(_numbers(target, table, version, actions))
        # What a restore took back, and what it named again though the stream had read it, is of no batch.
        yield version, [() if any(jump.passes((version, at)) for jump in jumps) else each for at, each in files]
    if expected <= last:
        raise _refused(target, table, expected)


def _numbers(target: Target, table: str, version: int, actions: Actions) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for action in actions:
        if "add" in action and action["add"].get("dataChange", True):
            statistics = json.loads(action["add"].get("stats") or "{}")
            low, high = (statistics.get(bound, {}).get(INGEST_SEQ) for bound in ("minValues", "maxValues"))
            rows = statistics.get("numRecords")
            empty = rows is not None and statistics.get("nullCount", {}).get(INGEST_SEQ) == rows
            if not empty and (low is None or high is None):
                raise _refused(target, table, version)
            found.append(() if empty else (low, high))
    return found


def read_by(step: Enrich) -> set[str]:
    """The columns of its table that an `Enrich` reads."""
    return {*step.on, *step.columns.values()}


def _refused(target: Target, table: str, version: int) -> BackfillRefusedError:
    return BackfillRefusedError(
        f"pipeline `{target.name}`: the log of {table} does not tell any more which events are in version {version}, "
        "so that it is not known in which batch the stream has read them. Nothing was written. "
        f"`{command('reset', target.name, '--empty-tables')}` computes everything again."
    )
