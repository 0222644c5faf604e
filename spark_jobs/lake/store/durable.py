"""Small objects that are created once, and files that outlive a loss of power.

Stores of objects keep what they have acknowledged. On a folder a file that was written, closed and linked may still be
empty after a loss of power: its content and its name are forced to the disk here before anybody builds on them.
"""

import os
import uuid
from pathlib import Path

from obstore.exceptions import AlreadyExistsError

from spark_jobs.lake.location import Lake


def create_object(lake: Lake, path: str, content: bytes) -> None:
    """Creates an object of the lake; of several writers exactly one does.

    Args:
        lake: where.
        path: relative to the lake.
        content: of the object.

    Raises:
        AlreadyExistsError: if there is one of this name.
    """
    if lake.on_s3:
        lake.store.put(path, content, mode="create")
        return
    lake.store  # noqa: B018 (refuses a lake whose folder is gone, which would be made again)
    final = Path(lake.uri) / path
    final.parent.mkdir(parents=True, exist_ok=True)
    # So named it stands in no listing of objects, also where its writer died.
    temporary = final.with_name(f"{final.name}#{uuid.uuid4().int}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, final)
        except FileExistsError:
            raise AlreadyExistsError(f"{final} exists") from None
    finally:
        temporary.unlink(missing_ok=True)
    force_folder(final.parent)


def replace_object(lake: Lake, path: str, content: bytes) -> None:
    """Puts other content into an object of the lake: whoever reads it has the one or the other.

    Args:
        lake: where.
        path: relative to the lake.
        content: of the object.
    """
    if lake.on_s3:
        lake.store.put(path, content)
        return
    final = Path(lake.uri) / path
    temporary = final.with_name(f"{final.name}#{uuid.uuid4().int}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Hadoop's checksum, where there is one, is of the content before.
        final.with_name(f".{final.name}.crc").unlink(missing_ok=True)
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)
    force_folder(final.parent)


def force_file(path: Path) -> None:
    """Waits until the content of a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def force_folder(path: Path) -> None:
    """Waits until the names of the files of a folder are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
