"""The folders that ingests read, without a JVM."""

from collections.abc import Iterable
from pathlib import Path

import obstore
from obstore.exceptions import NotFoundError
from obstore.store import LocalStore, ObjectStore

from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.s3 import s3_store
from spark_jobs.spec import Files


def source_store(lake: Lake, source: Files) -> ObjectStore | None:
    """The folder of an ingest's input; None where it is a pattern, is not there, or is on another file system."""
    return folder_store(lake, source.path)


def folder_store(lake: Lake, folder: str) -> ObjectStore | None:
    """The same of a folder as an ingest names it."""
    path = lake.source_path(folder)
    if any(sign in path for sign in "*?[{"):
        return None
    if path.startswith("s3a://"):
        return s3_store(path)
    place = Path(path.removeprefix("file://"))
    return LocalStore(place) if place.is_dir() else None


def is_hidden(path: str) -> bool:
    """Whether Spark ignores a file: one that is still written, or no data."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def files_gone(paths: Iterable[str]) -> list[str]:
    """Those of some files that are not there any more.

    Args:
        paths: absolute, of this machine or `s3a://bucket/…`.
    """
    return [path for path in paths if not _is_there(path)]


def _is_there(path: str) -> bool:
    if not path.startswith("s3a://"):
        return Path(path).exists()
    folder, _, name = path.rpartition("/")
    try:
        obstore.head(s3_store(folder), name)
    except (NotFoundError, FileNotFoundError):
        return False
    return True
