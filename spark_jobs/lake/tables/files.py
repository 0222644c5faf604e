"""The data files of tables: whether those that a table's log names are there."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from obstore.exceptions import NotFoundError

from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.folders import objects_in
from spark_jobs.lake.tables.opening import file_statistics, open_table

_AT_ONCE = 8
_SHOWN = 3


class MissingFilesError(LakeUnavailableError):
    """Data files of a table are gone."""


def data_files(table: DeltaTable) -> list[str]:
    """The data files that the log names, relative to the table, the newest first."""
    known = file_statistics(table)
    if not known.num_rows:
        return []
    return [str(path) for path in known.sort_by([("modification_time", "descending")]).column("path").to_pylist()]


def gone(lake: Lake, table: str, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of a table's files that are not there; one request for each.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        paths: relative to the table. An absolute one, as of a clone by another program, is passed over.
    """
    own = [path for path in paths if "://" not in path and not path.startswith("/")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        there = pool.map(lambda path: _is_there(lake, f"{table.replace('.', '/', 1)}/{path}"), own)
        return tuple(path for path, found in zip(own, there, strict=True) if not found)


def _is_there(lake: Lake, path: str) -> bool:
    # The log writes paths as URLs do.
    for spelling in dict.fromkeys((path, unquote(path))):
        try:
            lake.store.head(spelling)
        except (NotFoundError, FileNotFoundError):
            continue
        return True
    return False


def missing_files(lake: Lake, table: str, opened: DeltaTable) -> tuple[str, ...]:
    """All files of a version of a table that are not there, by one listing of its folder."""
    listed = objects_in(lake, table.replace(".", "/", 1))
    names = {entry["path"].rsplit("/", 1)[-1] for entry in listed}
    return gone(lake, table, [path for path in data_files(opened) if path not in names])


def describe_missing(table: str, version: int, missing: Sequence[str]) -> str:
    """What is missing, in words: the table, the version, the files."""
    more = f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
    files = "data file is gone" if len(missing) == 1 else "data files are gone"
    return f"table {table}, version {version}: {len(missing):,} {files}: {', '.join(missing[:_SHOWN])}{more}"


def refuse_missing(lake: Lake, table: str, opened: DeltaTable) -> None:
    """Refuses a table of which the log names files that are not there.

    Raises:
        MissingFilesError: if there are such files.
    """
    if missing := missing_files(lake, table, opened):
        raise MissingFilesError(
            f"{describe_missing(table, opened.version(), missing)}. Nothing was changed. Bring it back from a copy of "
            "the lake, or have the table computed again: docs/operate/runbook.md#data-file-missing."
        )


@contextmanager
def reading(lake: Lake, tables: Callable[[str], Iterable[str]], *, version: int | None = None) -> Iterator[None]:
    """Says which file is gone where DuckDB or Arrow fail to read tables.

    Args:
        lake: where.
        tables: that may be meant by what DuckDB says.
        version: that is read of them; None: the newest.

    Raises:
        MissingFilesError: if a file is gone.
    """
    try:
        yield
    except (duckdb.InvalidInputException, duckdb.IOException, OSError, pa.ArrowException) as error:
        for table in tables(str(error)):
            try:
                opened = open_table(lake, table, version=version)
            except (MissingTableError, LakeUnavailableError):
                continue  # it has an error of its own
            try:
                refuse_missing(lake, table, opened)
            except MissingFilesError as missing:
                raise missing from error
        raise
