"""The Delta tables of a lake, read without a JVM."""

import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import BaseError, NotFoundError
from pyarrow.fs import PyFileSystem
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

from spark_jobs.lake.commit_records.conflicts import is_of_others
from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError, UnsupportedTableError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.protocol import opening, refuse_to_read, refuse_to_write
from spark_jobs.spec.names import in_duckdb, is_table_folder, visible_line

log = logging.getLogger("tidemark.lake")

LAYERS = ("bronze", "silver", "gold", "ops")

UNREADABLE = (LakeUnavailableError, DeltaError, OSError, pa.ArrowException)
"""What reading a table raises that is damaged or of another program: no trouble of the other tables."""


CHECKPOINT_INTERVAL = 20
"""Commits between two checkpoints of a table's log, each of which names all files of the table.

At each commit `deltalake` reads those since the newest checkpoint: with a hundred of them that takes longer than all
else (docs/decisions/0049). Tables made by earlier versions have checkpoints every 100 commits.
"""

_CHECKPOINTS_KEPT = 5
"""So many of the newest checkpoints are kept; and of so many of the newest `_WIDER_INTERVAL`s the first one."""

_WIDER_INTERVAL = 100
"""Commits. A version is read from the checkpoint before it: a reader that catches up asks for some of long ago."""

_LOOKED_BACK = 2_000
"""Among so many commits old checkpoints are looked for."""

_left_out: set[tuple[str, str, str]] = set()

_CHECKPOINT = re.compile(r"_delta_log/(?P<version>\d{20})\.checkpoint\.")


again_at_conflicts = retry(
    retry=retry_if_exception(is_of_others),
    stop=stop_after_attempt(10),
    wait=wait_random_exponential(multiplier=0.05, max=2),
    reraise=True,
)
"""For what writes to a table to which all processes of a lake write."""


def open_table(lake: Lake, table: str, *, version: int | None = None, to_write: bool = False) -> DeltaTable:
    """Opens a table at its latest version, or at the one asked for.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        version: None: the latest.
        to_write: its files or its log are to be written, so that more of what it needs must be understood.

    Raises:
        MissingTableError: if it does not exist.
        UnsupportedTableError: if it needs what is not implemented: its rows would be shown as other ones.
        LakeUnavailableError: if the store does not answer or refuses, or the table's log is broken.
    """
    try:
        with opening(table):
            opened = DeltaTable(lake.table_uri(table), version=version, storage_options=lake.storage_options)
        (refuse_to_write if to_write else refuse_to_read)(table, opened)
        return opened
    except TableNotFoundError as error:
        raise MissingTableError(f"table {table}: not in the lake {lake.uri}.") from error
    except (DeltaError, OSError) as error:
        raise LakeUnavailableError(
            f"table {table}: in the lake {lake.uri}, cannot be read: {first_line(error)}"
        ) from error


def open_or_create(lake: Lake, table: str, schema: Schema, properties: Mapping[str, str] | None = None) -> DeltaTable:
    """Opens a table to write to it; creates it first where there is none, once, however many processes do so at once.

    Args:
        lake: where.
        table: such as `ops.metrics`.
        schema: its columns, if it is created.
        properties: of Delta's, if it is created.

    Raises:
        UnsupportedTableError: if it is there and needs what is not implemented.
    """
    with opening(table):
        opened = _open_or_create(lake, table, schema, properties)
    refuse_to_write(table, opened)
    return opened


def _open_or_create(lake: Lake, table: str, schema: Schema, properties: Mapping[str, str] | None) -> DeltaTable:
    uri, options = lake.table_uri(table), lake.storage_options
    try:
        return DeltaTable.create(
            uri,
            schema,
            mode="ignore",
            # A long log is slow to open.
            configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL), **(properties or {})},
            storage_options=options,
            # Who comes second at the same moment would otherwise make the table again in its next version, under
            # another id, which stops those that read it or append to it.
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:
        if not DeltaTable.is_deltatable(uri, options):
            raise
        return DeltaTable(uri, storage_options=options)


def exists(lake: Lake, table: str) -> bool:
    """Whether the lake has this table, understood or not."""
    try:
        open_table(lake, table)
    except MissingTableError:
        return False
    except UnsupportedTableError:
        return True
    return True


def table_names(lake: Lake) -> tuple[str, ...]:
    """Every table of the lake, side tables included, in order of layer and name."""
    return tuple(name for name in table_folders(lake) if exists(lake, name))


def table_folders(lake: Lake) -> Iterator[str]:
    """The names under which tables may lie, in order of layer and name.

    What else lies there is left out, with a notice: names of the store are not trusted.
    """
    for layer in LAYERS:
        for name in _folders(lake, layer):
            if is_table_folder(name):
                yield f"{layer}.{name}"
            else:
                _leave_out(lake, layer, name)


def _folders(lake: Lake, layer: str) -> list[str]:
    store = lake.store
    if lake.on_s3:
        found = store.list_with_delimiter(f"{layer}/")["common_prefixes"]
        return [prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in found]
    # The store lists nothing where one folder has a control character in its name.
    folder = Path(lake.uri, layer)
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []


def _leave_out(lake: Lake, layer: str, name: str) -> None:
    """Says once that a folder is passed over: who has made it may be anybody."""
    if (lake.uri, layer, name) not in _left_out:
        _left_out.add((lake.uri, layer, name))
        log.warning(
            "lake %s: left out %s, which no table is called: expected letters, digits, underscores and hyphens",
            lake.uri,
            visible_line(repr(f"{layer}/{name}")),
        )


def file_statistics(table: DeltaTable) -> pa.Table:
    """One row per data file, from the log alone: `size_bytes`, `num_records`, and `min.<column>`, `max.<column>`."""
    return pa.table(table.get_add_actions(flatten=True))


def row_count(table: DeltaTable) -> int:
    """Rows of the table, from the log alone; counted where another writer left no statistics."""
    statistics = file_statistics(table)
    counts = statistics.column("num_records").to_pylist() if statistics.num_rows else []
    return table.to_pyarrow_dataset().count_rows() if None in counts else sum(counts)


def newest(table: DeltaTable, column: str, *, beside: str | None = None) -> Any:
    """The greatest value of a column, from the files' statistics; None where no file has one.

    Delta keeps timestamps in statistics to the millisecond, cut off.

    Args:
        table: the table.
        column: a column that the files' statistics cover.
        beside: leave out files in which this column has no value: those of heartbeats have no `_ingest_seq`.
    """
    statistics = file_statistics(table)
    name, other = f"max.{column}", f"max.{beside}"
    if name not in statistics.column_names:
        return None
    values = statistics.column(name).to_pylist()
    counts = statistics.column(other).to_pylist() if other in statistics.column_names else values
    return max(
        (v for v, count in zip(values, counts, strict=True) if v is not None and count is not None), default=None
    )


def newest_beside(table: DeltaTable, column: str, beside: str) -> tuple[int | None, int | None] | None:
    """The newest times of rows that have a value in another column and of those that have none, from the log alone.

    Delta keeps timestamps in statistics to the millisecond, cut off.

    Args:
        table: the table.
        column: a timestamp.
        beside: the other column.

    Returns:
        Both in microseconds since 1970, None where there is no such row with a time. None instead of both where the
        statistics do not tell: they do not cover the columns, or a file has rows of both kinds.
    """
    statistics = file_statistics(table)
    wanted = ("num_records", f"null_count.{beside}", f"null_count.{column}", f"max.{column}")
    if not set(wanted) <= set(statistics.column_names):
        return None
    rows, without, empty, greatest = (statistics.column(name) for name in wanted)
    if not pa.types.is_timestamp(greatest.type):
        return None
    has, has_not = pc.equal(without, 0), pc.equal(without, rows)
    told = pc.and_(pc.or_(has, has_not), pc.or_(pc.is_valid(greatest), pc.equal(empty, rows)))
    if not pc.all(pc.fill_null(told, False)).as_py():
        return None
    times = greatest.cast(pa.timestamp("us", greatest.type.tz)).cast(pa.int64())
    return pc.max(times.filter(has)).as_py(), pc.max(times.filter(pc.invert(has))).as_py()


def files_holding(table: DeltaTable, column: str, values: Sequence[Any]) -> list[str]:
    """The data files, relative to the table, that may hold one of the values by their statistics.

    Args:
        table: the table.
        column: a column that the files' statistics cover.
        values: in ascending order.
    """
    statistics = file_statistics(table)
    low, high, empty, rows = f"min.{column}", f"max.{column}", f"null_count.{column}", "num_records"
    if not {low, high, empty} <= set(statistics.column_names):
        return [str(path) for path in statistics.column("path").to_pylist()]

    def may_hold(file: dict[str, Any]) -> bool:
        if file[low] is None or file[high] is None:
            # Heartbeats have no sequence number, and no other program need write statistics.
            return file[empty] is None or file[empty] != file[rows]
        return bisect_left(values, file[low]) < bisect_right(values, file[high])

    known = statistics.select(["path", low, high, empty, rows]).to_pylist()
    return [str(file["path"]) for file in known if may_hold(file)]


def rows_holding(
    lake: Lake, table: str, column: str, values: Sequence[Any], *, opened: DeltaTable | None = None
) -> pa.Table:
    """The rows that have one of the values, from the files that may hold them.

    Args:
        lake: where.
        table: such as `bronze.sales`.
        column: a column that the files' statistics cover.
        values: in ascending order; few enough for the rows to be kept in memory.
        opened: the table at the version that is to be read; None: the newest.
    """
    opened = opened or open_table(lake, table)
    files, schema = files_holding(opened, column, values), pa.schema(opened.schema().to_arrow())
    if not files:
        return schema.empty_table()
    wanted = pa.array(values, schema.field(column).type)
    if lake.on_s3:
        return _scan_s3(lake, table, files, schema, column, wanted)
    return _scan_folder(lake, table, files, column, wanted).select(schema.names).cast(schema)


def _scan_folder(lake: Lake, table: str, files: Sequence[str], column: str, wanted: pa.Array) -> pa.Table:
    """By DuckDB, which does not build the rows that it leaves out: twice as fast as Arrow over 50 columns."""
    with _connection() as connection:
        connection.register("wanted", pa.table({column: wanted}))
        paths = [f"{lake.table_path(table)}/{path}" for path in files]
        # Else `store=berlin` in the lake's own path would be a column, or take the place of one.
        rows = "SELECT * FROM read_parquet($paths, hive_partitioning = false)"
        query = f"{rows} SEMI JOIN wanted USING ({in_duckdb(column)})"
        return connection.sql(query, params={"paths": paths}).to_arrow_table()


def _connection() -> duckdb.DuckDBPyConnection:
    """To be closed after use; what is registered with it goes then."""
    connection = _database().cursor()
    # Commits of Spark and of `deltalake` write times in different types, which DuckDB brings together by its zone.
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One for the process: to make one takes longer than to ask it for a few rows."""
    # It would remember each file that it reads.
    return duckdb.connect(config={"enable_external_file_cache": False})


def _scan_s3(
    lake: Lake, table: str, files: Sequence[str], schema: pa.Schema, column: str, wanted: pa.Array
) -> pa.Table:
    """By Arrow: DuckDB would need an extension that it fetches from the network."""
    import pyarrow.dataset as ds  # imports pandas, which every start of a command would wait for

    found = ds.dataset(
        files,
        schema=schema,
        # Spark writes timestamps as INT96, which would be read in nanoseconds and overflow in 2262.
        format=ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")),
        filesystem=PyFileSystem(DeltaStorageHandler(lake.table_uri(table), lake.storage_options)),
    )
    return found.to_table(filter=pc.field(column).isin(wanted))


def rows_without(rows: pa.Table, others: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows whose key none of the others has, one of each key; nulls are a key like any other.

    Args:
        rows: to choose from.
        others: rows of the same columns.
        keys: columns of both, at least one.
    """
    same = " AND ".join(f"rows.{in_duckdb(name)} IS NOT DISTINCT FROM others.{in_duckdb(name)}" for name in keys)
    with _connection() as connection:
        connection.register("rows", rows)
        connection.register("others", others)
        one = ", ".join(map(in_duckdb, keys))
        found = connection.sql(
            f"SELECT DISTINCT ON ({one}) rows.* FROM rows ANTI JOIN others ON {same}"
        ).to_arrow_table()
    return found.cast(rows.schema)


def history(table: DeltaTable, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The commits of the table, newest first, as Delta's `commitInfo` has them."""
    yield from table.history(limit)


def prune_log_checkpoints(lake: Lake, table: str, version: int) -> None:
    """Removes old checkpoints of a table's log, once in an interval; commits stay.

    Each checkpoint names all files of the table, so that all of them together would grow with the square of the
    commits. Neither Delta nor `deltalake` removes them as long as the log itself is kept.

    Args:
        lake: where.
        table: such as `bronze.sales`.
        version: that the caller has just committed: of each interval one commit does this.
    """
    if version % CHECKPOINT_INTERVAL != 1:
        return
    folder = f"{table.replace('.', '/', 1)}/_delta_log"
    # Names are in order of versions; what was left before is older than all that is looked at here.
    oldest = max(0, version - _LOOKED_BACK)
    found: dict[int, list[str]] = {}
    for entry in lake.store.list(f"{folder}/", offset=f"{folder}/{oldest:020d}").collect():
        if match := _CHECKPOINT.search(entry["path"]):
            found.setdefault(int(match["version"]), []).append(entry["path"])
    versions = sorted(found)
    apart = {each // _WIDER_INTERVAL: each for each in reversed(versions)}
    kept = {*versions[-_CHECKPOINTS_KEPT:], *sorted(apart.values())[-_CHECKPOINTS_KEPT:]}
    # The log may begin with one, where what was before it has been cut.
    old = [
        path for each in versions if each not in kept and not _begins_log(lake, folder, each) for path in found[each]
    ]
    if old:
        try:
            lake.store.delete(old)
        except (BaseError, OSError) as error:
            # Room that is not given back; the next interval tries again.
            log.warning("%s: old checkpoints of its log cannot be removed: %s", table, first_line(error))


def checkpoint_interval(opened: DeltaTable) -> int:
    """Commits between two checkpoints of the log of a table, which may have been made by an earlier version."""
    return int(opened.metadata().configuration.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))


def _begins_log(lake: Lake, folder: str, version: int) -> bool:
    """Whether the log has no commit before a version."""
    try:
        lake.store.head(f"{folder}/{version - 1:020d}.json")
    except (NotFoundError, FileNotFoundError):
        return True
    return False
