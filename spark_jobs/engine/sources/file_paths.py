"""Paths of files as Spark and this machine write them, and symbolic links among them."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

# Spark passes over files and folders whose names begin so.
_HIDDEN = ("_", ".")


def plain(path: str) -> str:
    """A path of the log, which is written as a URL, as readers take it."""
    return unquote(path).replace("file:///", "file:/", 1)


def local(path: str) -> str:
    """A path of a file of this machine as its programs take it."""
    return "/" + path.removeprefix("file:").lstrip("/")


def link_that_comes_back(root: str) -> tuple[str, str] | None:
    """A symbolic link below a folder that leads back to a folder which it lies in, and that folder; None: none does.

    Spark follows it round and round; with two of them its list of files never ends.

    Args:
        root: the folder that is read; a pattern, or a folder of another store, has no links that are known here.
    """

    def search(folder: str, above: tuple[str, ...]) -> tuple[str, str] | None:
        real = os.path.realpath(folder)
        if real in above:
            return folder, real
        with os.scandir(folder) as entries:
            below = [entry.path for entry in entries if not entry.name.startswith(_HIDDEN) and entry.is_dir()]
        return next((found for each in below if (found := search(each, (*above, real)))), None)

    try:
        return search(local(root), ()) if is_folder(root) else None
    except OSError:
        return None  # what cannot be listed is for Spark to tell


def is_folder(root: str) -> bool:
    """Whether it is a folder of this machine, and no pattern."""
    return not (("://" in root and not root.startswith("file:")) or any(sign in root for sign in "*?[{"))


def links_to_others(paths: Sequence[str], root: str) -> frozenset[str]:
    """The paths that lead to files of the same folder by another name, through a symbolic link.

    Spark follows links. One that leads back to a folder above it, made while a stream runs, would bring each file forty
    times.

    Args:
        paths: of a batch.
        root: the folder that is read, as `link_that_comes_back` takes it.
    """
    if not is_folder(root):
        return frozenset()
    top = Path(local(root))
    real_top = os.path.realpath(top)
    found = set()
    for path in paths:
        # As it would be without a link below the folder itself.
        plain = os.path.join(real_top, os.path.relpath(local(path), top))
        real = os.path.realpath(plain)
        # By a name that is hidden from Spark the file is not read: then this one is its name.
        parts = os.path.relpath(real, real_top).split(os.sep)
        inside = real.startswith(real_top + os.sep) and not any(part.startswith(_HIDDEN) for part in parts)
        if real != plain and (inside or _comes_back(plain, real_top)):
            found.add(path)
    return frozenset(found)


def _comes_back(path: str, top: str) -> bool:
    """Whether a path goes through a link to a folder that it has been in."""
    seen, place = {top}, top
    for part in os.path.relpath(os.path.dirname(path), top).split(os.sep):
        place = os.path.realpath(os.path.join(place, part))
        if place in seen and part != ".":
            return True
        seen.add(place)
    return False
