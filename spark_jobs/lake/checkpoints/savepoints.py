"""Savepoints: a checkpoint as a batch has left it, with the versions of the tables that the pipeline writes and reads.

`_savepoints/<pipeline>/<name>/savepoint.json` is created once, when all that it names is there and was read again; the
files of the checkpoint lie beside it. What it names stays readable until it is dropped: maintenance asks `pins`.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Literal

import obstore
from obstore.exceptions import AlreadyExistsError, NotFoundError
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.changelogs import DamagedFileError
from spark_jobs.lake.checkpoints.contents import Checkpoint
from spark_jobs.lake.checkpoints.describing import batch_of, in_words
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.checkpoints.source_logs import faults_of_source_log
from spark_jobs.lake.checkpoints.spark_log import file_number, place
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import (
    latest_version,
    newest_ledger_rows,
    newest_numbered,
    version_after,
)
from spark_jobs.lake.errors import CheckpointError, MissingTableError, TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import create_object
from spark_jobs.lake.store.folders import remove_folder
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.tables.files import missing_files
from spark_jobs.lake.tables.opening import exists, open_table, row_count
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.plan import logical
from spark_jobs.spec import Ingest, definition_from_json

_FOLDER = "_savepoints"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOG_ENTRIES = 3
"""So many of the newest entries of Spark's logs go along: a start reads two."""

_AT_ONCE = 8
_TRIES = 5

Kind = Literal["manual", "deploy", "schedule", "restore"]
"""Why a savepoint was taken: somebody asked for it; a deploy, or a restore, was about to change the pipeline; or the
time had come."""


class SavepointError(TidemarkError):
    """A savepoint that cannot be taken, or that is not there."""


class SavedTable(BaseModel):
    """A table as a savepoint names it.

    Attributes:
        id: of the Delta table.
        version: that it had after the batch; of a source table the one up to which the batch had read it.
        rows: in that version; None: statistics do not tell, or the table is only read.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    version: int
    rows: int | None = None


class Savepoint(PersistedValue):
    """What a pipeline was after a batch.

    Attributes:
        pipeline: its name.
        name: of the savepoint, among those of the pipeline.
        note: why, in a person's words.
        kind: why, for the rules of how long it is kept.
        by: who.
        taken_at: when.
        epoch: of the checkpoint.
        batch: that had ended.
        definition: with which the epoch began, as JSON.
        query: the id that Spark gave the query.
        watermark_ms: Spark's watermark after the batch; 0: none.
        offsets: up to where it has read each source, in words.
        folder: where the files lie, relative to the lake.
        files: path inside the checkpoint -> digest of the content.
        size_bytes: of these files.
        tables: that the pipeline writes.
        sources: tables that it reads as a stream.
        lookups: tables in which it looks columns up -> the version of the batch.
        next_seq: of an ingest, the `_ingest_seq` with which the next batch begins.
        ledger: the entry of the batch.
    """

    pipeline: str
    name: str
    note: str = ""
    kind: Kind = "manual"
    by: str
    taken_at: datetime
    epoch: int
    batch: int
    definition: str
    query: str
    watermark_ms: int = 0
    offsets: tuple[str, ...] = ()
    folder: str
    files: Mapping[str, str]
    size_bytes: int
    tables: Mapping[str, SavedTable]
    sources: Mapping[str, SavedTable] = {}
    lookups: Mapping[str, int] = {}
    next_seq: int | None = None
    ledger: LedgerEntry

    @property
    def called(self) -> str:
        """It in words: of a batch that is only in the checkpoint there is no name."""
        return f"savepoint `{self.name}` (batch {self.batch} of epoch {self.epoch})" if self.name else self.subject

    @property
    def subject(self) -> str:
        """The batch in words."""
        return f"batch {self.batch} of epoch {self.epoch}"


def take(
    lake: Lake,
    epoch: Epoch,
    *,
    name: str,
    by: str,
    note: str = "",
    kind: Kind = "manual",
    at: int | None = None,
) -> Savepoint:
    """Takes a savepoint; a stream that runs is not held up: what a batch has left is not changed any more.

    Args:
        lake: where.
        epoch: whose checkpoint.
        name: of the savepoint.
        by: who takes it.
        note: why.
        kind: why, for how long it is kept.
        at: a batch that has ended; None: the newest.

    Raises:
        SavepointError: if there is one of this name, or no batch has ended.
        CheckpointError: if the checkpoint or a table is not whole: nothing that could not be restored is kept.
    """
    refuse_name(lake, epoch.pipeline, name)
    why = ""
    for _ in range(_TRIES):
        # Of a query that runs, old files vanish between two looks; its newest batch is then another one.
        checkpoint = Checkpoint(lake, epoch)
        batch = batch_of(checkpoint, at)
        if batch is None:
            raise SavepointError(
                f"pipeline `{epoch.pipeline}`: no batch of epoch {epoch.number} has ended: there is nothing to save "
                f"yet. Start it: {command('run', epoch.pipeline)}"
            )
        folder = f"{_FOLDER}/{epoch.pipeline}/{name}/{uuid.uuid4().hex}"
        try:
            files = _copied(checkpoint, batch, folder)
            found = described(Checkpoint(lake, epoch, folder), batch).model_copy(
                update={"name": name, "note": note, "kind": kind, "by": by, "files": files}
            )
        except DamagedFileError as error:
            remove_folder(lake, folder)
            why = str(error)
            continue
        try:
            refuse_missing_files(lake, found)
            create_object(lake, _path(epoch.pipeline, name), found.model_dump_json().encode())
        except AlreadyExistsError:
            remove_folder(lake, folder)
            raise _taken(epoch.pipeline, name) from None
        except TidemarkError:
            remove_folder(lake, folder)
            raise
        return found
    raise CheckpointError(
        f"pipeline `{epoch.pipeline}`: its checkpoint cannot be saved: {why}. No savepoint was made. See what is "
        f"wrong: {command('checkpoints', 'verify', epoch.pipeline)}"
    )


def described(checkpoint: Checkpoint, batch: int) -> Savepoint:
    """What a checkpoint is after a batch, with the tables of its pipeline; without a name, and nothing is copied.

    Args:
        checkpoint: itself or a copy, which is read whole.
        batch: that has ended.

    Raises:
        DamagedFileError: if files are missing or not whole.
        CheckpointError: if a table does not have the batch.
    """
    lake, epoch = checkpoint.lake, checkpoint.epoch
    definition, planned = definition_from_json(epoch.definition), checkpoint.planned(batch)
    paths = files_of(checkpoint, batch)
    for offset in planned.offsets:
        for path, what in faults_of_source_log(checkpoint, definition, offset):
            raise DamagedFileError(f"{path} {what}")
    plan = plan_on(lake, definition)
    tables = {
        table.name: _saved(lake, table.name, version_after(lake, table.name, epoch.pipeline, epoch.number, batch))
        for table in plan.tables
        if exists(lake, table.name)
    }
    entry = next(
        (
            entry
            for number, entry in newest_ledger_rows(lake, plan.result.name, epoch.pipeline, epoch.number, 100)
            if number == batch
        ),
        None,
    )
    if plan.result.name not in tables or entry is None:
        raise CheckpointError(
            f"pipeline `{epoch.pipeline}`: {plan.result.name} does not have batch {batch} of epoch {epoch.number}, "
            f"which its checkpoint has, among its newest commits. Nothing was changed. See what is wrong: "
            f"{command('checkpoints', 'verify', epoch.pipeline)}"
        )
    numbered = None
    if isinstance(definition, Ingest):
        numbered = newest_numbered(lake, plan.result.name, upto=tables[plan.result.name].version)
    return Savepoint(
        pipeline=epoch.pipeline,
        name="",
        by="",
        taken_at=datetime.now(UTC),
        epoch=epoch.number,
        batch=batch,
        definition=epoch.definition,
        query=str(json.loads(checkpoint.read("metadata") or b"{}").get("id", "")),
        watermark_ms=entry.watermark_ms,
        offsets=tuple(in_words(checkpoint, offset) for offset in planned.offsets),
        folder=checkpoint.folder,
        files=dict.fromkeys(paths, ""),
        size_bytes=sum(checkpoint.files[path].size for path in paths if path in checkpoint.files),
        tables=tables,
        sources={
            table: SavedTable(id=id_, version=version) for table, id_, version in _read(lake, planned.offsets, plan)
        },
        next_seq=numbered.next_seq if numbered is not None else None,
        ledger=entry,
        lookups={step.table: entry.reads[step.table][0] for step in plan.lookups if step.table in entry.reads},
    )


def files_of(checkpoint: Checkpoint, batch: int) -> tuple[str, ...]:
    """All files that a start after a batch reads.

    Raises:
        DamagedFileError: if those that name the others are missing or not whole.
    """
    logs = [
        f"{log}/{number}"
        for log in ("offsets", "commits")
        for number in range(max(0, batch - _LOG_ENTRIES + 1), batch + 1)
        if f"{log}/{number}" in checkpoint.files
    ]
    taken = max((file_number(each) for each in checkpoint.planned(batch).offsets if "logOffset" in each), default=None)
    sources = [path for path in checkpoint.files if path.startswith("sources/") and _is_of(path, taken)]
    return tuple(dict.fromkeys((*checkpoint.needed(batch), *logs, *sources)))


def _is_of(path: str, taken: int | None) -> bool:
    """Whether a file of a source's log was there when so many entries were; other sources keep one for ever."""
    number = path.rsplit("/", 1)[-1].partition(".")[0]
    return taken is None or not number.isdigit() or int(number) <= taken


def _copied(checkpoint: Checkpoint, batch: int, folder: str) -> dict[str, str]:
    """Copies what a start after a batch reads; path -> digest of its content.

    Raises:
        DamagedFileError: if a file is not there.
    """
    lake = checkpoint.lake

    def copy(path: str) -> tuple[str, str]:
        if (content := checkpoint.read(path)) is None:
            raise DamagedFileError(f"{path} is missing")
        create_object(lake, f"{folder}/{path}", content)
        return path, hashlib.sha256(content).hexdigest()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(pool.map(copy, files_of(checkpoint, batch)))


def _saved(lake: Lake, table: str, version: int) -> SavedTable:
    opened = open_table(lake, table, version=version)
    return SavedTable(id=str(opened.metadata().id), version=version, rows=row_count(opened))


def _read(lake: Lake, offsets: Iterable[str], plan: logical.LogicalPlan) -> Iterator[tuple[str, str, int]]:
    """The source tables, their ids, and the version from which on their logs must stay."""
    by_id = {
        str(open_table(lake, name).metadata().id): name for name in plan.definition.read_tables if exists(lake, name)
    }
    for offset in filter(None, offsets):
        found = json.loads(offset)
        table = by_id.get(str(found.get("reservoirId"))) if isinstance(found, dict) else None
        if table is not None:
            version, _ = place(offset)
            yield table, str(found["reservoirId"]), version


def refuse_missing_files(lake: Lake, savepoint: Savepoint) -> None:
    """Looks whether the tables of a pipeline can still be read as a savepoint names them.

    Raises:
        CheckpointError: if one was made anew, or lacks the version or its data files.
    """
    for table, saved in savepoint.tables.items():
        try:
            opened = open_table(lake, table, version=saved.version)
            newest = open_table(lake, table)
        except MissingTableError:
            raise _unreadable(savepoint, f"{table} does not have version {saved.version} any more") from None
        if str(newest.metadata().id) != saved.id:
            raise _unreadable(savepoint, f"{table} was removed and made anew")
        if lost := missing_files(lake, table, opened):
            raise _unreadable(savepoint, f"of version {saved.version} of {table}, data file {lost[0]} is gone")


def refuse_changed_files(lake: Lake, savepoint: Savepoint) -> None:
    """Looks whether the files of a savepoint are what they were when it was taken.

    Raises:
        CheckpointError: if one is gone, or another one.
    """

    def look(path: str) -> str | None:
        try:
            content = bytes(obstore.get(lake.store, f"{savepoint.folder}/{path}").bytes())
        except (NotFoundError, FileNotFoundError):
            return f"its file {path} is gone"
        same = hashlib.sha256(content).hexdigest() == savepoint.files[path]
        return None if same else f"its file {path} is another one than it was"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for wrong in filter(None, pool.map(look, savepoint.files)):
            raise _unreadable(savepoint, wrong)


def _unreadable(savepoint: Savepoint, why: str) -> CheckpointError:
    return CheckpointError(
        f"pipeline `{savepoint.pipeline}`: {savepoint.called} cannot be gone back to: {why}. Nothing was changed. See "
        f"which others there are: {command('savepoints', 'list', savepoint.pipeline)}"
    )


def savepoints(lake: Lake, pipeline: str | None = None) -> list[Savepoint]:
    """The savepoints of a pipeline, or of all, the oldest first."""
    prefix = f"{_FOLDER}/{pipeline}/" if pipeline is not None else f"{_FOLDER}/"
    found = [each["path"] for each in lake.store.list(prefix).collect() if each["path"].endswith("/savepoint.json")]
    read = (Savepoint.model_validate_json(bytes(obstore.get(lake.store, path).bytes())) for path in found)
    return sorted(read, key=lambda each: each.taken_at)


def savepoint_named(lake: Lake, pipeline: str, name: str) -> Savepoint:
    """A savepoint by its name.

    Raises:
        SavepointError: if there is none.
    """
    try:
        return Savepoint.model_validate_json(bytes(obstore.get(lake.store, _path(pipeline, name)).bytes()))
    except (NotFoundError, FileNotFoundError):
        known = ", ".join(each.name for each in savepoints(lake, pipeline)) or "none"
        raise SavepointError(
            f"pipeline `{pipeline}` has no savepoint `{name}` on {lake.uri}; there is: {known}. Nothing was changed."
        ) from None


def drop(lake: Lake, savepoint: Savepoint) -> None:
    """Removes a savepoint: first what says that it is there, so that nobody begins with what is about to go."""
    lake.store.delete([_path(savepoint.pipeline, savepoint.name)])
    remove_folder(lake, f"{_FOLDER}/{savepoint.pipeline}/{savepoint.name}")


def pins(lake: Lake) -> Iterator[tuple[str, int, Savepoint]]:
    """Table, the oldest version of it that must stay readable, and the savepoint that needs it."""
    for savepoint in savepoints(lake):
        for table, saved in (*savepoint.tables.items(), *savepoint.sources.items()):
            yield table, saved.version, savepoint
        for table, version in savepoint.lookups.items():
            yield table, version, savepoint


def refuse_name(lake: Lake, pipeline: str, name: str) -> None:
    """Refuses a name that cannot be one, or that is taken.

    Raises:
        SavepointError: then.
    """
    if not _NAME.fullmatch(name):
        raise SavepointError(
            f"savepoint {name!r}: expected a name of letters, digits, dots, dashes and underscores, at most 100. No "
            "savepoint was made."
        )
    try:
        lake.store.head(_path(pipeline, name))
    except (NotFoundError, FileNotFoundError):
        return
    raise _taken(pipeline, name)


def is_behind(lake: Lake, savepoint: Savepoint) -> bool:
    """Whether a table of the pipeline has gone on since."""
    return any(latest_version(lake, table) > saved.version for table, saved in savepoint.tables.items())


def _taken(pipeline: str, name: str) -> SavepointError:
    return SavepointError(
        f"pipeline `{pipeline}` has a savepoint `{name}` already. None was made. Take another name, or remove "
        f"that one: {command('savepoints', 'drop', pipeline, name)}"
    )


def _path(pipeline: str, name: str) -> str:
    return f"{_FOLDER}/{pipeline}/{name}/savepoint.json"
