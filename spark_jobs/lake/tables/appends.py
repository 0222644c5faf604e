"""Appends of few rows, without a JVM (docs/decisions/0015).

`deltalake` writes data files and links the commit that names them in one call, and forces nothing to the disk. In a
folder lake it therefore writes to a scratch table first. The files are copied to their place and forced, then named.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import obstore
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, WriterProperties, write_deltalake
from deltalake.transaction import AddAction
from obstore.exceptions import BaseError

from spark_jobs.lake.commit_records.history import actions_at
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import force_file, force_folder
from spark_jobs.lake.tables.opening import again_at_conflicts, open_or_create, prune_log_checkpoints

COMPRESSED = WriterProperties(compression="ZSTD")
"""How data files are written, by merges and by Spark too (`spark/settings.py`): half the bytes of the usual choice."""


@again_at_conflicts
def append_rows(lake: Lake, table: str, rows: pa.Table) -> None:
    """Appends to a table that many processes write, and creates it with the first rows; columns that are new are
    added."""
    schema = Schema.from_arrow(rows.schema)
    target = open_or_create(lake, table, schema)
    known = {field.name for field in target.schema().fields}
    if added := [field for field in schema.fields if field.name not in known]:
        # An earlier version of Tidemark has created it.
        target.alter.add_columns(added)
    append(lake, table, target, rows)
    target.update_incremental()
    prune_log_checkpoints(lake, table, target.version())


def append(
    lake: Lake, table: str, opened: DeltaTable, rows: pa.Table, properties: CommitProperties | None = None
) -> None:
    """Appends rows to a table in one commit; also without rows there is one.

    In a folder lake the data files and their names are on the disk before the commit gets its name. Who relies on the
    commit itself forces it afterwards, see `force_commit`. Where the commit fails, its data files stay: it may be
    there all the same, when only its answer got lost.

    Args:
        lake: where.
        table: such as `gold.totals`.
        opened: the table; a transaction id that another writer has committed since conflicts.
        rows: with the columns of the table.
        properties: of the commit.

    Raises:
        CommitFailedError: if another writer is in the way.
    """
    # Tidemark makes no table with partitions, whose folders would have to be made and forced too.
    if lake.on_s3 or not rows.num_rows or opened.metadata().partition_columns:
        write_deltalake(opened, rows, mode="append", commit_properties=properties, writer_properties=COMPRESSED)
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-append-") as folder:
        scratch = Lake(folder)
        write_deltalake(twin(opened, scratch, table), rows, mode="append", writer_properties=COMPRESSED)
        actions = actions_at(scratch, table, 1) or []
        added = [action["add"] for action in actions if "add" in action]
        place_files(
            Path(scratch.table_path(table)), Path(lake.table_path(table)), [unquote(add["path"]) for add in added]
        )
    metrics = next(action["commitInfo"]["operationMetrics"] for action in actions if "commitInfo" in action)
    _name(opened, added, metrics, properties)


def append_files(
    lake: Lake, table: str, opened: DeltaTable, added: Sequence[Mapping[str, Any]], properties: CommitProperties
) -> None:
    """Appends data files that lie in the folder of a table already, in one commit; also without files there is one.

    In a folder lake they are forced to the disk before the commit gets its name, as in `append`.

    Args:
        lake: where.
        table: such as `gold.totals`.
        opened: as in `append`.
        added: the `add` action of each file.
        properties: of the commit.

    Raises:
        CommitFailedError: if another writer is in the way.
    """
    if not added:
        append(lake, table, opened, pa.schema(opened.schema().to_arrow()).empty_table(), properties)
        return
    if not lake.on_s3:
        folder = Path(lake.table_path(table))
        for file in added:
            force_file(folder / unquote(file["path"]))
        force_folder(folder)
    rows = sum(json.loads(file["stats"])["numRecords"] for file in added)
    _name(opened, added, {"num_added_files": len(added), "num_added_rows": rows}, properties)


def remove_files(lake: Lake, table: str, added: Sequence[Mapping[str, Any]]) -> None:
    """Removes data files that no commit names and none will; what cannot be removed is left to a vacuum."""
    for file in added:
        with suppress(BaseError, OSError):
            obstore.delete(lake.store, f"{table.replace('.', '/', 1)}/{unquote(file['path'])}")


def _name(
    opened: DeltaTable,
    added: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, Any],
    properties: CommitProperties | None,
) -> None:
    """Commits data files that are in their place."""
    properties = properties or CommitProperties()
    opened.create_write_transaction(
        [_action(add) for add in added],
        mode="append",
        schema=opened.schema(),
        commit_properties=CommitProperties(
            # A bare transaction has none; the number of rows is held against the batch.
            custom_metadata={**(properties.custom_metadata or {}), "operationMetrics": metrics},
            max_commit_retries=properties.max_commit_retries,
            app_transactions=properties.app_transactions,
        ),
    )


def twin(table: DeltaTable, lake: Lake, name: str) -> DeltaTable:
    """An empty table like another: rows are checked, written and counted in it as they would be in the other.

    Its log is written here: to make a table by `deltalake` takes longer, and refuses settings that it does not know.
    """
    metadata, protocol = table.metadata(), table.protocol()
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    actions: tuple[dict[str, Any], ...] = (
        {
            "protocol": {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                **{key: value for key, value in features.items() if value is not None},
            }
        },
        {
            "metaData": {
                "id": str(metadata.id),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": table.schema().to_json(),
                "partitionColumns": metadata.partition_columns,
                "configuration": metadata.configuration,
            }
        },
    )
    log = Path(lake.table_path(name), "_delta_log")
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return DeltaTable(lake.table_uri(name))


def place_files(source: Path, target: Path, names: list[str]) -> None:
    """Copies files to another folder and waits until they and their names are on the disk.

    Raises:
        OSError: if one cannot be copied, or the folder has a file of its name already: that one stays as it is, and
            none of the others is left there.
    """
    placed: list[Path] = []
    try:
        for name in names:
            with (source / name).open("rb") as written, (target / name).open("xb") as file:
                placed.append(target / name)
                shutil.copyfileobj(written, file)
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        for path in placed:
            path.unlink(missing_ok=True)  # a full disk must not be filled by one attempt after the other
        raise
    force_folder(target)


def _action(add: Mapping[str, Any]) -> AddAction:
    return AddAction(
        path=add["path"],
        size=add["size"],
        partition_values=add["partitionValues"],
        modification_time=add["modificationTime"],
        data_change=True,
        stats=add["stats"],
    )
