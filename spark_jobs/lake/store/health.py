"""What is visibly wrong with a lake's folder, where a library only says that a file cannot be written; or its store."""

import os
import shutil
from pathlib import Path

from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.lake.location import Lake

_FULL_BYTES = 64 * 1024
# What a store answers that has no room: MinIO to a whole object, and to the parts of one; MinIO's and Ceph's quotas.
_FULL_STORE = (
    "XMinioStorageFull",
    "507 Insufficient Storage",
    "no space left on device",
    "XMinioAdminBucketQuotaExceeded",
    "QuotaExceeded",
)


def refuse_vanished(lake: Lake) -> None:
    """Refuses to write into a folder lake that is gone: the store would make the folder again, and nobody would notice.

    Raises:
        LakeUnavailableError: if the folder is not there.
    """
    if not lake.on_s3 and not Path(lake.uri).is_dir():
        raise LakeUnavailableError(
            f"lake {lake.uri}: its folder is not there. Nothing was written. Bring it back, or start a supervisor on a "
            "new one."
        )


def trouble(lake: Lake) -> str | None:
    """Why the folder of a lake cannot be written, as half a sentence; None if nothing is seen, or on S3."""
    if lake.on_s3:
        return None
    folder = Path(lake.uri)
    if not folder.is_dir():
        return "the folder is gone"
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it may not be written"
    if shutil.disk_usage(folder).free < _FULL_BYTES:
        return "no space is left on its disk"
    return None


def store_is_full(said: str) -> bool:
    """Whether an error tells of a store that has no room left.

    Args:
        said: by a library that has asked it to write.
    """
    return any(mark in said for mark in _FULL_STORE)
