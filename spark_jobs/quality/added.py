"""Which rows a check looks at: what a table gained since the check before."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import NotFoundError
from pyarrow.fs import PyFileSystem

from spark_jobs.lake import Lake
from spark_jobs.lake.commit_records.history import commits_between
from spark_jobs.lake.tables.opening import file_statistics
from spark_jobs.lake.tables.quality import CheckPosition
from spark_jobs.plan.columns import FINAL_AFTER, HEARTBEAT


@dataclass(frozen=True)
class Part:
    """Rows of some data files.

    Attributes:
        files: relative to the table.
        rows: in them, by their statistics; None: they do not tell.
        bytes: of them.
        final_after: rows whose `final_after` is greater; None: whichever.
        final_by: and not greater than this; None: whichever.
    """

    files: tuple[str, ...]
    rows: int | None
    bytes: int
    final_after: datetime | None = None
    final_by: datetime | None = None

    def condition(self, columns: Iterable[str]) -> Any:
        """Which rows, for Arrow; None: all of them. Heartbeats are no rows of anybody's."""
        found = None
        for each in self._conditions(frozenset(columns)):
            found = each if found is None else found & each
        return found

    def _conditions(self, columns: frozenset[str]) -> Iterable[Any]:
        if HEARTBEAT in columns:
            yield ~pc.field(HEARTBEAT)
        if self.final_after is not None:
            yield pc.field(FINAL_AFTER) > pa.scalar(self.final_after, _TIME)
        if self.final_by is not None:
            yield pc.field(FINAL_AFTER) <= pa.scalar(self.final_by, _TIME)


_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class NewRows:
    """What a check looks at.

    Attributes:
        since: where the check before ended; None: all rows are looked at.
        upto: where this one ends.
        parts: the rows.
    """

    since: CheckPosition | None
    upto: CheckPosition
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int | None:
        """At most so many; None: statistics do not tell."""
        counts = [part.rows for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def bytes(self) -> int:
        """The size of the files that hold these rows, in bytes."""
        return sum(part.bytes for part in self.parts)


def added(
    lake: Lake,
    table: str,
    opened: DeltaTable,
    since: CheckPosition | None,
    *,
    revised: bool,
    watermark: datetime | None,
) -> NewRows:
    """The rows that a table gained since a check; of rows that are revised, those that became final.

    What a compaction has written again is not new. Where the files of new rows are gone, or the log does not tell which
    they are, all rows are looked at.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        opened: the table.
        since: where the check before ended; None: all rows.
        revised: whether rows change until they are final.
        watermark: that the pipeline has published: it has passed the rows that are final.
    """
    upto = CheckPosition(opened.version(), watermark if revised else None)
    now = {unquote(str(file["path"])): file for file in _files(opened)}
    if revised and watermark is None:
        return NewRows(since, upto, ())
    new = _new_files(lake, table, opened.version(), since, now) if since is not None else None
    final_by = watermark if revised else None
    if since is None or new is None:
        return NewRows(None, upto, _parts(now, final_by=final_by))
    parts = _parts(new, final_by=final_by)
    if revised:
        # Written before, and final only now.
        others = {path: file for path, file in now.items() if path not in new}
        parts += _parts(others, final_after=since.final_before, final_by=final_by)
    return NewRows(since, upto, parts)


def _files(opened: DeltaTable) -> list[dict[str, Any]]:
    statistics = file_statistics(opened)
    return statistics.select(["path", "size_bytes", "num_records"]).to_pylist() if statistics.num_rows else []


def _parts(
    files: dict[str, dict[str, Any]], *, final_after: datetime | None = None, final_by: datetime | None = None
) -> tuple[Part, ...]:
    if not files:
        return ()
    counts = [file["num_records"] for file in files.values()]
    rows = None if None in counts else sum(counts)
    return (Part(tuple(files), rows, sum(file["size_bytes"] for file in files.values()), final_after, final_by),)


def _new_files(
    lake: Lake, table: str, version: int, since: CheckPosition, now: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]] | None:
    """Files with rows that commits since then have brought and none has taken away; None: nobody can tell."""
    if since.version > version:
        return None  # the table was made again
    added: dict[str, dict[str, Any]] = {}
    rewritten: set[str] = set()
    commits = 0
    for _, actions in commits_between(lake, table, since.version + 1, version):
        commits += 1
        # In the order of what they mean: a commit takes away what was there before it.
        for file in (action["remove"] for action in actions if "remove" in action):
            path = unquote(file["path"])
            if file.get("dataChange", True):
                added.pop(path, None)
                if path in rewritten:
                    return None
        for file in (action["add"] for action in actions if "add" in action):
            path = unquote(file["path"])
            if file.get("deletionVector"):
                return None
            if file.get("dataChange", True):
                told = json.loads(file.get("stats") or "{}").get("numRecords")
                added[path] = now.get(path, {"size_bytes": file["size"], "num_records": told})
            else:
                rewritten.add(path)
    if commits != version - since.version:
        return None
    gone = [path for path in added if path not in now]
    return added if all(_is_there(lake, table, path) for path in gone) else None


def _is_there(lake: Lake, table: str, path: str) -> bool:
    place = f"{table.replace('.', '/', 1)}/{path}"
    if not lake.on_s3:
        return (Path(lake.uri) / place).is_file()
    try:
        obstore.head(lake.store, place)
    except (NotFoundError, FileNotFoundError):
        return False
    return True


def reader(lake: Lake, table: str, opened: DeltaTable, part: Part, columns: Iterable[str]) -> pa.RecordBatchReader:
    """The rows of a part, batch by batch."""
    import pyarrow.dataset as ds  # imports pandas, which every start of a command would wait for

    schema = pa.schema(opened.schema().to_arrow())
    found = ds.dataset(
        list(part.files),
        schema=schema,
        # Spark writes timestamps as INT96, which would be read in nanoseconds and overflow in 2262.
        format=ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")),
        filesystem=PyFileSystem(DeltaStorageHandler(lake.table_uri(table), lake.storage_options)),
    )
    return found.scanner(columns=list(columns), filter=part.condition(schema.names)).to_reader()
