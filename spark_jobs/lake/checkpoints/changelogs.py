"""Spark's files of state, read without Spark: changelogs and snapshots of RocksDB stores.

A changelog `<version>_<id>.changelog` says in its head which versions lead to it from the last snapshot on, then what
has changed. A snapshot `<version>_<id>.zip` names the files of RocksDB beside it, in `SSTs/`.
"""

import io
import json
import struct
import zipfile
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_MAGIC = b"LZ4Block"
_HEAD = struct.Struct("<8sBiii")
_RAW = 1
"""How a block is kept that does not get smaller."""
_END = -1
"""Stands where the length of the next key would: nothing follows."""

_PLAIN, _FORMS = "v3", ("v3", "v4")

Version = tuple[int, str]
"""A version of a store, and the id that Spark gave it: of two drivers that wrote it, one counts."""


class DamagedFileError(ValueError):
    """A file of a checkpoint is not as Spark writes it; the text says how, as half a sentence."""


@dataclass(frozen=True)
class Changelog:
    """What a changelog says.

    Attributes:
        lineage: the versions that lead to it, from the last snapshot on, the oldest first.
        changes: keys in the order of their changes, and whether each has a value from there on; None: the store has
            several kinds of rows, and they are not read here.
    """

    lineage: tuple[Version, ...]
    changes: tuple[tuple[bytes, bool], ...] | None


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot says.

    Attributes:
        rows: keys in it.
        files: those of RocksDB that it needs: name -> size in bytes.
    """

    rows: int
    files: dict[str, int]


def read_changelog(content: bytes) -> Changelog:
    """Reads a changelog to its end.

    Raises:
        DamagedFileError: if it is not whole.
    """
    data = _inflated(content)
    try:
        version, at = java_text(data, 0)
        if version not in _FORMS:
            raise DamagedFileError(f"has the form {version!r}, and here {' and '.join(_FORMS)} are known")
        lineage, at = java_text(data, at)
        items = tuple((int(item["version"]), str(item["checkpointUniqueId"])) for item in json.loads(lineage))
        return Changelog(items, _changes(data, at) if version == _PLAIN else None)
    except (struct.error, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError("is cut off, or is no changelog of a state store") from error


def read_snapshot(content: bytes) -> Snapshot:
    """Reads what a snapshot says of itself.

    Raises:
        DamagedFileError: if it is not whole.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as opened:
            if (bad := opened.testzip()) is not None:
                raise DamagedFileError(f"is not whole: {bad} in it is damaged")
            # The first line is the version.
            found: dict[str, Any] = json.loads(opened.read("metadata").decode().partition("\n")[2])
        files = {str(each["dfsSstFileName"]): int(each["sizeBytes"]) for each in found["sstFiles"]}
        return Snapshot(int(found["numKeys"]), files)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError("is cut off, or is no snapshot of a state store") from error


def _inflated(content: bytes) -> bytes:
    parts, at, ended = [], 0, False
    while at < len(content):
        if len(content) < at + _HEAD.size:
            raise DamagedFileError("is cut off")
        magic, token, packed, size, _ = _HEAD.unpack_from(content, at)
        if magic != _MAGIC:
            raise DamagedFileError("is no changelog of a state store")
        at += _HEAD.size
        block = content[at : at + packed]
        if len(block) < packed:
            raise DamagedFileError("is cut off")
        at += packed
        ended = not size
        if size:
            parts.append(block if token >> 4 == _RAW else _unpacked(block, size))
    if not ended:
        raise DamagedFileError("is cut off" if content else "is empty")
    return b"".join(parts)


def _unpacked(block: bytes, size: int) -> bytes:
    try:
        return bytes(pa.Codec("lz4_raw").decompress(block, size).to_pybytes())
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError("holds bytes that are damaged") from error


def java_text(data: bytes, at: int) -> tuple[str, int]:
    """A text as Java's `writeUTF` leaves it, and where it ends."""
    (length,) = struct.unpack_from(">H", data, at)
    end = at + 2 + length
    if end > len(data):
        raise DamagedFileError("is cut off")
    return data[at + 2 : end].decode(), end


def _changes(data: bytes, at: int) -> tuple[tuple[bytes, bool], ...]:
    found: list[tuple[bytes, bool]] = []
    while True:
        (length,) = struct.unpack_from(">i", data, at)
        if length == _END:
            return tuple(found)
        key, at = data[at + 4 : at + 4 + length], at + 4 + length
        # A removal has no value: the same sign stands where its length would.
        (size,) = struct.unpack_from(">i", data, at)
        at += 4 + max(size, 0)
        if at > len(data):
            raise DamagedFileError("is cut off")
        found.append((key, size != _END))
