"""Whether a pipeline has read all that its sources have, from its checkpoint and their own lists; without a JVM.

Only what is known for certain is told: where a batch is pending, where anything has changed or is not as it should be,
and of sources that only Spark can ask, the answer is no, and a start finds out.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from obstore.exceptions import BaseError

from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.claims import refuse_ended
from spark_jobs.lake.checkpoints.continuity import refuse_lost_batches, refuse_torn_commits
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch, history_cut
from spark_jobs.lake.checkpoints.moving import refuse_moved
from spark_jobs.lake.checkpoints.ownership import refuse_lost, refuse_others
from spark_jobs.lake.checkpoints.spark_log import (
    file_log,
    file_logs,
    file_number,
    in_snapshot,
    newest_batch,
    next_version,
    planned_offsets,
    query_id,
)
from spark_jobs.lake.commit_records.history import latest_version
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.inputs.folders import folder_store
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.folders import is_a_mark
from spark_jobs.lake.tables.opening import UNREADABLE, exists, open_table
from spark_jobs.plan import logical
from spark_jobs.spec import Definition, Ingest


def is_caught_up(lake: Lake, definition: Definition) -> bool:
    """Whether a start of a pipeline would find nothing to do, and nothing to say.

    Args:
        lake: where.
        definition: of the pipeline, as it is now.
    """
    try:
        epoch = current_epoch(lake, definition.name)
        if epoch is None or epoch.definition != definition.to_json() or not _is_whole(lake, definition, epoch):
            return False
        offsets = planned_offsets(lake, epoch.folder)
        if isinstance(definition, Ingest) and not definition.read_tables:
            return len(offsets) == 1 and _has_all_files(lake, definition, epoch, offsets[0])
        return _has_all_versions(lake, definition, offsets)
    except (TidemarkError, BaseError, OSError, ValueError, KeyError, *UNREADABLE):
        return False  # a start tells what is wrong


def _is_whole(lake: Lake, definition: Definition, epoch: Epoch) -> bool:
    """Whether its last batch has ended, and a start would go on with the next one.

    Raises:
        TidemarkError: if a start would be refused.
    """
    planned, finished = (newest_batch(lake, epoch.folder, log) for log in ("offsets", "commits"))
    if planned is None or planned != finished or query_id(lake, epoch.folder) is None:
        return False
    if history_cut(lake, epoch) is not None or definition.name in halts.all_standing(lake):
        return False
    if not all(exists(lake, table.name) for table in logical.build(definition).tables):
        return False
    refuse_others(lake, definition)
    refuse_lost(lake, definition)
    refuse_ended(lake, epoch, definition.sink.table)
    refuse_moved(lake, definition, epoch)
    refuse_torn_commits(lake, definition, epoch)
    refuse_lost_batches(lake, definition, epoch)
    return True


def _has_all_versions(lake: Lake, definition: Definition, offsets: list[str]) -> bool:
    """Whether it has read each source table to the end of its log."""
    by_id = {str(json.loads(offset).get("reservoirId")): offset for offset in offsets}
    if len(by_id) != len(definition.read_tables):
        return False
    for table in definition.read_tables:
        offset = by_id.get(str(open_table(lake, table).metadata().id))
        if offset is None or in_snapshot(offset) or next_version(offset) <= latest_version(lake, table):
            return False
    return True


def _has_all_files(lake: Lake, ingest: Ingest, epoch: Epoch, offset: str) -> bool:
    """Whether each file of its folder is in the log of those that were taken."""
    logs = file_logs(lake, epoch.folder)
    if ingest.source.folder is None or not logs:
        return False
    # A log that is ahead of the offsets is of a batch that was not planned to its end.
    if int(logs[-1].rsplit("/", 1)[-1].partition(".")[0]) != file_number(offset):
        return False
    taken: set[str] = set()
    for log in reversed(logs):
        taken |= {unquote(entry["path"]).replace("file:///", "file:/", 1) for entry in file_log(lake, log)[1]}
        if log.endswith(".compact"):
            break  # it repeats those before
    found = _files_of(lake, ingest.source.folder)
    return found is not None and all(path in taken for path in found)


def _files_of(lake: Lake, source: str) -> Iterator[str] | None:
    """The files of a folder as Spark's log names them; None: they are not known here."""
    root = lake.source_path(source).rstrip("/")
    store = folder_store(lake, source)
    if store is None:
        return None
    if "://" in root and not root.startswith("file:"):
        paths = (item["path"] for items in store.list() for item in items if not is_a_mark(store, item))
        return (f"{root}/{path}" for path in paths if not _is_passed_over(path))
    folder = Path("/" + root.removeprefix("file:").lstrip("/"))
    walked = list(os.walk(folder))
    if any(Path(place, name).is_symlink() for place, folders, files in walked for name in (*folders, *files)):
        return None  # Spark follows them, by rules of its own
    paths = (Path(place, name).relative_to(folder).as_posix() for place, _, files in walked for name in files)
    return (f"file:{folder}/{path}" for path in paths if not _is_passed_over(path))


def _is_passed_over(path: str) -> bool:
    """Whether Spark never takes a file; one of which that is not certain is no such."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.split("/"))
