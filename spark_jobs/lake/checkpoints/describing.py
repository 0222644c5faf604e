"""What a checkpoint holds, as values that a person reads or a program takes: one epoch, one batch, or two of them."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_jobs.lake.checkpoints.changelogs import DamagedFileError
from spark_jobs.lake.checkpoints.contents import Chain, Checkpoint, folder_of
from spark_jobs.lake.checkpoints.epochs import current_epochs
from spark_jobs.lake.checkpoints.ownership import records
from spark_jobs.lake.checkpoints.source_logs import files_taken
from spark_jobs.lake.checkpoints.spark_log import query_id
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake

_COSTS = 5
"""Of so many batches it is shown what they have cost."""


@dataclass(frozen=True)
class Summary:
    """A checkpoint in a line.

    Attributes:
        pipeline: whose.
        epoch: its number.
        planned: the newest planned batch; None: none.
        committed: the newest finished batch; None: none.
        watermark: after that; None: it has none.
        size_bytes: of all files.
        files: how many.
        snapshot_at: when the newest snapshot of state was written; None: there is none.
    """

    pipeline: str
    epoch: int
    planned: int | None
    committed: int | None
    watermark: datetime | None
    size_bytes: int
    files: int
    snapshot_at: datetime | None


@dataclass(frozen=True)
class Store:
    """A store of state in a partition, as a batch has left it.

    Attributes:
        operator: its number.
        name: Spark's name of the operator.
        partition: its number.
        store: its name; `default` where the operator has one.
        rows: in it; None: the files do not tell.
        snapshot: the version of the snapshot that it is read from; None: from changelogs alone.
        snapshot_rows: in that.
        changelogs: how many are kept.
        snapshots: how many are kept.
        newest_changelog: its version.
        newest_snapshot: its version.
        size_bytes: of its changelogs, snapshots and their files.
    """

    operator: int
    name: str
    partition: int
    store: str
    rows: int | None
    snapshot: int | None
    snapshot_rows: int | None
    changelogs: int
    snapshots: int
    newest_changelog: int | None
    newest_snapshot: int | None
    size_bytes: int


@dataclass(frozen=True)
class BatchCost:
    """What a finished batch has cost.

    Attributes:
        batch: its number.
        planned_at: when it was planned.
        seconds: until it was noted as finished, by the clocks of the driver and of the store.
        state_bytes: of the changelogs and snapshots that it has left, as far as they are kept.
    """

    batch: int
    planned_at: datetime
    seconds: float
    state_bytes: int


@dataclass(frozen=True)
class Description:
    """A checkpoint at a batch.

    Attributes:
        pipeline: whose.
        epoch: its number.
        begun_at: when the epoch began.
        definition: the digest of the definition that it began with.
        owner: whose the result table is, by the lake; None: nobody's yet.
        query: the id that Spark gave the query; None: none, or it cannot be read.
        batch: that is shown; None: none is finished.
        planned: the newest planned batch.
        committed: the newest finished batch.
        watermark: after the batch that is shown.
        offsets: up to where that batch has read each source, in words.
        stores: its state.
        unreadable: why the files of the batch cannot be read; None: they can.
        costs: of the newest finished batches up to the one that is shown, the oldest first.
    """

    pipeline: str
    epoch: int
    begun_at: datetime
    definition: str
    owner: str | None
    query: str | None
    batch: int | None
    planned: int | None
    committed: int | None
    watermark: datetime | None
    offsets: tuple[str, ...] = ()
    stores: tuple[Store, ...] = ()
    unreadable: str | None = None
    costs: tuple[BatchCost, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same as JSON's values."""
        return {name: plain(value) for name, value in asdict(self).items()}


def summaries(lake: Lake) -> list[Summary]:
    """Each checkpoint of a lake, by pipeline."""
    return [_summary(Checkpoint(lake, epoch)) for epoch in current_epochs(lake).values()]


def describe(checkpoint: Checkpoint, *, at: int | None = None) -> Description:
    """What a checkpoint holds.

    Args:
        checkpoint: whose.
        at: the finished batch that is shown; None: the newest.

    Raises:
        MissingTableError: if Spark's log does not have that batch.
    """
    epoch = checkpoint.epoch
    planned, committed = _newest(checkpoint.batches("offsets")), _newest(checkpoint.batches("commits"))
    batch = batch_of(checkpoint, at)
    watermark: datetime | None = None
    offsets: tuple[str, ...] = ()
    stores: tuple[Store, ...] = ()
    unreadable = None
    if batch is not None:
        try:
            watermark = _instant(checkpoint.committed(batch).watermark_ms)
            offsets = tuple(in_words(checkpoint, offset) for offset in checkpoint.planned(batch).offsets)
            stores = tuple(_stores(checkpoint, batch))
        except DamagedFileError as error:
            unreadable = f"a file of batch {batch} {error}"
    table = str(json.loads(epoch.definition)["sink"]["table"])
    owner = records(checkpoint.lake, table).newest()[1]
    return Description(
        pipeline=epoch.pipeline,
        epoch=epoch.number,
        begun_at=epoch.begun_at,
        definition=hashlib.sha256(epoch.definition.encode()).hexdigest()[:12],
        owner=owner.pipeline if owner is not None else None,
        query=_query(checkpoint),
        batch=batch,
        planned=planned,
        committed=committed,
        watermark=watermark,
        offsets=offsets,
        stores=stores,
        unreadable=unreadable,
        costs=tuple(_costs(checkpoint, batch)) if batch is not None else (),
    )


def _costs(checkpoint: Checkpoint, upto: int) -> Iterator[BatchCost]:
    written: dict[int, int] = {}
    for _, version, _, file in checkpoint.state_files():
        written[version] = written.get(version, 0) + file.size
    for batch in [each for each in checkpoint.batches("commits") if each <= upto][-_COSTS:]:
        try:
            planned = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=checkpoint.planned(batch).planned_ms)
        except DamagedFileError:
            continue  # `verify` says what is wrong
        ended = checkpoint.files[f"commits/{batch}"].written_at
        yield BatchCost(batch, planned, round((ended - planned).total_seconds(), 3), written.get(batch + 1, 0))


def batch_of(checkpoint: Checkpoint, at: int | None) -> int | None:
    """The finished batch that somebody means; None: none is finished.

    Raises:
        MissingTableError: if Spark's log does not have it.
    """
    finished = checkpoint.batches("commits")
    if at is None or at in finished:
        return at if at is not None else _newest(finished)
    kept = f"{finished[0]} to {finished[-1]}" if finished else "none"
    raise MissingTableError(
        f"pipeline `{checkpoint.epoch.pipeline}`: epoch {checkpoint.epoch.number} has no finished batch {at} in its "
        f"checkpoint; kept are: {kept}. Nothing was changed."
    )


def checkpoint_of(lake: Lake, pipeline: str) -> Checkpoint:
    """The checkpoint of a pipeline's current epoch.

    Raises:
        MissingTableError: if it has none.
    """
    epochs = current_epochs(lake)
    if pipeline not in epochs:
        known = ", ".join(epochs) or "none"
        raise MissingTableError(
            f"pipeline `{pipeline}` has no checkpoint on {lake.uri}; those that have one: {known}. Nothing was read."
        )
    return Checkpoint(lake, epochs[pipeline])


def in_words(checkpoint: Checkpoint, offset: str) -> str:
    """Up to where a batch reads a source."""
    if not offset:
        return "nothing yet"
    found = json.loads(offset)
    if "logOffset" in found:
        taken = files_taken(checkpoint, offset)
        return f"files: {'some' if taken is None else f'{taken:,}'}, up to entry {found['logOffset']} of their log"
    if "reservoirId" in found:
        index = int(found.get("index", -1))
        files = f", {index + 1} of its files" if index >= 0 else ""
        snapshot = ", while it reads what the table held at first" if found.get("isStartingVersion") else ""
        return f"Delta table {found['reservoirId']}: version {found['reservoirVersion']}{files}{snapshot}"
    try:
        places = [
            f"{topic}[{partition}] {position}"
            for topic, partitions in sorted(found.items())
            for partition, position in sorted(partitions.items(), key=lambda each: int(each[0]))
        ]
    except (AttributeError, ValueError):
        return offset
    return "Kafka, next message: " + ", ".join(places)


def differences(one: Description, other: Description) -> Iterator[tuple[str, str, str]]:
    """What, and how it is in the one and in the other, where that is not the same."""
    for name in ("pipeline", "epoch", "definition", "query", "batch", "watermark"):
        yield from _unequal(name, getattr(one, name), getattr(other, name))
    for number in range(max(len(one.offsets), len(other.offsets))):
        yield from _unequal(f"source {number}", *(dict(enumerate(each.offsets)).get(number) for each in (one, other)))
    operators = [{store.operator: store.name for store in each.stores} for each in (one, other)]
    for number in sorted(operators[0].keys() | operators[1].keys()):
        yield from _unequal(f"operator {number}", *(each.get(number) for each in operators))
    states = [{(s.operator, s.partition, s.store): s for s in each.stores} for each in (one, other)]
    for key in sorted(states[0].keys() | states[1].keys()):
        stores = [each.get(key) for each in states]
        yield from _unequal(f"state {folder_of(*key)}, rows", *(s.rows if s else None for s in stores))
        yield from _unequal(f"state {folder_of(*key)}, from snapshot", *(s.snapshot if s else None for s in stores))


def state_files_of(checkpoint: Checkpoint, batch: int | None) -> set[str]:
    """The files of state that tell it as a batch has left it; those that cannot be told are left out."""
    if batch is None:
        return set()
    try:
        return {path for path in checkpoint.needed(batch) if path.startswith("state/")}
    except DamagedFileError:
        return set()


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _summary(checkpoint: Checkpoint) -> Summary:
    committed = _newest(checkpoint.batches("commits"))
    try:
        watermark = None if committed is None else _instant(checkpoint.committed(committed).watermark_ms)
    except DamagedFileError:
        watermark = None  # `verify` says why
    written = [file.written_at for _, _, kind, file in checkpoint.state_files() if kind == "zip"]
    return Summary(
        pipeline=checkpoint.epoch.pipeline,
        epoch=checkpoint.epoch.number,
        planned=_newest(checkpoint.batches("offsets")),
        committed=committed,
        watermark=watermark,
        size_bytes=sum(file.size for file in checkpoint.files.values()),
        files=len(checkpoint.files),
        snapshot_at=max(written, default=None),
    )


def _stores(checkpoint: Checkpoint, batch: int) -> Iterator[Store]:
    kept: dict[tuple[str, str], list[int]] = {}
    for folder, version, kind, _ in checkpoint.state_files():
        kept.setdefault((folder, kind), []).append(version)
    for operator, partition, store, chain in checkpoint.chains(batch):
        folder = folder_of(operator.number, partition, store)
        logs, snapshots = kept.get((folder, "changelog"), []), kept.get((folder, "zip"), [])
        yield Store(
            operator=operator.number,
            name=operator.name,
            partition=partition,
            store=store,
            **_rows_of(chain),
            changelogs=len(logs),
            snapshots=len(snapshots),
            newest_changelog=_newest(logs),
            newest_snapshot=_newest(snapshots),
            size_bytes=sum(
                file.size
                for path, file in checkpoint.files.items()
                if path.rsplit("/", 1)[0] in (folder, f"{folder}/SSTs")
            ),
        )


def _rows_of(chain: Chain) -> dict[str, Any]:
    return {"rows": chain.rows, "snapshot": chain.snapshot, "snapshot_rows": chain.snapshot_rows}


def _query(checkpoint: Checkpoint) -> str | None:
    try:
        return query_id(checkpoint.lake, checkpoint.epoch.folder)
    except (ValueError, KeyError, TypeError):
        return None  # `verify` says why


def _unequal(what: str, one: object, other: object) -> Iterator[tuple[str, str, str]]:
    if one != other:
        yield what, *("-" if each is None else str(each) for each in (one, other))  # type: ignore[misc]


def _newest(numbers: list[int]) -> int | None:
    return max(numbers, default=None)


def _instant(ms: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms) if ms else None
