"""What a stream has read of a table: from the stream's own offsets, held against the log of the table.

An offset of Spark's Delta source is a place in the table's log: all versions before `reservoirVersion`, and of that one
the data files up to `index`, in the order of the commit.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from spark_jobs.lake.accounting.ledger_table import Actions, KeptCommits, files_added
from spark_jobs.lake.checkpoints.epochs import Jump, Starts
from spark_jobs.lake.checkpoints.lineage import Lineage
from spark_jobs.lake.checkpoints.reset import EMPTIED
from spark_jobs.lake.checkpoints.spark_log import Place, in_snapshot, next_version, place
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import commits_between, info_of, unsigned_commits
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import file_statistics, open_table, row_count
from spark_jobs.spec import Definition, Pipeline

_MANY = 100
"""Between places so many versions apart it pays to ask `ops.ledger`."""


class SourceEmptiedError(TidemarkError):
    """The rows that a pipeline has counted are gone from its source, and come again."""


@dataclass(frozen=True)
class LogSpan:
    """What the log of a table holds between two offsets.

    Attributes:
        rows: events and heartbeats; None where another program has left no statistics.
        size: bytes of the files that hold them; None where they were not looked at one by one.
        emptied_at: when a reset of the table's ingest emptied it in between; None: it did not.
        emptied_in: the version of that commit.
    """

    rows: int | None
    size: int | None = None
    emptied_at: datetime | None = None
    emptied_in: int | None = None

    def with_(self, other: "LogSpan") -> "LogSpan":
        """Both."""
        newest = other if other.emptied_at is not None else self
        return LogSpan(_sum(self.rows, other.rows), _sum(self.size, other.size), newest.emptied_at, newest.emptied_in)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _around(jumps: Iterable[Jump], begin: str, end: str) -> Iterator[tuple[str, str]]:
    """The parts of what lies between two offsets that a stream has read: it passes over what a restore took back."""
    for jump in jumps:
        begins_before = not begin or in_snapshot(begin) or place(begin) <= jump.old
        if begins_before and place(end) >= jump.new and not in_snapshot(end):
            yield begin, _offset(jump.old)
            begin = _offset(jump.new)
    yield begin, end


def _offset(at: Place) -> str:
    return json.dumps({"reservoirVersion": at[0], "index": at[1]})


def table_read(source: str, definition: Definition) -> str | None:
    """The table that Spark's name of a source means, such as `DeltaSource[file:/lake/bronze/sales]`."""
    address = source.rstrip("]/")
    return next((each for each in definition.read_tables if address.endswith("/" + each.replace(".", "/", 1))), None)


def read_between(lake: Lake, table: str, start: int, before: str, upto: str) -> LogSpan:
    """What a table's log holds between two offsets of a stream.

    Args:
        lake: where.
        table: such as `bronze.sales`.
        start: the first version that the stream reads at all.
        before: where it was before; empty: at its start.
        upto: where it is now.
    """
    first, last = place(before) if before else (start, -1), place(upto)
    total: int | None = 0
    size: int | None = 0
    emptied: tuple[datetime, int] | None = None
    begin = first[0]
    commits: Iterator[tuple[int, Actions]]
    if last[0] - begin > _MANY:
        # Whole versions between the two are summed up where they are kept.
        kept = KeptCommits(lake, table)
        if (end := min(kept.below, last[0])) > begin + 1:
            (total, reset), size = kept.rows_added(begin + 1, end), None
            if reset is not None and reset[0] > start:
                emptied = datetime.fromtimestamp(reset[1] / 1000, UTC), reset[0]
            commits = chain(commits_between(lake, table, begin, begin), commits_between(lake, table, end, last[0]))
        else:
            commits = commits_between(lake, table, begin, last[0])
    else:
        commits = commits_between(lake, table, begin, last[0])
    for version, actions in commits:
        info = info_of(actions)
        if info.get(EMPTIED) == "reset" and version > start:
            emptied = datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1000, UTC), version
        # Of the files that a version adds, those that lie between the two places.
        files = [file for index, file in enumerate(files_added(actions)) if first < (version, index) <= last]
        for file in files:
            total, size = _sum(total, file.rows), _sum(size, file.size)
    return LogSpan(total, size, *(emptied or ()))


def _read_of_snapshot(lake: Lake, table: str, start: int, before: str, upto: str) -> LogSpan:
    """The same for a stream that began with what the table held: what there is up to the one place, less the other."""
    newest_reset = next(
        (
            (version, int(info_of(actions).get("timestamp", 0)))
            for version, actions in unsigned_commits(lake, table)
            if version > start and info_of(actions).get(EMPTIED) == "reset"
        ),
        None,
    )
    emptied = (datetime.fromtimestamp(newest_reset[1] / 1000, UTC), newest_reset[0]) if newest_reset else None
    counts = _held_up_to(lake, table, upto), (_held_up_to(lake, table, before) if before else 0)
    total = None if None in counts else (counts[0] or 0) - (counts[1] or 0)
    return LogSpan(total, None, *(emptied or ()))


def _held_up_to(lake: Lake, table: str, offset: str) -> int | None:
    """Rows that a table held at a place; None where statistics do not tell."""
    version, index = place(offset)
    if in_snapshot(offset):
        files = file_statistics(open_table(lake, table, version=version))
        # In the order in which Delta reads them.
        files = files.sort_by([("modification_time", "ascending"), ("path", "ascending")])
        counts = files.column("num_records").to_pylist()[: index + 1]
        return None if None in counts else sum(counts)
    held = row_count(open_table(lake, table, version=version - 1))
    partly = read_between(lake, table, version, "", offset) if index >= 0 else LogSpan(0)
    return None if partly.rows is None else held + partly.rows


def read_by_batch(
    lake: Lake,
    pipeline: Pipeline,
    starts: Starts,
    before: Mapping[str, str],
    upto: Mapping[str, str],
    *,
    most: int | None = None,
    which: Lineage | None = None,
) -> LogSpan:
    """What the logs of a pipeline's source tables hold between the ends of two of its batches.

    Args:
        lake: where.
        pipeline: that reads them.
        starts: of its epoch.
        before: source -> offset up to which the batches before have read; a source that has none is at its start.
        upto: source -> offset up to which this one has.
        which: the epoch and those that it goes on, where a restore may lie in between; None: none does.
        most: commits of one source; where more lie in between, nothing is read and nothing known. None: any number.

    Raises:
        SourceEmptiedError: if one of them was emptied in between, which takes back what the pipeline has counted.
    """
    total = LogSpan(0, 0)
    for source, offset in upto.items():
        table = table_read(source, pipeline)
        if table is None or not offset or offset == before.get(source):
            continue
        start, begin = starts.versions.get(table, 0), before.get(source, "")
        if most is not None and place(offset)[0] - (place(begin)[0] if begin else start) > most:
            return LogSpan(None)
        span = LogSpan(0, 0)
        for begins, ends in _around(which.jumps(table) if which else (), begin, offset):
            if table in starts.snapshots and (not begins or in_snapshot(begins)):
                span = span.with_(_read_of_snapshot(lake, table, start, begins, ends))
            else:
                span = span.with_(read_between(lake, table, start, begins, ends))
        if span.emptied_at is not None:
            raise SourceEmptiedError(
                f"pipeline `{pipeline.name}`: its source {table} was emptied by a reset at "
                f"{span.emptied_at:%Y-%m-%d %H:%M:%S} UTC (version {span.emptied_in}). Events that it has counted "
                "are gone from there, and would be counted twice where they come again. Nothing of this batch was "
                "written. "
                f"Begin again with what is there now: {command('reset', pipeline.name, '--empty-tables')}"
            )
        total = total.with_(span)
    return total


def versions_read(
    pipeline: Pipeline, starts: Starts, before: Mapping[str, str], upto: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    """Source table -> the first version that a batch has read of it, and the first that it has not read to its end."""
    found = {}
    for source, offset in upto.items():
        table = table_read(source, pipeline)
        if table is not None and offset:
            begin = before.get(source)
            found[table] = (next_version(begin) if begin else starts.versions.get(table, 0), next_version(offset))
    return found
