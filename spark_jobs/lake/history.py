"""The history of a table: who committed what, and the ledger that rides in it."""

import json
from collections.abc import Callable
from typing import Any

import obstore
from obstore.exceptions import NotFoundError

from spark_jobs.lake.ledger import LedgerEntry
from spark_jobs.lake.location import Lake
from spark_jobs.lake.stamps import Stamp, decode
from spark_jobs.lake.tables import history, open_table


def latest_version(lake: Lake, table: str) -> int:
    """The newest version of a table.

    Raises:
        MissingTableError: if it does not exist.
    """
    return open_table(lake, table).version()


def commit_at(lake: Lake, table: str, version: int) -> dict[str, Any] | None:
    """The `commitInfo` of one version, read from its file alone; None if there is no such version yet."""
    actions = actions_at(lake, table, version)
    if actions is None:
        return None
    return next((dict(action["commitInfo"]) for action in actions if "commitInfo" in action), {})


def actions_at(lake: Lake, table: str, version: int) -> list[dict[str, Any]] | None:
    """The actions of one version, in the order of its commit; None if there is no such version yet."""
    path = f"{table.replace('.', '/', 1)}/_delta_log/{version:020d}.json"
    try:
        content = bytes(obstore.get(lake.store, path).bytes())
    except (NotFoundError, FileNotFoundError):
        return None
    return [json.loads(line) for line in content.splitlines()]


def find_stamp(lake: Lake, table: str, wanted: Callable[[Stamp], bool]) -> Stamp | None:
    """The newest commit of a table that somebody stamped so; None if there is none.

    Walks back from the newest version, one small file each: what is looked for is nearly always among the last.
    """
    version = latest_version(lake, table)
    while version >= 0 and (commit := commit_at(lake, table, version)) is not None:
        stamp = decode(commit)
        if stamp is not None and wanted(stamp):
            return stamp
        version -= 1
    return None


def ledger_rows(lake: Lake, table: str, pipeline: str, epoch: int) -> list[tuple[int, LedgerEntry]]:
    """The ledger of one epoch of a pipeline, from the history of its result table, in order of batches."""
    rows = {}
    for commit in history(open_table(lake, table)):
        stamp = decode(commit)
        if stamp and stamp.ledger and (stamp.pipeline, stamp.epoch) == (pipeline, epoch):
            rows[stamp.batch_id] = stamp.ledger
    return sorted(rows.items())


def newest_ledger_rows(
    lake: Lake, table: str, pipeline: str, epoch: int, batches: int
) -> list[tuple[int, LedgerEntry]]:
    """The ledger rows of the newest batches of one epoch, in order; reads no more of the history than it needs.

    Other writers may commit in between: at most ten commits are read for each batch that is wanted.
    """
    rows: dict[int, LedgerEntry] = {}
    version = latest_version(lake, table)
    for number in range(version, max(-1, version - 10 * batches), -1):
        commit = commit_at(lake, table, number)
        stamp = decode(commit) if commit else None
        if stamp and stamp.ledger and (stamp.pipeline, stamp.epoch) == (pipeline, epoch):
            rows.setdefault(stamp.batch_id, stamp.ledger)
            if len(rows) >= batches:
                break
    return sorted(rows.items())
