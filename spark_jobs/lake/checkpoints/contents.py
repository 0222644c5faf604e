"""What a checkpoint holds, file by file, read through the lake's store: no Spark, and nothing is changed.

Beside what `spark_log` names: `state/<operator>/_metadata/metadata` names an operator and its stores,
`state/<operator>/<partition>[/<store>]/` has the changelogs and snapshots of one, that of partition 0 a schema.
`commits/<N>` says which version of each store batch N has left: N + 1, and an id.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

import obstore
from obstore.exceptions import NotFoundError

from spark_jobs.lake.checkpoints.changelogs import (
    Changelog,
    DamagedFileError,
    Snapshot,
    Version,
    java_text,
    read_changelog,
    read_snapshot,
)
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.folders import objects_below

_STATE_FILE = re.compile(r"(?P<version>\d+)_(?P<id>[0-9a-f-]+)\.(?P<kind>changelog|zip)")
_NAMES_ADDRESSES = re.compile(r"state/\d+/_metadata/v2/\d+")
_SCHEMA_FILE = re.compile(rb'"[^"]*?/(state/\d+/_stateSchema/[^"]*)"')
_OF_SEVERAL = "v3"
"""How the schemas begin of a store that has several kinds of rows."""
PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's setting of a batch for how many partitions its state has."""


@dataclass(frozen=True)
class File:
    """A file of a checkpoint.

    Attributes:
        size: in bytes.
        written_at: when.
    """

    size: int
    written_at: datetime


@dataclass(frozen=True)
class Planned:
    """What is noted of a batch before it runs.

    Attributes:
        watermark_ms: by which state is removed in it; 0: none.
        planned_ms: when it was planned, milliseconds since 1970.
        settings: Spark's, as the checkpoint keeps them.
        offsets: up to where it reads each source, as JSON; empty: a source has no place yet.
    """

    watermark_ms: int
    planned_ms: int
    settings: Mapping[str, str]
    offsets: tuple[str, ...]


@dataclass(frozen=True)
class Committed:
    """What is noted of a batch when it has ended.

    Attributes:
        watermark_ms: of the batch after it.
        stores: operator -> partition -> the ids of its stores, in the order in which the operator names them.
    """

    watermark_ms: int
    stores: Mapping[int, tuple[tuple[str, ...], ...]]


@dataclass(frozen=True)
class StateOperator:
    """A stateful operator.

    Attributes:
        number: by which its folder is called.
        name: Spark's.
        stores: names of its stores; `default` where there is one.
    """

    number: int
    name: str
    stores: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """What a store has to be read from at a version: a snapshot, and the changelogs after it.

    Attributes:
        files: paths inside the checkpoint.
        snapshot: the version that it starts from; None: from nothing.
        rows: keys in the store; None: the files do not tell it.
        snapshot_rows: keys in the snapshot.
        faults: path -> what is wrong with it, as half a sentence.
        lineages: changelog -> the versions that it says lead to it.
    """

    files: tuple[str, ...]
    snapshot: int | None = None
    rows: int | None = None
    snapshot_rows: int | None = None
    faults: Mapping[str, str] = field(default_factory=dict)
    lineages: Mapping[str, tuple[Version, ...]] = field(default_factory=dict)


class Checkpoint:
    """Spark's checkpoint of an epoch.

    Args:
        lake: where.
        epoch: whose checkpoint it is.
        folder: where a copy of it lies, relative to the lake; None: it is the checkpoint itself.
    """

    def __init__(self, lake: Lake, epoch: Epoch, folder: str | None = None) -> None:
        self.lake, self.epoch, self.folder = lake, epoch, folder or epoch.folder

    @cached_property
    def files(self) -> dict[str, File]:
        """Path inside the checkpoint -> the file, of all that were there at the first look."""
        found = objects_below(self.lake, self.folder)
        prefix = f"{self.folder}/"
        files = ((item["path"].removeprefix(prefix), item) for item in found)
        # Hadoop's checksums are files that begin with a dot.
        return {
            path: File(item["size"], item["last_modified"])
            for path, item in files
            if not path.rsplit("/", 1)[-1].startswith(".")
        }

    def read(self, path: str) -> bytes | None:
        """The content of a file; None: it is not there."""
        try:
            return bytes(obstore.get(self.lake.store, f"{self.folder}/{path}").bytes())
        except (NotFoundError, FileNotFoundError):
            return None

    def batches(self, log: Literal["offsets", "commits"]) -> list[int]:
        """The batches in one of Spark's two logs, the oldest first."""
        names = (path.removeprefix(f"{log}/") for path in self.files if path.startswith(f"{log}/"))
        return sorted(int(name) for name in names if name.isdigit())

    def planned(self, batch: int) -> Planned:
        """What is noted of a batch before it runs.

        Raises:
            DamagedFileError: if that is missing or not whole.
        """
        head, *lines = self._lines(f"offsets/{batch}")
        _refuse_other_form(head, "v1")
        about = _as_object(lines[0] if lines else "")
        try:
            offsets = tuple("" if line == "-" else line for line in lines[1:])
            for offset in filter(None, offsets):
                json.loads(offset)
            settings = {str(key): str(value) for key, value in about["conf"].items()}
            found = Planned(int(about["batchWatermarkMs"]), int(about["batchTimestampMs"]), settings, offsets)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DamagedFileError("is cut off, or is no entry of Spark's log of offsets") from error
        if not offsets:
            raise DamagedFileError("is cut off: it names no source")
        return found

    def committed(self, batch: int) -> Committed:
        """What is noted of a batch when it has ended.

        Raises:
            DamagedFileError: if that is missing or not whole.
        """
        head, *lines = self._lines(f"commits/{batch}")
        _refuse_other_form(head, "v2")
        about = _as_object(lines[0] if lines else "")
        try:
            stores = {
                int(number): tuple(tuple(str(each) for each in partition) for partition in partitions)
                for number, partitions in about["stateUniqueIds"].items()
            }
            return Committed(int(about["nextBatchWatermarkMs"]), stores)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DamagedFileError("is cut off, or is no entry of Spark's log of commits") from error

    def operator_numbers(self) -> list[int]:
        """The numbers of the operators that have files of state."""
        found = (path.split("/")[1] for path in self.files if path.startswith("state/"))
        return sorted({int(number) for number in found if number.isdigit()})

    def operator(self, number: int) -> StateOperator:
        """A stateful operator.

        Raises:
            DamagedFileError: if what describes it is missing or not whole.
        """
        path = self.metadata_of(number)
        head, *lines = self._lines(path)
        _refuse_other_form(head, "v2" if "/v2/" in path else "v1")
        about = _as_object(lines[0] if lines else "")
        try:
            stores = about["stateStoreInfo"]
            return StateOperator(
                number=int(about["operatorInfo"]["operatorId"]),
                name=str(about["operatorInfo"]["operatorName"]),
                # How many partitions it names are those of its first batch, also after another number was set.
                stores=tuple(str(store["storeName"]) for store in stores),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError("is cut off, or is no description of a stateful operator") from error

    def metadata_of(self, number: int) -> str:
        """Where an operator is described: of a keyed one, by the batch that described it last."""
        folder = f"state/{number}/_metadata/"
        numbered = [path.removeprefix(f"{folder}v2/") for path in self.files if path.startswith(f"{folder}v2/")]
        newest = max((int(name) for name in numbered if name.isdigit()), default=None)
        return f"{folder}metadata" if newest is None else f"{folder}v2/{newest}"

    def schemas_of(self, number: int, store: str) -> tuple[str, ...]:
        """Where the schemas of an operator's store are: beside its first partition; of a keyed one in their folder."""
        folder = f"state/{number}/_stateSchema/{store}/"
        found = tuple(sorted(path for path in self.files if path.startswith(folder)))
        if found or "/v2/" in self.metadata_of(number):
            return found or (folder.rstrip("/"),)
        return (f"{folder_of(number, 0, store)}/_metadata/schema",)

    def schema(self, path: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The schemas of a store's keys and values, as Spark writes types; None: it has several kinds of rows.

        Raises:
            DamagedFileError: if the file is missing or not whole.
        """
        if (content := self.read(path)) is None:
            raise DamagedFileError("is missing")
        try:
            head, at = java_text(content, 0)
            if head == _OF_SEVERAL:
                if content.count(b"{") != content.count(b"}"):
                    raise DamagedFileError("is cut off")
                return None
            _refuse_other_form(head, "v2")
            key, at = _in_chunks(content, at)
            value, at = _in_chunks(content, at)
            return json.loads(key), json.loads(value)
        except (struct.error, IndexError, ValueError) as error:
            if isinstance(error, DamagedFileError):
                raise
            raise DamagedFileError("is cut off, or is no schema of a state store") from error

    def chains(self, batch: int) -> Iterator[tuple[StateOperator, int, str, Chain]]:
        """Operator, partition, store, and what the store has to be read from as batch N has left it.

        Raises:
            DamagedFileError: if the files that say what state there is are missing or not whole.
        """
        for number, partitions in sorted(self.committed(batch).stores.items()):
            operator = self.operator(number)
            for partition, ids in enumerate(partitions):
                for store, id_ in zip(operator.stores, ids, strict=False):
                    yield operator, partition, store, self.chain(folder_of(number, partition, store), (batch + 1, id_))

    def chain(self, folder: str, version: Version) -> Chain:
        """What a store has to be read from at a version."""
        faults: dict[str, str] = {}
        changelogs: dict[Version, Changelog] = {}
        lineage = [version]
        if not self._has(folder, version, "zip"):
            newest = self._changelog(folder, version, faults)
            if newest is None:
                return Chain((file_of(folder, version, "changelog"),), faults=faults)
            changelogs[version] = newest
            lineage = [*newest.lineage, version]
        start = next((at for at in reversed(range(len(lineage))) if self._has(folder, lineage[at], "zip")), None)
        files, snapshot = [], None
        if start is not None:
            path = file_of(folder, lineage[start], "zip")
            snapshot = self._snapshot(folder, path, faults)
            files += [path, *(f"{folder}/SSTs/{name}" for name in (snapshot.files if snapshot else ()))]
        elif lineage[0][0] != 1:
            faults[file_of(folder, lineage[0], "zip")] = "is missing: the changelogs after it build upon it"
        after = lineage if start is None else lineage[start + 1 :]
        for each in after:
            files.append(file_of(folder, each, "changelog"))
            if each not in changelogs and (found := self._changelog(folder, each, faults)) is not None:
                changelogs[each] = found
        logs = [changelogs[each] for each in after if each in changelogs]
        rows = None if faults else _rows(snapshot, logs)
        return Chain(
            files=tuple(files),
            snapshot=None if start is None else lineage[start][0],
            rows=rows,
            snapshot_rows=None if snapshot is None else snapshot.rows,
            faults=faults,
            lineages={file_of(folder, each, "changelog"): log.lineage for each, log in changelogs.items()},
        )

    def needed(self, batch: int) -> tuple[str, ...]:
        """The files that tell the state as a batch has left it.

        Raises:
            DamagedFileError: if those that name the others are missing or not whole.
        """
        found = ["metadata", f"offsets/{batch}", f"commits/{batch}"]
        for operator, partition, store, chain in self.chains(batch):
            number = operator.number
            found += [self.metadata_of(number), *self.schemas_of(number, store), *chain.files]
            if chain.faults:
                path, what = next(iter(chain.faults.items()))
                raise DamagedFileError(f"{path} {what} (partition {partition})")
        return tuple(dict.fromkeys(found))

    def state_files(self) -> Iterator[tuple[str, int, Literal["changelog", "zip"], File]]:
        """Folder, version, kind and file of each changelog and snapshot."""
        for path, file in self.files.items():
            folder, _, name = path.rpartition("/")
            if path.startswith("state/") and (match := _STATE_FILE.fullmatch(name)):
                yield folder, int(match["version"]), match["kind"], file  # type: ignore[misc]

    def _has(self, folder: str, version: Version, kind: str) -> bool:
        return file_of(folder, version, kind) in self.files

    def _changelog(self, folder: str, version: Version, faults: dict[str, str]) -> Changelog | None:
        path = file_of(folder, version, "changelog")
        try:
            if (content := self.read(path)) is None:
                raise DamagedFileError("is missing")
            return read_changelog(content)
        except DamagedFileError as error:
            faults[path] = str(error)
            return None

    def _snapshot(self, folder: str, path: str, faults: dict[str, str]) -> Snapshot | None:
        try:
            if (content := self.read(path)) is None:
                raise DamagedFileError("is missing")
            found = read_snapshot(content)
        except DamagedFileError as error:
            faults[path] = str(error)
            return None
        for name, size in found.files.items():
            part = f"{folder}/SSTs/{name}"
            if (there := self.files.get(part)) is None:
                faults[part] = f"is missing: {path} needs it"
            elif there.size != size:
                faults[part] = f"has {there.size} of {size} bytes"
        return found

    def _lines(self, path: str) -> list[str]:
        if (content := self.read(path)) is None:
            raise DamagedFileError("is missing")
        if not content:
            raise DamagedFileError("is empty")
        try:
            return content.decode().splitlines()
        except UnicodeDecodeError as error:
            raise DamagedFileError("is no text") from error


def folder_of(operator: int, partition: int, store: str) -> str:
    """Where a store lies."""
    return f"state/{operator}/{partition}" + ("" if store == "default" else f"/{store}")


def named_here(path: str, content: bytes, address: str) -> bytes:
    """A file of a checkpoint as it must be where the checkpoint lies.

    What describes a keyed operator names the files of its schemas by their whole addresses.

    Args:
        path: of the file, inside the checkpoint.
        content: of it.
        address: of the checkpoint, as Spark takes it.
    """
    if not _NAMES_ADDRESSES.fullmatch(path):
        return content
    here = (f"file:{address}" if address.startswith("/") else address.replace("file://", "file:")).encode()
    return _SCHEMA_FILE.sub(lambda found: b'"' + here + b"/" + found[1] + b'"', content)


def file_of(folder: str, version: Version, kind: str) -> str:
    """A changelog or a snapshot of a store."""
    return f"{folder}/{version[0]}_{version[1]}.{kind}"


def _rows(snapshot: Snapshot | None, logs: list[Changelog]) -> int | None:
    changes = [log.changes for log in logs if log.changes != ()]
    if not changes:
        return snapshot.rows if snapshot is not None else 0
    if (snapshot is not None and snapshot.rows) or None in changes:
        return None  # nobody knows which keys the snapshot has
    alive = {key: there for each in changes for key, there in each or ()}
    return sum(alive.values())


def _refuse_other_form(found: str, known: str) -> None:
    if found != known:
        raise DamagedFileError(f"begins with {found[:20]!r} instead of {known!r}")


def _as_object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DamagedFileError("is cut off") from error
    if not isinstance(found, dict):
        raise DamagedFileError("is not as Spark writes it")
    return found


def _in_chunks(data: bytes, at: int) -> tuple[str, int]:
    """A text that may be too long for one of Java's."""
    (count,) = struct.unpack_from(">i", data, at)
    at, parts = at + 4, []
    for _ in range(count):
        part, at = java_text(data, at)
        parts.append(part)
    return "".join(parts), at
