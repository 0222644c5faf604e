"""What nothing needs any more of checkpoints and savepoints, and why; nothing is removed here."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired import orders
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.changelogs import DamagedFileError
from spark_jobs.lake.checkpoints.contents import Checkpoint, file_of, folder_of
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epochs
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.lake.checkpoints.restoring import open_restore
from spark_jobs.lake.checkpoints.savepoints import Savepoint, savepoints
from spark_jobs.lake.commands import command
from spark_jobs.lake.store.folders import objects_below
from spark_jobs.lake.tables.opening import exists
from spark_jobs.operations.savepoint.execute import KEPT
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.pipelines import registry
from spark_jobs.spec import DefinitionError, definition_from_json

IN_FLIGHT = timedelta(hours=24)
"""What is younger stays: somebody may be about to name it."""

Reason = Literal[
    "savepoint past its retention",
    "savepoint that was never finished",
    "checkpoint of an epoch that is over",
    "state that no batch names",
    "checkpoint of a pipeline that is gone",
]

_CHANGELOG = re.compile(r"state/.+/(?P<version>\d+)_[0-9a-f-]+\.changelog")
_EPOCH = re.compile(r"_checkpoints/[^/]+/epoch-(\d+)/")


class Remains(BaseModel):
    """Something that is removed as a whole.

    Attributes:
        pipeline: whose it is, or was.
        what: the name of the savepoint, the number of the epoch, or how many files.
        reason: why nothing needs it.
        paths: objects of the lake.
        size_bytes: of these.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    what: str
    reason: Reason
    paths: tuple[str, ...]
    size_bytes: int


class PrunePlan(OperationPlan):
    """What is removed.

    Attributes:
        remains: that nothing needs.
    """

    remains: tuple[Remains, ...]

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing is removed; None: something is."""
        return None if self.remains else "all that is there is needed"


def plan_prune(
    lake: Lake, names: Sequence[str] = (), *, now: datetime | None = None, in_flight: timedelta = IN_FLIGHT
) -> PrunePlan:
    """What nothing needs any more.

    Never a savepoint that is kept, nor the checkpoint of an epoch that goes on, nor what an unfinished restore reads.

    Args:
        lake: where.
        names: of pipelines; empty: all.
        now: the time; None: the clock.
        in_flight: what is younger stays.
    """
    look = _Look(lake, now or datetime.now(UTC), in_flight)
    found = [each for each in look.remains() if not names or each.pipeline in names]
    return PrunePlan(pipeline=", ".join(names) or "all", remains=tuple(found), notices=tuple(look.notices(names)))


class _Look:
    def __init__(self, lake: Lake, now: datetime, in_flight: timedelta) -> None:
        self._lake, self._before = lake, now - in_flight
        self._epochs = current_epochs(lake)
        self._needed = {folder for member in self._open_members() for folder in member}
        known = {name for job in orders.all_desired(lake).values() for name in job.pipelines}
        self._gone = [name for name in self._epochs if name not in registry() and name not in known]

    def _open_members(self) -> Iterator[set[str]]:
        """The folders that an unfinished restore reads and writes."""
        if (record := open_restore(self._lake)) is not None:
            for each in record.members:
                names = (f"epoch-{number}" for number in (each.before, each.number))
                yield {each.point.folder, *(f"_checkpoints/{each.pipeline}/{name}" for name in names)}

    def remains(self) -> Iterator[Remains]:
        kept = savepoints(self._lake)
        expired = list(self._expired(kept))
        yield from (
            self._found(
                each.pipeline, each.name, "savepoint past its retention", f"_savepoints/{each.pipeline}/{each.name}"
            )
            for each in expired
        )
        yield from self._unfinished({each.folder for each in kept})
        forgotten = [name for name in self._gone if not self._has_tables(self._epochs[name])]
        for name in forgotten:
            yield self._found(name, "all epochs", "checkpoint of a pipeline that is gone", f"_checkpoints/{name}")
        yield from self._over(forgotten)
        for name, epoch in self._epochs.items():
            if name not in forgotten and epoch.folder not in self._needed:
                yield from self._orphans(epoch)

    def notices(self, names: Sequence[str]) -> Iterator[str]:
        for name in self._gone:
            if self._has_tables(self._epochs[name]) and name in names:
                yield (
                    f"{name} is neither registered nor deployed, but its tables are there: its checkpoint stays. "
                    f"To take both away: {command('reset', name, '--empty-tables')}, remove its tables, prune again."
                )

    def _expired(self, kept: Iterable[Savepoint]) -> Iterator[Savepoint]:
        """Savepoints that were taken by themselves, beyond as many as are kept."""
        of_kind: dict[tuple[str, str], list[Savepoint]] = defaultdict(list)
        for each in kept:
            if each.kind != "manual" and each.folder not in self._needed:
                of_kind[each.pipeline, each.kind].append(each)
        for (name, kind), found in of_kind.items():
            wanted = registry()[name].savepoints if name in registry() else None
            keep = wanted.keep if kind == "schedule" and wanted is not None else KEPT
            yield from found[: max(0, len(found) - keep)]

    def _unfinished(self, named: set[str]) -> Iterator[Remains]:
        """Copies of files that no savepoint names: whoever took it has died."""
        copies: dict[tuple[str, str, str], list[tuple[str, int, datetime]]] = defaultdict(list)
        for item in objects_below(self._lake, "_savepoints"):
            parts = item["path"].split("/")
            if len(parts) > 4:
                copies[parts[1], parts[2], parts[3]].append((item["path"], item["size"], item["last_modified"]))
        for (pipeline, name, run), objects in copies.items():
            newest = max(written for _, _, written in objects)
            if f"_savepoints/{pipeline}/{name}/{run}" not in named and newest < self._before:
                yield self._of(pipeline, name, "savepoint that was never finished", objects)

    def _over(self, forgotten: Sequence[str]) -> Iterator[Remains]:
        """Checkpoints of epochs before the current one, which an interruption has left."""
        left: dict[tuple[str, int], list[tuple[str, int, datetime]]] = defaultdict(list)
        for item in objects_below(self._lake, "_checkpoints"):
            if match := _EPOCH.match(item["path"]):
                left[item["path"].split("/")[1], int(match[1])].append(
                    (item["path"], item["size"], item["last_modified"])
                )
        for (pipeline, number), objects in left.items():
            current = self._epochs.get(pipeline)
            folder = f"_checkpoints/{pipeline}/epoch-{number}"
            if pipeline in forgotten or folder in self._needed or current is None or number >= current.number:
                continue
            if max(written for _, _, written in objects) < self._before:
                yield self._of(pipeline, f"epoch {number}", "checkpoint of an epoch that is over", objects)

    def _orphans(self, epoch: Epoch) -> Iterator[Remains]:
        """Files of state that no batch of the checkpoint names, such as a task left that ran twice."""
        checkpoint = Checkpoint(self._lake, epoch)
        finished = checkpoint.batches("commits")
        if not finished:
            return
        try:
            named = set(self._changelogs(checkpoint, finished))
        except DamagedFileError:
            return  # `tidemark checkpoints verify` says what is wrong; nothing is taken away there
        # Of other versions nobody says which is the right one. Snapshots are written beside the batches, and not looked
        # at: what nothing names yet may be named by the next one.
        versions = range(finished[0] + 1, finished[-1] + 2)
        found = [
            (f"{epoch.folder}/{path}", file.size, file.written_at)
            for path, file in checkpoint.files.items()
            if (match := _CHANGELOG.fullmatch(path))
            and int(match["version"]) in versions
            and path not in named
            and file.written_at < self._before
        ]
        if found:
            yield self._of(epoch.pipeline, f"{len(found):,} files", "state that no batch names", found)

    @staticmethod
    def _changelogs(checkpoint: Checkpoint, batches: Iterable[int]) -> Iterator[str]:
        """The changelogs that batches have left, by the log of commits.

        Raises:
            DamagedFileError: if a file that names them is not whole.
        """
        for batch in batches:
            for number, partitions in checkpoint.committed(batch).stores.items():
                stores = checkpoint.operator(number).stores
                for partition, ids in enumerate(partitions):
                    for store, id_ in zip(stores, ids, strict=False):
                        yield file_of(folder_of(number, partition, store), (batch + 1, id_), "changelog")

    def _has_tables(self, epoch: Epoch) -> bool:
        try:
            return any(exists(self._lake, table) for table in tables_of(definition_from_json(epoch.definition)))
        except (DefinitionError, ValueError):
            return True  # nobody can say: it stays

    def _found(self, pipeline: str, what: str, reason: Reason, folder: str) -> Remains:
        items = objects_below(self._lake, folder)
        return self._of(pipeline, what, reason, [(i["path"], i["size"], i["last_modified"]) for i in items])

    @staticmethod
    def _of(pipeline: str, what: str, reason: Reason, objects: Sequence[tuple[str, int, datetime]]) -> Remains:
        paths = sorted((path for path, _, _ in objects), key=lambda path: not path.endswith("/savepoint.json"))
        size = sum(size for _, size, _ in objects)
        return Remains(pipeline=pipeline, what=what, reason=reason, paths=tuple(paths), size_bytes=size)
