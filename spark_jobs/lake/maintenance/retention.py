"""What of a table's past is kept: commits of its log, and data files that no version names any more.

The rule: *what the log names is there*. First the log is cut, where nobody needs its versions any more; then files go
that neither the newest version nor a commit of the log names.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from deltalake import DeltaTable

from spark_jobs.lake.accounting.ledger_table import KeptCommits, files_of
from spark_jobs.lake.commit_records.history import commit_at, commits_between
from spark_jobs.lake.location import Lake
from spark_jobs.lake.maintenance.readers import Need
from spark_jobs.lake.store.folders import objects_in
from spark_jobs.lake.tables.files import data_files
from spark_jobs.lake.tables.opening import open_table

FEWEST_COMMITS = 1_000
"""So many commits a log keeps in any case: who looks at the newest batches finds them there."""

_COMMIT = re.compile(r"/_delta_log/(?P<version>\d{20})\.(?:json|crc|checkpoint\..*|compacted\.json)$")

_AT_ONCE = 1_000


@dataclass(frozen=True)
class LogCut:
    """Where a log is to begin.

    Attributes:
        below: commits before this version go.
        commits: how many these are.
        held_by: who needs an older version than the time that is kept; None: nobody.
    """

    below: int
    commits: int
    held_by: Need | None = None


def first_version(lake: Lake, table: str) -> int:
    """The first version that a table's log has a commit of."""
    folder = f"{table.replace('.', '/', 1)}/_delta_log/"
    for batch in lake.store.list(folder, chunk_size=_AT_ONCE):
        names = [match for each in batch if (match := re.search(r"/(\d{20})\.json$", each["path"]))]
        if lake.on_s3 and names:
            return int(names[0][1])  # a store lists by name, a folder as it likes
        if not lake.on_s3:
            break
    found = (re.search(r"/(\d{20})\.json$", each["path"]) for each in lake.store.list(folder).collect())
    return min((int(match[1]) for match in found if match), default=0)


def plan_cut(
    lake: Lake, table: str, *, keep: timedelta, now: datetime, need: Need | None, fewest: int = FEWEST_COMMITS
) -> LogCut:
    """Where a table's log is to begin.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        keep: commits that are younger stay.
        now: the time.
        need: who needs a version of it; None: nobody does.
        fewest: so many commits stay in any case.
    """
    opened, first = open_table(lake, table), first_version(lake, table)
    most = min(opened.version() + 1 - fewest, *_kept_below(lake, table))
    before_ms = round((now - keep).timestamp() * 1000)
    # The oldest commit that is young enough to stay: times grow with versions.
    low, high = first, max(first, most)
    while low < high:
        middle = (low + high) // 2
        commit = commit_at(lake, table, middle) or {}
        if int(commit.get("timestamp", 0)) < before_ms:
            low = middle + 1
        else:
            high = middle
    below = min(low, most)
    held_by = need if need is not None and need.version < below else None
    below = held_by.version if held_by is not None else below
    return LogCut(max(first, below), max(0, below - first), held_by)


def _kept_below(lake: Lake, table: str) -> Iterator[int]:
    """Only what `ops.ledger` has may go; the tables of `ops` are in no ledger."""
    yield open_table(lake, table).version() if table.startswith("ops.") else KeptCommits(lake, table).below


def cut_log(lake: Lake, table: str, below: int) -> int:
    """Makes a table's log begin with a version.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        below: commits before this version go.

    Returns:
        How many objects were removed.
    """
    # The log then begins with a checkpoint, which says what all versions before it have said. The newest one is made
    # again: who opens the table looks for the one that was made last.
    open_table(lake, table, version=below, to_write=True).create_checkpoint()
    open_table(lake, table, to_write=True).create_checkpoint()
    folder = f"{table.replace('.', '/', 1)}/_delta_log/"
    old = []
    for each in lake.store.list(folder).collect():
        match = _COMMIT.search(each["path"])
        if match and int(match["version"]) < below:
            old.append((int(match["version"]), each["path"]))
    # The oldest first: what an interruption leaves is a log that begins later, and has no gap.
    old.sort()
    for start in range(0, len(old), _AT_ONCE):
        lake.store.delete([path for _, path in old[start : start + _AT_ONCE]])
    return len(old)


def unnamed_files(lake: Lake, table: str, *, keep: timedelta, now: datetime) -> list[tuple[str, int]]:
    """Data files of a table that neither its newest version nor a commit of its log names, with their sizes.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        keep: files that are younger stay: a writer may be about to name them.
        now: the time.
    """
    opened: DeltaTable = open_table(lake, table)
    named = {unquote(path) for path in data_files(opened)}
    kept, first = KeptCommits(lake, table), first_version(lake, table)
    for _, actions in kept.newest_first(first=first):
        named |= {unquote(path) for path in files_of(actions)}
    for _, actions in commits_between(lake, table, max(first, kept.below), opened.version()):
        named |= {unquote(path) for path in files_of(actions)}
    folder = table.replace(".", "/", 1)
    found = []
    for each in objects_in(lake, folder):
        name = each["path"].removeprefix(f"{folder}/")
        written: datetime = each["last_modified"]
        if name.endswith(".parquet") and name not in named and written.astimezone(UTC) < now - keep:
            found.append((each["path"], int(each["size"])))
    # A commit that came while the folder was listed may name one of them.
    newest = {unquote(path) for path in data_files(open_table(lake, table))}
    return [(path, size) for path, size in found if path.removeprefix(f"{folder}/") not in newest]


def remove_files(lake: Lake, paths: Mapping[str, int]) -> None:
    """Removes data files of a table from the store."""
    names = list(paths)
    for start in range(0, len(names), _AT_ONCE):
        lake.store.delete(names[start : start + _AT_ONCE])
