"""Few large data files instead of many small ones, beside running streams and without a JVM.

Rows stay as they are: the commit says so (`dataChange` is false), and readers pass over it. Files are drawn together in
the order in which they came, and the new file keeps the time of the newest of them: Delta gives a new reader the files
of a table in order of that time, so that a stream which begins with a compacted table reads its events in order of
arrival.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import AlreadyExistsError, BaseError
from pyarrow.fs import PyFileSystem

from spark_jobs.lake.accounting.ledger_table import Actions, files_of
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import actions_at
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import create_object
from spark_jobs.lake.tables.appends import COMPRESSED, place_files, twin
from spark_jobs.lake.tables.files import data_files
from spark_jobs.lake.tables.opening import CHECKPOINT_INTERVAL, file_statistics, open_table, prune_log_checkpoints
from spark_jobs.lake.tables.protocol import VARIANT, not_read, not_written

TARGET_BYTES = 64 * 2**20
"""So large a file becomes; its rows are held in memory while it is written."""

FEWEST = 8
"""So many small files are worth a commit."""

_TRIES = 20


@dataclass(frozen=True)
class DataFile:
    """A data file of a table, by its log.

    Attributes:
        path: relative to the table, as the log has it.
        size: in bytes.
        modified_ms: when it was written, milliseconds since 1970.
        rows: in it; None where its statistics do not tell.
        is_heartbeat: whether its rows are heartbeats, which are no events.
    """

    path: str
    size: int
    modified_ms: int
    rows: int | None
    is_heartbeat: bool = False


def data_files_of(opened: DeltaTable) -> list[DataFile]:
    """The data files of a table, in the order in which they came."""
    statistics = file_statistics(opened)
    names = ("path", "size_bytes", "modification_time", "num_records", "null_count._ingest_seq", "min._ingest_seq")
    found = statistics.select([name for name in names if name in statistics.column_names]).to_pylist()
    files = [
        (
            file.get("min._ingest_seq") or 0,
            DataFile(
                str(file["path"]),
                int(file["size_bytes"]),
                int(file["modification_time"]),
                file["num_records"],
                bool(file["num_records"]) and file.get("null_count._ingest_seq") == file["num_records"],
            ),
        )
        for file in found
    ]
    return [file for _, file in sorted(files, key=lambda each: (each[1].modified_ms, each[0], each[1].path))]


def groups_to_compact(
    files: Sequence[DataFile], *, written_before_ms: int, target: int = TARGET_BYTES, fewest: int = FEWEST
) -> list[tuple[DataFile, ...]]:
    """The files that are to become one, group by group.

    Args:
        files: in the order in which they came.
        written_before_ms: newer ones are left: a stream may be about to write them anew.
        target: bytes of a group.
        fewest: files of a group.
    """
    groups: list[tuple[DataFile, ...]] = []
    for heartbeats in (False, True):
        group: list[DataFile] = []
        size = 0
        for file in (each for each in files if each.is_heartbeat == heartbeats):
            fits = file.size < target // 2 and file.modified_ms < written_before_ms
            # Files of one instant stay together: the order among them is that of their names.
            whole = size + file.size > target and bool(group) and file.modified_ms != group[-1].modified_ms
            if (not fits or whole) and group:
                groups.append(tuple(group))
                group, size = [], 0
            if fits:
                group.append(file)
                size += file.size
        groups.append(tuple(group))
    return [group for group in groups if len(group) >= fewest]


def can_be_compacted(opened: DeltaTable) -> bool:
    """Whether a commit of our own honours all that the table asks of its writers."""
    if not_read(opened) or not_written(opened) or VARIANT in (opened.protocol().writer_features or ()):
        return False
    return not opened.metadata().partition_columns


def compact(lake: Lake, table: str, group: Sequence[DataFile], order: Sequence[str]) -> int | None:
    """Writes the rows of some files to one file, and puts it in their place.

    Args:
        lake: where.
        table: such as `bronze.sales`.
        group: files of the table.
        order: columns that the rows are sorted by; empty: they stay in the order in which they came.

    Returns:
        The version of the table; None: another writer has taken one of the files away meanwhile.

    Raises:
        LedgerError: if other rows would stand there than before; nothing is changed then.
        UnsupportedTableError: if the table needs what is not implemented.
    """
    opened = open_table(lake, table, to_write=True)
    if not {file.path for file in group} <= set(data_files(opened)):
        return None
    rows = _rows(lake, table, opened, group)
    if (expected := sum(file.rows or 0 for file in group)) != rows.num_rows and all(f.rows is not None for f in group):
        raise LedgerError(
            f"table {table}: {len(group)} data files hold {rows.num_rows:,} rows, their log says {expected:,}. "
            f"Nothing was changed. Look for what is wrong: {command('audit')}."
        )
    _refuse_other_nulls(table, opened, group, rows)
    if order:
        rows = rows.sort_by([(name, "ascending") for name in order])
    with tempfile.TemporaryDirectory(prefix="tidemark-compact-") as folder:
        scratch = Lake(folder)
        written = twin(opened, scratch, table)
        write_deltalake(written, rows, mode="append", writer_properties=COMPRESSED)
        _refuse_other_content(table, rows, written)
        added = [action["add"] for action in actions_at(scratch, table, 1) or [] if "add" in action]
        names = [unquote(add["path"]) for add in added]
        source = Path(scratch.table_path(table))
        if lake.on_s3:
            for name in names:
                lake.store.put(f"{table.replace('.', '/', 1)}/{name}", source / name)
        else:
            place_files(source, Path(lake.table_path(table)), names)
    actions = _actions(group, added, rows.num_rows)
    version = _commit(lake, table, opened.version(), {file.path for file in group}, actions)
    if version is None:
        _remove(lake, table, names)
    return version


def _rows(lake: Lake, table: str, opened: DeltaTable, group: Sequence[DataFile]) -> pa.Table:
    import pyarrow.dataset as ds  # imports pandas, which every start of a command would wait for

    found = ds.dataset(
        [unquote(file.path) for file in group],
        schema=pa.schema(opened.schema().to_arrow()),
        # Spark writes timestamps as INT96, which would be read in nanoseconds and overflow in 2262.
        format=ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")),
        filesystem=PyFileSystem(DeltaStorageHandler(lake.table_uri(table), lake.storage_options)),
    )
    # They would be lost; and a file whose columns all have other names reads as NULLs.
    for fragment in found.get_fragments():
        if unknown := sorted(set(fragment.physical_schema.names) - set(found.schema.names)):
            raise _unlike(table, f"{fragment.path} has columns {unknown}, which the table does not have")
    return found.to_table()


def _refuse_other_nulls(table: str, opened: DeltaTable, group: Sequence[DataFile], rows: pa.Table) -> None:
    """What was read is held against the log, which says how many nulls each column of a file has."""
    statistics = file_statistics(opened)
    mine = statistics.filter(pc.is_in(statistics.column("path"), pa.array([file.path for file in group])))
    for name in rows.column_names:
        told = f"null_count.{name}"
        if told not in mine.column_names or not pa.types.is_integer(mine.schema.field(told).type):
            continue
        counts = mine.column(told)
        if not counts.null_count and (expected := pc.sum(counts).as_py()) != rows.column(name).null_count:
            found = rows.column(name).null_count
            raise _unlike(table, f"column {name!r} has {found:,} nulls where its log says {expected:,}")


def _refuse_other_content(table: str, rows: pa.Table, written: DeltaTable) -> None:
    """What was written is read again, and held against what was read before."""
    before, after = _content(rows), _content(written.to_pyarrow_dataset().scanner().to_reader())
    if before != after:
        names = ("rows", "values", *(f"column {name!r}" for name in rows.column_names))
        differing = [name for name, one, other in zip(names, before, after, strict=True) if one != other]
        raise _unlike(table, f"what was written has other {', '.join(differing)} than what was read")


def _content(rows: object) -> tuple[object, ...]:
    """How many rows there are, a sum over all their values that no order changes, and the values of each column."""
    with duckdb.connect() as connection:
        # Commits of Spark and of `deltalake` write times in different types.
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("held", rows)
        found = connection.execute(
            "SELECT count(*), sum(CAST(hash(*COLUMNS(*)) AS HUGEINT)), sum(CAST(hash(COLUMNS(*)) AS HUGEINT)) FROM held"
        ).fetchone()
    return tuple(found or ())


def _unlike(table: str, what: str) -> LedgerError:
    return LedgerError(
        f"table {table}: expected the same content after its small files are drawn together, got: {what}. Nothing was "
        f"changed. Look for what is wrong: {command('audit')}."
    )


def _actions(group: Sequence[DataFile], added: Sequence[dict[str, Any]], rows: int) -> Actions:
    now = time.time_ns() // 1_000_000
    info = {
        "timestamp": now,
        "operation": "OPTIMIZE",
        "operationParameters": {"predicate": "[]"},
        "isBlindAppend": False,
        "engineInfo": "tidemark",
        "operationMetrics": {
            "numRemovedFiles": len(group),
            "numAddedFiles": len(added),
            "numRemovedBytes": sum(file.size for file in group),
            "numAddedBytes": sum(add["size"] for add in added),
            "numCopiedRows": rows,
        },
    }
    # Of all the files that came before and after it, it stands where the newest of its own stood.
    came_ms = max(file.modified_ms for file in group)
    return [
        {"commitInfo": info},
        *(
            {
                "remove": {
                    "path": file.path,
                    "deletionTimestamp": now,
                    "dataChange": False,
                    "extendedFileMetadata": True,
                    "partitionValues": {},
                    "size": file.size,
                }
            }
            for file in group
        ),
        *(
            {
                "add": {
                    "path": add["path"],
                    "partitionValues": {},
                    "size": add["size"],
                    "modificationTime": came_ms,
                    "dataChange": False,
                    "stats": add["stats"],
                }
            }
            for add in added
        ),
    ]


def _commit(lake: Lake, table: str, read: int, taken: set[str], actions: Actions) -> int | None:
    """Creates the next version; of what others commit meanwhile only the loss of one of the files is a conflict."""
    content = "".join(f"{json.dumps(action)}\n" for action in actions).encode()
    version = read + 1
    for _ in range(_TRIES):
        while (others := actions_at(lake, table, version)) is not None:
            removed = [{"remove": action["remove"]} for action in others if "remove" in action]
            if files_of(removed) & taken or any("metaData" in action or "protocol" in action for action in others):
                return None
            version += 1
        try:
            create_object(lake, f"{table.replace('.', '/', 1)}/_delta_log/{version:020d}.json", content)
        except AlreadyExistsError:
            continue
        if version % CHECKPOINT_INTERVAL == 0:
            open_table(lake, table).create_checkpoint()
        prune_log_checkpoints(lake, table, version)
        return version
    return None


def _remove(lake: Lake, table: str, names: Sequence[str]) -> None:
    try:
        lake.store.delete([f"{table.replace('.', '/', 1)}/{name}" for name in names])
    except (BaseError, OSError):
        return  # nothing names them; the next vacuum removes them
