"""Keeps the commits of a table in `ops.ledger`, with what they add up to: a look at history costs what is new.

The process that writes a table does it every few hundred commits; maintenance does it for all tables, before it cuts
their logs.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from obstore.exceptions import BaseError
from pydantic import ValidationError

from spark_jobs.lake.accounting.ledger import LedgerEntry, LedgerSums
from spark_jobs.lake.accounting.ledger_table import (
    BATCH,
    HEARTBEAT,
    OTHER,
    REPLAY,
    RESET,
    REVISION,
    SCHEMA,
    SIDE,
    SUMS,
    TABLE,
    Actions,
    KeptCommits,
    files_added,
    writer_of,
)
from spark_jobs.lake.checkpoints.epochs import epoch_at
from spark_jobs.lake.checkpoints.lineage import lineage
from spark_jobs.lake.checkpoints.reset import EMPTIED
from spark_jobs.lake.commit_records.conflicts import is_of_others
from spark_jobs.lake.commit_records.history import commits_between, info_of, latest_version, ledger_rows
from spark_jobs.lake.commit_records.replay_commits import decode_replay
from spark_jobs.lake.commit_records.revisions import decode_revision
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import TidemarkError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.appends import append
from spark_jobs.lake.tables.opening import open_or_create, open_table, prune_log_checkpoints
from spark_jobs.plan import logical as plan
from spark_jobs.plan.columns import INGEST_SEQ
from spark_jobs.plan.equations import Equation
from spark_jobs.spec import definition_from_json

log = logging.getLogger("tidemark.lake")

EVERY = 200
"""So many commits of a table are kept at once by the process that writes it."""

_AT_ONCE = 5_000

_PROPERTIES = {"delta.dataSkippingStatsColumns": "table,version"}

_SAID = ("timestamp", "operation", "operationMetrics", "userMetadata", "engineInfo", EMPTIED)


def compact_ledger(lake: Lake, table: str) -> int:
    """Keeps the commits of a table that `ops.ledger` does not have yet.

    Of several processes that do so at the same moment one does; the others have nothing to do any more.

    Args:
        lake: where.
        table: such as `gold.top_products`; a table of `ops` has no ledger.

    Returns:
        How many commits were added.
    """
    added = 0
    while True:
        kept, newest = KeptCommits(lake, table), latest_version(lake, table)
        first = kept.below
        last = min(newest, first + _AT_ONCE - 1)
        if first > newest:
            return added
        commits = list(commits_between(lake, table, first, last))
        if [version for version, _ in commits] != list(range(first, last + 1)):
            known = {version for version, _ in commits}
            gone = next(version for version in range(first, last + 1) if version not in known)
            raise TidemarkError(
                f"table {table}: its log has no version {gone} any more, and {TABLE} has none from {first} on: "
                "another program has cut it. Nothing was changed."
            )
        table_id = str(open_table(lake, table).metadata().id)
        rows = [_row(table, version, actions) for version, actions in commits]
        rows = [{"table_id": table_id, **row} for row in (*rows, *_sums(lake, table, kept, commits))]
        opened = open_or_create(lake, TABLE, Schema.from_arrow(SCHEMA), _PROPERTIES)
        try:
            append(
                lake,
                TABLE,
                opened,
                pa.Table.from_pylist(rows, schema=SCHEMA),
                CommitProperties(
                    app_transactions=[Transaction(writer_of(table, table_id), last)], max_commit_retries=15
                ),
            )
        except CommitFailedError as error:
            # Another process has kept them; or many were at it, and the next time will do.
            if not is_of_others(error) or KeptCommits(lake, table).below <= first:
                raise
            continue
        opened.update_incremental()
        prune_log_checkpoints(lake, TABLE, opened.version())
        added += len(commits)


def compact_ledger_now_and_then(lake: Lake, table: str, version: int) -> None:
    """Keeps the commits of a table, every few hundred of them; for the process that has just made one.

    Nothing depends on it: where it fails, the next time, or maintenance, makes good for it.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        version: of the commit.
    """
    if not version or version % EVERY:
        return
    try:
        compact_ledger(lake, table)
    except (TidemarkError, DeltaError, BaseError, OSError, pa.ArrowException) as error:
        log.warning("%s: its commits could not be kept in %s: %s", table, TABLE, first_line(error))


def _row(table: str, version: int, actions: Actions) -> dict[str, Any]:
    info = info_of(actions)
    stamp, revision, replayed = decode(info), decode_revision(info), decode_replay(info)
    signed = stamp or revision or replayed
    entry = signed.ledger if signed else None
    if stamp is not None:
        kind = HEARTBEAT if stamp.role == "heartbeat" else BATCH if stamp.ledger else SIDE
    elif revision is not None:
        kind = REVISION
    elif replayed is not None:
        kind = REPLAY
    else:
        kind = RESET if info.get(EMPTIED) == "reset" else OTHER
    counts = [file.rows for file in files_added(actions)]
    return {
        "table": table,
        "version": version,
        "committed_at": datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1000, UTC),
        "kind": kind,
        "pipeline": signed.pipeline if signed else None,
        "epoch": signed.epoch if signed else None,
        "batch_id": stamp.batch_id if stamp else None,
        "role": signed.role if signed else None,
        "rows_added": None if None in counts else sum(count or 0 for count in counts),
        "terms": list(entry.terms.items()) if entry else None,
        "content": json.dumps(_trimmed(actions), separators=(",", ":")),
    }


def _trimmed(actions: Actions) -> Actions:
    """The actions of a commit, as far as anybody asks for them later."""
    found: Actions = []
    for action in actions:
        if "commitInfo" in action:
            found.append({"commitInfo": {k: v for k, v in action["commitInfo"].items() if k in _SAID}})
        elif "add" in action:
            found.append({"add": _trimmed_add(action["add"])})
        elif "remove" in action:
            kept = ("path", "dataChange", "deletionTimestamp")
            found.append({"remove": {k: v for k, v in action["remove"].items() if k in kept}})
    return found


def _trimmed_add(add: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in add.items() if k in ("path", "size", "dataChange", "modificationTime")}
    statistics = json.loads(add.get("stats") or "{}")
    numbers: dict[str, Any] = {
        bound: {INGEST_SEQ: statistics[bound][INGEST_SEQ]}
        for bound in ("minValues", "maxValues", "nullCount")
        if INGEST_SEQ in statistics.get(bound, {})
    }
    if "numRecords" in statistics:
        numbers["numRecords"] = statistics["numRecords"]
    if numbers:
        kept["stats"] = json.dumps(numbers, separators=(",", ":"))
    if add.get("deletionVector"):
        kept["deletionVector"] = True
    return kept


def _sums(
    lake: Lake, table: str, kept: KeptCommits, commits: Sequence[tuple[int, Actions]]
) -> Iterable[dict[str, Any]]:
    """What the entries of each epoch add up to after these commits."""
    entries: dict[tuple[str, int], dict[int, LedgerEntry]] = {}
    for _, actions in commits:
        stamp = decode(info_of(actions))
        if stamp is not None and stamp.ledger is not None:
            entries.setdefault((stamp.pipeline, stamp.epoch), {}).setdefault(stamp.batch_id, stamp.ledger)
    last = commits[-1][0]
    for (pipeline, epoch), found in entries.items():
        equations = _equations(lake, pipeline, epoch)
        if equations is None:
            continue
        known = kept.sums(pipeline, epoch)
        if known is not None:
            before = LedgerSums.model_validate_json(known[1])
        else:
            # The first sums of the epoch: of all entries before these commits. One that goes on another has its first
            # entry from the restore, with the number of the last batch that counts.
            goes_on = len(lineage(lake, pipeline, epoch).epochs) > 1
            earlier = ledger_rows(lake, table, pipeline, epoch) if kept.below or goes_on else []
            first = min(found) + (1 if found[min(found)].kind == "restore" else 0)
            before = LedgerSums().plus([each for each in earlier if each[0] < first], equations)
        new = [(batch_id, entry) for batch_id, entry in sorted(found.items()) if batch_id >= before.next_batch]
        sums = before.plus(new, equations)
        yield {
            "table": table,
            "version": last,
            "committed_at": datetime.now(UTC),
            "kind": SUMS,
            "pipeline": pipeline,
            "epoch": epoch,
            "batch_id": sums.next_batch - 1,
            "terms": list(sums.totals.terms.items()),
            "content": sums.model_dump_json(),
        }


def _equations(lake: Lake, pipeline: str, epoch: int) -> tuple[Equation, ...] | None:
    """What the ledger of an epoch must satisfy; None where its definition cannot be read any more."""
    found = epoch_at(lake, pipeline, epoch)
    try:
        return plan.build(definition_from_json(found.definition)).equations if found is not None else None
    except (ValidationError, TidemarkError, ValueError):
        return None
