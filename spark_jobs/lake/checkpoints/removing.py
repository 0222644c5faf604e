"""A pipeline of which nothing stays: its tables, its checkpoint, and what was noted of both."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from spark_jobs.lake.checkpoints.claims import take_over
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.checkpoints.halts import FOLDER as HALTS
from spark_jobs.lake.checkpoints.ownership import FOLDER as OWNERS
from spark_jobs.lake.checkpoints.savepoints import drop, savepoints
from spark_jobs.lake.checkpoints.swapping import remove_table
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.folders import remove_folder
from spark_jobs.lake.tables.opening import UNREADABLE, open_table
from spark_jobs.lake.tables.watermarks import forget
from spark_jobs.plan.tables import all_beside


def remove_pipeline(lake: Lake, name: str, results: Iterable[str]) -> tuple[str, ...]:
    """Removes a pipeline that runs nowhere, so that one of its name begins as if there had been none.

    What the tables for operations have of it (`ops.*`) stays: they tell it apart by the ids of its tables. Its epochs
    go last, so that an interrupted removal is seen, and finished by the next one.

    Args:
        lake: where.
        name: of the pipeline.
        results: its result tables.

    Returns:
        The tables that were there.
    """
    tables = [table for result in sorted(set(results)) for table in all_beside(result)]
    if (epoch := current_epoch(lake, name)) is not None:
        _end(lake, epoch, tables)
    removed = tuple(table for table in tables if remove_table(lake, table)[0])
    for table in tables:
        _remove(lake, table.replace(".", "/", 1))
    forget(lake, name)
    for savepoint in savepoints(lake, name):
        drop(lake, savepoint)
    folders = [f"_savepoints/{name}", f"{HALTS}/{name}"]
    if epoch is not None:
        folders += [f"_checkpoints/{name}/epoch-{number}" for number in range(1, epoch.number + 1)]
    folders += [f"{OWNERS}/{result}" for result in sorted(set(results))]
    # Notes of an epoch before the epoch itself.
    folders += [f"_checkpoints/{name}/starts", f"_checkpoints/{name}/bootstraps", f"_checkpoints/{name}"]
    for folder in folders:
        _remove(lake, folder)
    return removed


def _remove(lake: Lake, folder: str) -> None:
    """Removes a folder; also those that are empty below it: Spark begins in no folder that has any."""
    remove_folder(lake, folder)
    if not lake.on_s3:
        shutil.rmtree(Path(lake.uri, folder), ignore_errors=True)


def _end(lake: Lake, epoch: Epoch, tables: Iterable[str]) -> None:
    """Ends an epoch in those of its tables that are left: a driver that nobody knows of commits nothing any more."""
    readable = []
    for table in tables:
        try:
            open_table(lake, table)
        except (MissingTableError, *UNREADABLE):
            continue
        readable.append(table)
    take_over(lake, epoch, readable)
