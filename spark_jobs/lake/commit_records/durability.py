"""Commits that outlive a loss of power, and those that one has torn."""

from pathlib import Path
from urllib.parse import unquote

from spark_jobs.lake.commit_records.history import actions_at
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import force_file, force_folder


def force_commit(lake: Lake, table: str, version: int, *, data: bool = True) -> None:
    """Waits until a commit of a table, and the data files that it names, are on the disk of a folder lake.

    `deltalake` links a commit without waiting for that; only the data files of an append are there before, see
    `appends`. Until it has happened nobody may note the batch as finished: what a loss of power leaves of such a commit
    is found at the next start, and the batch runs again.

    Args:
        lake: where.
        table: such as `gold.totals`.
        version: of the commit.
        data: also the data files; False: the commit alone.
    """
    if lake.on_s3:
        return
    folder = Path(lake.table_path(table))
    added = [file for file, _ in added_files(lake, table, version)] if data else []
    for file in (*added, folder / "_delta_log" / f"{version:020d}.json"):
        force_file(file)
    for each in {folder / "_delta_log", *(file.parent for file in added)}:
        force_folder(each)


def torn_file(lake: Lake, table: str, version: int) -> str | None:
    """A data file of a commit in a folder lake that is not there, or not whole; None: all are."""
    for file, size in added_files(lake, table, version) if not lake.on_s3 else ():
        found = file.stat().st_size if file.exists() else None
        if found != size:
            return f"{file} has {'no' if found is None else found} of {size} bytes"
    return None


def added_files(lake: Lake, table: str, version: int) -> list[tuple[Path, int]]:
    """The data files that a commit adds to a table of a folder lake, and their sizes in bytes."""
    actions = actions_at(lake, table, version) or []
    added = [action["add"] for action in actions if "add" in action]
    return [(Path(lake.table_path(table), unquote(add["path"])), int(add["size"])) for add in added]
