"""Goes back to what pipelines were after a batch: their checkpoints and their tables, in a new epoch of each.

What is to be done is noted in `_checkpoints/_restores` before anything is changed. Each step can be repeated: who
starts one of the pipelines after an interruption finishes it first. Nothing of the past is rewritten: the tables get
commits that put their rows back, and the new epochs know which commits count no more (`lineage`).

Who reads a table as a stream reads its log: a commit that was taken back is in it for ever. So the readers go back,
too, and go on behind it. What the table keeps and one of them has not read yet is named in the log once more.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import obstore
from deltalake import CommitProperties, DeltaTable, Transaction
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.checkpoints.claims import Claim, take_over
from spark_jobs.lake.checkpoints.contents import named_here
from spark_jobs.lake.checkpoints.epochs import (
    Epoch,
    Jump,
    Restored,
    Undone,
    begin_next_epoch,
    carry_over,
    current_epoch,
    delete_checkpoint,
    epoch_at,
)
from spark_jobs.lake.checkpoints.reset import EMPTIED
from spark_jobs.lake.checkpoints.savepoints import Savepoint
from spark_jobs.lake.checkpoints.spark_log import Place, place
from spark_jobs.lake.commit_records.basis import Basis
from spark_jobs.lake.commit_records.durability import force_commit
from spark_jobs.lake.commit_records.history import actions_at, commit_at, latest_version
from spark_jobs.lake.commit_records.stamps import Stamp
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import create_object
from spark_jobs.lake.store.folders import remove_folder
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError
from spark_jobs.lake.tables.appends import append, append_files
from spark_jobs.lake.tables.opening import exists
from spark_jobs.lake.tables.watermarks import publish, withdraw
from spark_jobs.spec import Definition, definition_from_json

_RUN, _STEP = "tidemark.restore", "tidemark.restore.step"
"""In the `commitInfo` of a restore's commits: its run, and which of its commits to the table this is."""


Moved = Callable[[Place], Place]
"""Where a place in the log of a table is after the table was put back."""


class Member(BaseModel):
    """A pipeline that goes back.

    Attributes:
        point: what it was.
        before: number of the epoch that ends.
        number: of the one that begins.
        definition: that runs on it, as JSON.
        with_tables: whether its tables go back, too.
        sources: tables of other members that it reads -> up to where it has read them at `point`.
        keeps: of its result, the first version that a reader has still to read; None: all have read all that stays.
        basis: how things were when this was planned.
    """

    model_config = ConfigDict(frozen=True)

    point: Savepoint
    before: int
    number: int
    definition: str
    with_tables: bool = True
    sources: Mapping[str, Place] = {}
    keeps: int | None = None
    basis: Basis

    @property
    def pipeline(self) -> str:
        """Its name."""
        return self.point.pipeline

    @property
    def parsed(self) -> Definition:
        """The definition."""
        return definition_from_json(self.definition)


class RestoreRecord(PersistedValue):
    """A restore that somebody has asked for.

    Attributes:
        run: its id.
        members: the pipelines that go back, those whose tables others of them read first.
        by: who asked for it.
        comment: why.
        at: when.
        state: `open` until it has been carried out.
    """

    run: str
    members: tuple[Member, ...]
    by: str
    comment: str = ""
    at: datetime
    state: Literal["open", "ended"] = "open"


def records(lake: Lake) -> Records[RestoreRecord]:
    """The restores of a lake; the newest counts."""
    return Records(lake, "_checkpoints/_restores", RestoreRecord)


def open_restore(lake: Lake) -> RestoreRecord | None:
    """The restore that has begun and not ended; None: there is none."""
    _, newest = records(lake).newest()
    return newest if newest is not None and newest.state == "open" else None


def begin(lake: Lake, record: RestoreRecord) -> None:
    """Notes what is to be done, before anything is.

    Raises:
        CheckpointError: if another restore has begun and not ended.
    """
    kept = records(lake)
    number, newest = kept.newest()
    if newest is not None and newest.state == "open":
        raise refused_open(newest)
    try:
        kept.append(number + 1, record)
    except RecordTakenError:
        raise CheckpointError(
            "another restore was begun at the same moment. Nothing was changed here. Run the same command again."
        ) from None


def refused_open(record: RestoreRecord) -> CheckpointError:
    """Why nothing can be restored while a restore has not ended."""
    names = ", ".join(member.pipeline for member in record.members)
    return CheckpointError(
        f"a restore of {names} has begun at {record.at:%Y-%m-%d %H:%M:%S} UTC and not ended. Nothing was changed here. "
        f"The next start of {record.members[0].pipeline} finishes it, and so does the same restore again."
    )


def finish_for(lake: Lake, pipeline: str) -> bool:
    """Carries out what an interrupted restore has left undone, if it is about a pipeline; whether there was one."""
    record = open_restore(lake)
    if record is None or pipeline not in {member.pipeline for member in record.members}:
        return False
    carry_out(lake, record, resumed=True)
    return True


def carry_out(lake: Lake, record: RestoreRecord, *, resumed: bool = False) -> None:
    """Does what a record says; each step may have been done before.

    Args:
        lake: where.
        record: that was noted by `begin`.
        resumed: whether it may have begun before: things need not be as they were planned then.

    Raises:
        OutdatedPlanError: if things are not as they were planned, or another command has ended an epoch.
    """
    work = [
        restoring for member in record.members if (restoring := _to_do(lake, record.run, member, resumed)) is not None
    ]
    for each in work:
        each.put_tables_back()
    put_back = [_PutBack(lake, record.run, member) for member in record.members if member.with_tables]
    moved = {each.result: each.moved_to for each in put_back}
    for each in work:
        each.make_checkpoint({table: moved[table] for table in each.member.sources if table in moved})
    for each in work:
        each.begin()
    for each in work:
        delete_checkpoint(lake, each.before)
    kept = records(lake)
    number, newest = kept.newest()
    if newest is not None and newest.run == record.run and newest.state == "open":
        try:
            kept.append(number + 1, record.model_copy(update={"state": "ended"}))
        except RecordTakenError:
            return  # whoever finished it at the same time has noted it


def _to_do(lake: Lake, run: str, member: Member, resumed: bool) -> "_Restoring | None":
    """What is left to do for a member; None: its new epoch has begun."""
    current, before = current_epoch(lake, member.pipeline), epoch_at(lake, member.pipeline, member.before)
    if before is None or (current is not None and current.number >= member.number):
        return None
    tables = [table for table in member.point.tables if exists(lake, table)]
    claim = take_over(lake, before, tables, basis=None if resumed else member.basis)
    return _Restoring(lake, run, member, before, claim)


@dataclass
class _PutBack:
    """The result of a member once its rows are as they were."""

    lake: Lake
    run: str
    member: Member

    @property
    def result(self) -> str:
        """Its name."""
        return self.member.parsed.sink.table

    def moved_to(self, at: Place) -> Place:
        """Where a place in its log is since then.

        Raises:
            CheckpointError: if it was not put back.
        """
        saved = self.member.point.tables[self.result]
        if at[0] <= saved.version:
            return self.found(self.result, str(at[0])), at[1]
        last = "base" if self.member.keeps is None else str(saved.version)
        return self.found(self.result, last) + 1, -1

    def found(self, table: str, step: str) -> int:
        """The version of a commit that this run has made.

        Raises:
            CheckpointError: if there is none.
        """
        if (version := self.commit_of(table, step)) is None:
            raise CheckpointError(
                f"table {table}: the commit by which the restore put it back is not in its log. The restore stays "
                f"open: start {self.member.pipeline} again, which finishes it."
            )
        return version

    def commit_of(self, table: str, step: str) -> int | None:
        """The same; None: there is none."""
        saved = self.member.point.tables[table]
        for version in range(latest_version(self.lake, table), saved.version, -1):
            info = commit_at(self.lake, table, version) or {}
            if info.get(_RUN) == self.run and info.get(_STEP) == step:
                return version
        return None


@dataclass
class _Restoring(_PutBack):
    """One member, on its way back."""

    before: Epoch
    claim: Claim

    def __post_init__(self) -> None:
        self.undone: dict[str, Undone] = {}
        self.jumps: dict[str, Jump] = {}
        self._sources = dict(self.member.point.ledger.sources)

    def put_tables_back(self) -> None:
        """The rows of each table as they were, in commits that say so; the result last."""
        if not self.member.with_tables:
            return
        for table in sorted(self.claim.numbers, key=lambda name: name == self.result):
            saved = self.member.point.tables[table]
            keeps = self.member.keeps if table == self.result else None
            first = saved.version + 1 if keeps is None else keeps
            if self.commit_of(table, "base") is None:
                self._put_back(table, first - 1)
            for version in range(first, saved.version + 1):
                if self.commit_of(table, str(version)) is None:
                    self._name_again(table, version)
            last = "base" if first > saved.version else str(saved.version)
            self.undone[table] = Undone(after=saved.version, upto=self.found(table, last) + 1)

    def make_checkpoint(self, moved: Mapping[str, Moved]) -> None:
        """The files of the checkpoint of the new epoch, with the places in tables that were put back."""
        lake, point = self.lake, self.member.point
        folder = f"_checkpoints/{self.member.pipeline}/epoch-{self.member.number}"
        remove_folder(lake, folder)
        ids = {saved.id: table for table, saved in point.sources.items()}
        for path in point.files:
            content = bytes(obstore.get(lake.store, f"{point.folder}/{path}").bytes())
            if path == f"offsets/{point.batch}":
                content = self._with_places(content, ids, moved)
            create_object(lake, f"{folder}/{path}", named_here(path, content, lake.path(folder)))

    def _with_places(self, content: bytes, ids: Mapping[str, str], moved: Mapping[str, Moved]) -> bytes:
        head, about, *offsets = content.decode().splitlines()
        self._sources = {name: self._moved(offset, ids, moved) for name, offset in self._sources.items()}
        return "\n".join((head, about, *(self._moved(offset, ids, moved) for offset in offsets))).encode()

    def _moved(self, offset: str, ids: Mapping[str, str], moved: Mapping[str, Moved]) -> str:
        """Up to where it has read a source, behind what was taken back there."""
        found = json.loads(offset) if offset.startswith("{") else {}
        table = ids.get(str(found.get("reservoirId")))
        if table is None or table not in moved:
            return offset
        old = place(offset)
        self.jumps[table] = Jump(old=old, new=(new := moved[table](old)))
        return json.dumps({**found, "reservoirVersion": new[0], "index": new[1]}, separators=(",", ":"))

    @property
    def _origin(self) -> Epoch:
        """The epoch whose batch counts as the last one."""
        return epoch_at(self.lake, self.member.pipeline, self.member.point.epoch) or self.before

    def begin(self) -> None:
        """The new epoch, behind what makes room for it."""
        lake, member, point = self.lake, self.member, self.member.point
        carry_over(lake, self._origin, member.number)
        restored = Restored(
            epoch=point.epoch,
            batch=point.batch,
            savepoint=point.name or None,
            tables=self.undone,
            sources=self.jumps,
        )
        self._stamp()
        grace, watermark = point.ledger.grace_ms, point.watermark_ms
        named = {"pipeline": member.pipeline, "table": self.result, "epoch": member.number}
        if watermark:
            publish(lake, **named, engine_ms=watermark, grace_ms=grace, batch_id=point.batch)  # type: ignore[arg-type]
        else:
            withdraw(lake, **named)  # type: ignore[arg-type]
        self.claim.refuse_lost()
        begin_next_epoch(
            lake,
            member.parsed,
            member.number,
            tables_emptied=self._origin.tables_emptied,
            cut_us=self._origin.cut_us,
            claimed=self.claim.numbers.get(self.result),
            restored=restored,
        )

    def _stamp(self) -> None:
        """The entry of the restore in the ledger: the commit of the last batch that counts, in the new epoch."""
        point, table = self.member.point, self.result
        entry = point.ledger.model_copy(
            update={
                "kind": "restore",
                "run": self.run,
                "terms": {},
                "reasons": {},
                "nulls": {},
                "sources": self._sources,
            }
            | {"unknown_fields": (), "started_ms": round(datetime.now(UTC).timestamp() * 1000)}
        )
        stamp = Stamp(
            pipeline=self.member.pipeline,
            epoch=self.member.number,
            batch_id=point.batch,
            role="result",
            rows=0,
            query_id=point.query,
            ledger=entry,
            next_seq=point.next_seq,
        )
        writer = f"{self.member.pipeline}/{table}/{point.query}/{self.member.number}"

        def write(opened: DeltaTable, held: list[Transaction]) -> None:
            if opened.transaction_version(writer) is not None:
                return
            nothing = opened.to_pyarrow_dataset().schema.empty_table()
            append(
                self.lake,
                table,
                opened,
                nothing,
                CommitProperties(
                    custom_metadata={"userMetadata": stamp.encode()},
                    app_transactions=[*held, Transaction(writer, point.batch)],
                    max_commit_retries=0,
                ),
            )

        self.claim.commit(table, write)
        force_commit(self.lake, table, latest_version(self.lake, table), data=False)

    def _put_back(self, table: str, version: int) -> None:
        def write(opened: DeltaTable, held: list[Transaction]) -> None:
            opened.restore(
                version,
                commit_properties=CommitProperties(
                    custom_metadata=self._said("base"), app_transactions=held, max_commit_retries=0
                ),
            )

        self.claim.commit(table, write)
        force_commit(self.lake, table, latest_version(self.lake, table), data=False)

    def _name_again(self, table: str, version: int) -> None:
        """A commit once more, for readers that have not read it: of data files that are there."""
        actions = actions_at(self.lake, table, version) or []
        added = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]

        def write(opened: DeltaTable, held: list[Transaction]) -> None:
            properties = CommitProperties(
                custom_metadata=self._said(str(version)), app_transactions=held, max_commit_retries=0
            )
            append_files(self.lake, table, opened, added, properties)

        self.claim.commit(table, write)
        force_commit(self.lake, table, latest_version(self.lake, table), data=False)

    def _said(self, step: str) -> dict[str, str]:
        return {EMPTIED: "restore", _RUN: self.run, _STEP: step}
