"""Where files go: a local folder or an object store, with files that appear whole or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from spark_jobs.simulator.errors import BadTarget

OpenS3 = Callable[[str], ObjectStore]


class Folder(Protocol):
    """A place for files, addressed by paths such as `sales/a.json`."""

    def names(self, subfolder: str) -> list[str]:
        """File names directly in a subfolder, in no order; none if it does not exist."""

    def write(self, path: str, content: bytes) -> None:
        """Makes a new file appear, whole.

        Raises:
            BadTarget: if it exists already.
        """

    def append(self, path: str, content: bytes) -> None:
        """Adds to a file; where files cannot grow, adds the next numbered file to a folder of that name."""


class LocalFolder:
    """A folder on this machine: a file is written under a hidden name (".name.part"), then renamed.

    It is made at the beginning, and not again if it vanishes.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._root.mkdir(parents=True, exist_ok=True)

    def names(self, subfolder: str) -> list[str]:
        """File names directly in a subfolder, hidden ones included; none if it does not exist."""
        folder = self._root / subfolder
        return os.listdir(folder) if folder.is_dir() else []

    def write(self, path: str, content: bytes) -> None:
        """Makes a new file appear, whole."""
        target = self._root / path
        if target.exists():
            raise _exists(str(target))
        self._make(target.parent)
        hidden = target.with_name(f".{target.name}.part")
        hidden.write_bytes(content)
        hidden.rename(target)

    def append(self, path: str, content: bytes) -> None:
        """Adds to a file."""
        target = self._root / path
        self._make(target.parent)
        with target.open("ab") as file:
            file.write(content)

    def _make(self, folder: Path) -> None:
        if not self._root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder is gone", str(self._root))
        folder.mkdir(parents=True, exist_ok=True)


class ObjectFolder:
    """A prefix in an object store; a put is atomic, and conditional on the object not being there."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._appended: dict[str, int] = {}

    def names(self, subfolder: str) -> list[str]:
        """Object names directly under a subfolder."""
        listing = obstore.list_with_delimiter(self._store, prefix=subfolder)
        return [entry["path"].rsplit("/", 1)[-1] for entry in listing["objects"]]

    def write(self, path: str, content: bytes) -> None:
        """Makes a new object appear."""
        try:
            obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            raise _exists(path) from error

    def append(self, path: str, content: bytes) -> None:
        """Adds `<path>/<number>`: objects cannot grow."""
        number = self._appended.get(path)
        if number is None:
            number = len(self.names(path))
        self.write(f"{path}/{number:08d}{Path(path).suffix}", content)
        self._appended[path] = number + 1


def open_folder(out: str, open_s3: OpenS3 | None = None) -> Folder:
    """The folder behind a path or URL.

    Args:
        out: a local path, or `s3://bucket/prefix` (`s3a://` too).
        open_s3: makes the store of such a URL; None: only folders can be written.

    Raises:
        BadTarget: if the URL is of another kind.
    """
    url = urlsplit(out)
    if url.scheme == "" or (os.name == "nt" and len(url.scheme) == 1):
        return LocalFolder(out)
    if url.scheme == "file":
        return LocalFolder(url.path)
    if url.scheme not in ("s3", "s3a") or not url.netloc or open_s3 is None:
        raise BadTarget(f"out: expected a folder or s3://bucket/prefix, got {out!r}; nothing was written")
    return ObjectFolder(open_s3(out))


def _exists(path: str) -> BadTarget:
    return BadTarget(
        f"file `{path}`: expected a new name, got one that exists; it was left as it is. "
        "Another simulation may be writing to the same folder: stop it, or choose another folder or seed."
    )
