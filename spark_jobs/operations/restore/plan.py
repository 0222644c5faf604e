"""What a restore will do, as a value; made from logs, without a JVM. All that may keep it from being done is here."""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import duckdb
from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger_table import takes_rows_away
from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.lake.checkpoints.changelogs import DamagedFileError
from spark_jobs.lake.checkpoints.contents import Checkpoint
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch, current_epochs, running_definitions
from spark_jobs.lake.checkpoints.reset import newest_epoch
from spark_jobs.lake.checkpoints.restoring import Member, RestoreRecord, open_restore, refused_open
from spark_jobs.lake.checkpoints.savepoints import (
    SavedTable,
    Savepoint,
    described,
    refuse_changed_files,
    refuse_missing_files,
    savepoint_named,
    savepoints,
)
from spark_jobs.lake.checkpoints.spark_log import Place, in_snapshot, place
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.basis import Basis
from spark_jobs.lake.commit_records.history import actions_at, commits_between, info_of, latest_version
from spark_jobs.lake.commit_records.replay_commits import decode_replay
from spark_jobs.lake.commit_records.revisions import decode_revision
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import CheckpointError, MissingTableError, TidemarkError
from spark_jobs.lake.tables.decisions import decisions_of
from spark_jobs.lake.tables.files import missing_files
from spark_jobs.lake.tables.opening import exists, open_table, row_count
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.operations.restore.sources import RestoreRefusedError, read_again
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.plan.changes import needs_new_epoch
from spark_jobs.spec import Definition, Ingest, Pipeline, definition_from_json

_CHANGES_NOTHING = ("reject", "drop", "prune")
"""Decisions that left the pipeline's rows and state as they were."""


class TakenBack(BaseModel):
    """What a restore takes back in a table.

    Attributes:
        pipeline: whose table it is.
        table: its name.
        version: that it goes back to.
        newest: that it has.
        rows: in that version.
        rows_now: that it has.
        commits: what made the commits that are taken back, in words -> how many.
        reopened: late or replayed events that a repair has counted, and that wait for one again.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    table: str
    version: int
    newest: int
    rows: int | None
    rows_now: int
    commits: Mapping[str, int]
    reopened: int = 0


class RestorePlan(OperationPlan):
    """What a restore will do.

    Attributes:
        record: what is carried out.
        resumed: whether it has begun before and is only finished.
        taken_back: in each table.
        read_again: what is read again, a line for each source.
        decisions: that people made about the pipeline since, in a line each.
    """

    record: RestoreRecord
    resumed: bool = False
    taken_back: tuple[TakenBack, ...] = ()
    read_again: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()

    def by(self, person: str) -> "RestorePlan":
        """The same in the name of another person, who has approved it."""
        return self.model_copy(update={"record": self.record.model_copy(update={"by": person})})


def plan_restore(
    lake: Lake,
    definition: Definition,
    *,
    to: str | None,
    to_batch: int | None,
    with_tables: bool = True,
    by: str,
    comment: str = "",
) -> RestorePlan:
    """What a restore will do; nothing is written.

    Args:
        lake: where.
        definition: of the pipeline, as it is now.
        to: name of a savepoint; None: `to_batch` says.
        to_batch: a batch that the checkpoint still has; None: `to` says.
        with_tables: whether the tables go back, too.
        by: who asks for it.
        comment: why.

    Raises:
        RestoreRefusedError: if it cannot be done.
        SavepointError: if there is no such savepoint.
        CheckpointError: if what it needs is not whole, or another restore has not ended.
        DeployError: if a driver runs one of the pipelines.
    """
    if (to is None) == (to_batch is None):
        raise RestoreRefusedError(
            f"restore {definition.name}: say where to go back to, --to NAME or --to-batch N. Nothing was changed. "
            f"See what there is: {command('savepoints', 'list', definition.name)}"
        )
    if (begun := open_restore(lake)) is not None:
        if definition.name not in {member.pipeline for member in begun.members}:
            raise refused_open(begun)
        refuse_deployed(lake, [member.pipeline for member in begun.members])
        return RestorePlan(pipeline=definition.name, record=begun, resumed=True)
    point = _point(lake, definition, to, to_batch)
    _refuse_other_definition(definition, point)
    members = [_member(lake, definition, point, with_tables=with_tables)]
    if with_tables:
        members += _readers(lake, members[0])
        keeps = _kept_for_readers(lake, members)
        members[0] = members[0].model_copy(update={"keeps": keeps})
    else:
        _refuse_later_batches(lake, definition, point)
    refuse_deployed(lake, [member.pipeline for member in members])
    return RestorePlan(
        pipeline=definition.name,
        record=RestoreRecord(
            run=f"restore-{uuid.uuid4().hex[:12]}",
            members=tuple(members),
            by=by,
            comment=comment,
            at=datetime.now(UTC),
        ),
        taken_back=tuple(_taken_back(lake, members)) if with_tables else (),
        read_again=read_again(lake, members),
        decisions=tuple(_decisions(lake, definition, point)),
    )


def _point(lake: Lake, definition: Definition, to: str | None, to_batch: int | None) -> Savepoint:
    name = definition.name
    epoch = current_epoch(lake, name)
    if epoch is None:
        raise MissingTableError(
            f"pipeline `{name}` has not run on {lake.uri}: there is nothing to go back from. Start it: "
            f"{command('run', name)}"
        )
    if isinstance(definition, Ingest) and open_replay(lake, name) is not None:
        raise RestoreRefusedError(
            f"ingest `{name}`: a replay of its quarantine has begun and not ended. Nothing was changed. Carry it out "
            f"first: {command('replay', name)}"
        )
    if to is not None:
        point = savepoint_named(lake, name, to)
        refuse_changed_files(lake, point)
    else:
        point = _batch(Checkpoint(lake, epoch), int(to_batch or 0))
    refuse_missing_files(lake, point)
    for table in point.tables:
        open_table(lake, table, to_write=True)  # refuses one that asks of its writers what is not implemented
    return point


def _batch(checkpoint: Checkpoint, batch: int) -> Savepoint:
    """A batch that the checkpoint still has.

    Raises:
        RestoreRefusedError: if it has not, or not all that tells what it left.
    """
    name, finished = checkpoint.epoch.pipeline, checkpoint.batches("commits")
    saved = ", ".join(f"`{each.name}` (batch {each.batch})" for each in savepoints(checkpoint.lake, name)) or "none"
    if batch not in finished:
        kept = f"{finished[0]} to {finished[-1]}" if finished else "none"
        raise RestoreRefusedError(
            f"pipeline `{name}`: expected a batch that its checkpoint still has, got {batch}. Kept are: {kept}. "
            f"Savepoints: {saved}. Nothing was changed."
        )
    try:
        return described(checkpoint, batch)
    except DamagedFileError as error:
        raise RestoreRefusedError(
            f"pipeline `{name}`: what batch {batch} has left is not whole any more: {error}. Nothing was changed. "
            f"Savepoints: {saved}. See what is wrong: {command('checkpoints', 'verify', name)}"
        ) from error


def _refuse_other_definition(definition: Definition, point: Savepoint) -> None:
    changed = ", ".join(needs_new_epoch(definition_from_json(point.definition), definition))
    if changed:
        raise RestoreRefusedError(
            f"pipeline `{definition.name}`: its definition has changed ({changed}) since {point.called}: what that had "
            "in state does not fit. Nothing was changed. Put the definition back, then run the same command again."
        )


def _member(lake: Lake, definition: Definition, point: Savepoint, *, with_tables: bool) -> Member:
    before = current_epoch(lake, definition.name)
    if before is None:
        raise MissingTableError(f"pipeline `{definition.name}` has not run on {lake.uri}. Nothing was changed.")
    if with_tables:
        point = _with_younger_tables(lake, definition, point)
    return Member(
        point=point,
        before=before.number,
        number=max(before.number, newest_epoch(lake, definition)) + 1,
        definition=definition.to_json(),
        with_tables=with_tables,
        basis=Basis.of(lake, definition.name, before.number, point.tables),
    )


def _with_younger_tables(lake: Lake, definition: Definition, point: Savepoint) -> Savepoint:
    """The same with tables that were made since, such as a quarantine: they go back to having no row."""
    younger = [table.name for table in plan_on(lake, definition).tables if table.name not in point.tables]
    made = {
        name: SavedTable(id=str(opened.metadata().id), version=0, rows=0)
        for name in younger
        if exists(lake, name) and not row_count(opened := open_table(lake, name, version=0))
    }
    return point.model_copy(update={"tables": {**made, **point.tables}})


def _readers(lake: Lake, first: Member) -> list[Member]:
    """The pipelines that read what goes back, each at its newest batch that has read nothing of what is taken back."""
    table = first.parsed.sink.table
    upto: Place = first.point.tables[table].version + 1, -1
    if latest_version(lake, table) < upto[0]:
        return []
    ident, found, known = first.point.tables[table].id, [], running_definitions(lake)
    for name, epoch in current_epochs(lake).items():
        if name not in known and table in epoch.definition:
            raise RestoreRefusedError(
                f"pipeline `{name}`: this version cannot read the definition that runs on its checkpoint, which names "
                f"{table}: how far it has read it is not known. Nothing was changed. Run the version that wrote it."
            )
    for name, (epoch, definition) in known.items():
        if not isinstance(definition, Pipeline) or table not in {source.name for source in definition.tables}:
            continue
        if _is_read(lake, definition):
            raise RestoreRefusedError(
                f"pipeline `{name}` reads {table}, and others read its result {definition.sink.table} as a stream: how "
                "far all of them would go back is not worked out here. Nothing was changed."
            )
        point, at = _before(lake, Checkpoint(lake, epoch), epoch, table, ident, upto)
        member = _member(lake, definition, point, with_tables=True)
        found.append(member.model_copy(update={"sources": {table: at}}))
    return found


def _is_read(lake: Lake, definition: Definition) -> bool:
    table = definition.sink.table
    others = (each for _, each in running_definitions(lake).values())
    return any(isinstance(each, Pipeline) and table in {source.name for source in each.tables} for each in others)


def _before(
    lake: Lake, checkpoint: Checkpoint, epoch: Epoch, table: str, ident: str, upto: Place
) -> tuple[Savepoint, Place]:
    """The newest batch of a reader that has read nothing beyond a place in a table; and where it was there.

    Raises:
        RestoreRefusedError: if neither its checkpoint nor a savepoint has one.
    """
    for batch in reversed(checkpoint.batches("commits")):
        try:
            offsets = checkpoint.planned(batch).offsets
        except DamagedFileError:
            continue
        at = next((each for each in offsets if ident in each), None)
        if at is not None and not in_snapshot(at) and place(at) <= upto:
            return _batch(checkpoint, batch), place(at)
    raise RestoreRefusedError(
        f"pipeline `{epoch.pipeline}` reads {table}, and its checkpoint has no batch any more that has read nothing of "
        "what would be taken back. Nothing was changed. Go back to a later savepoint; or begin it again when the "
        f"restore has ended, and take its definition out of the lake before: "
        f"{command('reset', epoch.pipeline, '--empty-tables')}"
    )


def _kept_for_readers(lake: Lake, members: list[Member]) -> int | None:
    """The first version of the first member's result that stays and that a reader has still to read.

    Raises:
        RestoreRefusedError: if it cannot be named in the log once more.
    """
    first, table = members[0], members[0].parsed.sink.table
    version = first.point.tables[table].version
    begins = min((at[0] for each in members[1:] for name, at in each.sources.items() if name == table), default=None)
    if begins is None or begins > version:
        return None
    for number in range(begins, version + 1):
        actions = actions_at(lake, table, number)
        adds = [action["add"] for action in actions or [] if "add" in action]
        if (
            actions is None
            or takes_rows_away(actions)
            or any(add.get("deletionVector") or not add.get("stats") for add in adds)
        ):
            raise RestoreRefusedError(
                f"table {table}: version {number}, which a reader has still to read, takes rows away, has no "
                "statistics, or is not in the log any more. Nothing was changed. Let its readers catch up, or go back "
                "to another batch."
            )
    if lost := missing_files(lake, table, open_table(lake, table, version=begins - 1)):
        raise RestoreRefusedError(
            f"table {table}: of version {begins - 1}, data file {lost[0]} is gone. Nothing was changed. Go back to a "
            "later batch."
        )
    return begins


def _refuse_later_batches(lake: Lake, definition: Definition, point: Savepoint) -> None:
    """Refuses to leave the tables as they are where they have batches that would be run again."""
    for table, saved in point.tables.items():
        for version, actions in commits_between(lake, table, saved.version + 1, latest_version(lake, table)):
            stamp = decode(info_of(actions))
            if stamp is not None and stamp.pipeline == definition.name and stamp.role != "heartbeat":
                raise RestoreRefusedError(
                    f"pipeline `{definition.name}`: {table} has batch {stamp.batch_id} of epoch {stamp.epoch} (version "
                    f"{version}), which comes after {point.called}. With --without-tables its events would be read "
                    "again and be there twice. Nothing was changed. Leave --without-tables out, so that the tables go "
                    "back, too."
                )


def _taken_back(lake: Lake, members: Iterable[Member]) -> Iterator[TakenBack]:
    for member in members:
        for table, saved in member.point.tables.items():
            newest = latest_version(lake, table)
            commits: Counter[str] = Counter()
            for _, actions in commits_between(lake, table, saved.version + 1, newest):
                commits[_made_by(info_of(actions))] += 1
            yield TakenBack(
                pipeline=member.pipeline,
                table=table,
                version=saved.version,
                newest=newest,
                rows=saved.rows,
                rows_now=row_count(open_table(lake, table)),
                commits=commits,
                reopened=max(0, _repaired(lake, table, newest) - _repaired(lake, table, saved.version)),
            )


def _made_by(info: dict[str, object]) -> str:
    if decode(info) is not None:
        return "batch"
    if (revision := decode_revision(info)) is not None:
        return revision.ledger.kind if revision.ledger else "revision"
    if decode_replay(info) is not None:
        return "replay"
    return "commit of maintenance or another program"


def _repaired(lake: Lake, table: str, version: int) -> int:
    """Events of a table beside a result that a repair has counted."""
    opened = open_table(lake, table, version=version)
    if "settled_version" not in {field.name for field in opened.schema().fields}:
        return 0
    with duckdb.connect() as connection:
        connection.register("aside", opened.to_pyarrow_dataset())
        found = connection.execute("SELECT count(settled_version) FROM aside").fetchone()
    return int(found[0]) if found else 0


def _decisions(lake: Lake, definition: Definition, point: Savepoint) -> Iterator[str]:
    """What people have decided about the pipeline after the batch."""
    since = datetime.fromtimestamp(point.ledger.started_ms / 1000, UTC)
    try:
        found = decisions_of(lake, definition.name)
    except (TidemarkError, CheckpointError):
        return
    for each in found:
        if each["decided_at"] > since and each["action"] not in _CHANGES_NOTHING:
            yield f"{each['decided_at']:%Y-%m-%d %H:%M} {each['action']} of {each['subject']}, by {each['decided_by']}"
