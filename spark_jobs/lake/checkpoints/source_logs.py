"""What is wrong with the log of Spark's file source: which files were taken, entry by entry."""

import json
from collections.abc import Iterator
from urllib.parse import unquote

from spark_jobs.lake.checkpoints.changelogs import DamagedFileError
from spark_jobs.lake.checkpoints.contents import Checkpoint
from spark_jobs.spec import Definition, Ingest

_FOLDER, _COMPACT = "sources/0", ".compact"


def faults_of_source_log(checkpoint: Checkpoint, definition: Definition, offset: str) -> Iterator[tuple[str, str]]:
    """Path and what is wrong, of each entry that the next start reads; none where the source keeps no such log.

    Args:
        checkpoint: whose.
        definition: of the pipeline.
        offset: up to where the newest batch reads.
    """
    elsewhere: dict[str, str] = {}
    entries = list(_entries(checkpoint, offset))
    for path, number in entries:
        try:
            paths = _files(checkpoint.read(path), number, path.endswith(_COMPACT))
        except DamagedFileError as error:
            yield path, str(error)
            continue
        folder = _folder(checkpoint, definition)
        if folder is not None and (other := next((each for each in paths if not each.startswith(folder)), None)):
            elsewhere[path] = f"names {other}, which is not in {folder}: it is of another query or epoch"
    # Where all are elsewhere the lake has moved, which a start finds, too.
    if len(elsewhere) < len(entries):
        yield from elsewhere.items()


def files_taken(checkpoint: Checkpoint, offset: str) -> int | None:
    """How many files a source has taken up to an offset; None: the log does not tell."""
    try:
        return sum(
            len(_files(checkpoint.read(path), number, path.endswith(_COMPACT)))
            for path, number in _entries(checkpoint, offset)
        )
    except DamagedFileError:
        return None


def taken_after(checkpoint: Checkpoint, batch: int) -> list[str]:
    """The files that a source has taken after a batch; none where the log does not tell."""
    planned = checkpoint.batches("offsets")
    if batch not in planned:
        return []
    try:
        then, now = (checkpoint.planned(each).offsets[0] for each in (batch, planned[-1]))
        if "logOffset" not in now:
            return []
        before = int(json.loads(then)["logOffset"]) if then else -1
        found: dict[str, None] = {}
        for path, _ in _entries(checkpoint, now):
            for line in (checkpoint.read(path) or b"").decode().splitlines()[1:]:
                entry = json.loads(line)
                if int(entry["batchId"]) > before:
                    found[_plain(str(entry["path"]))] = None
    except (DamagedFileError, ValueError, KeyError, TypeError):
        return []
    return list(found)


def _entries(checkpoint: Checkpoint, offset: str) -> Iterator[tuple[str, int]]:
    """Path and number of each entry that counts: a compacted one repeats those before."""
    if "logOffset" not in offset:
        return
    newest = int(json.loads(offset)["logOffset"])
    names = (path.removeprefix(f"{_FOLDER}/") for path in checkpoint.files if path.startswith(f"{_FOLDER}/"))
    compacted = {int(name.removesuffix(_COMPACT)) for name in names if name.endswith(_COMPACT)}
    begin = max((number for number in compacted if number <= newest), default=0)
    for number in range(begin, newest + 1):
        yield f"{_FOLDER}/{number}{_COMPACT if number in compacted else ''}", number


def _files(content: bytes | None, number: int, compacted: bool) -> list[str]:
    """The files that an entry names.

    Raises:
        DamagedFileError: if it is missing, not whole, or another one.
    """
    if content is None:
        raise DamagedFileError("is missing")
    if not content:
        raise DamagedFileError("is empty")
    try:
        head, *lines = content.decode().splitlines()
        entries = [json.loads(line) for line in lines]
        batches = [int(entry["batchId"]) for entry in entries]
        paths = [_plain(str(entry["path"])) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError("is cut off, or is no entry of the log of files") from error
    if head != "v1" or not entries:
        raise DamagedFileError("is cut off, or is no entry of the log of files")
    if max(batches) != number or (not compacted and min(batches) != number):
        raise DamagedFileError(
            f"is entry {max(batches)} under the name of entry {number}: it is of another query or epoch"
        )
    return paths


def _folder(checkpoint: Checkpoint, definition: Definition) -> str | None:
    """Where the input lies; None: under a pattern, or it is not known."""
    if not isinstance(definition, Ingest) or definition.source.folder is None:
        return None
    return _plain(checkpoint.lake.source_path(definition.source.folder)).rstrip("/") + "/"


def _plain(path: str) -> str:
    text = unquote(path)
    return "/" + text.removeprefix("file:").lstrip("/") if text.startswith("file:") else text
