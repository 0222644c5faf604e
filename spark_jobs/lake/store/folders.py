"""What lies below a folder of a lake, and its removal.

In a bucket Hadoop marks each folder that it makes, by an empty object whose key ends in a slash. `obstore` lists such a
mark as an object without the slash, which it then neither finds nor removes. And Spark takes a folder whose mark is
left for one that is there, and does not begin in it.
"""

import os
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from obstore.exceptions import NotFoundError
from obstore.store import ObjectStore

from spark_jobs.lake.location import Lake
from spark_jobs.lake.settings import S3Settings

if TYPE_CHECKING:
    from obstore import ObjectMeta

_AT_ONCE = 1_000


def objects_below(lake: Lake, folder: str) -> "list[ObjectMeta]":
    """The objects below a folder, without marks of folders.

    Args:
        lake: where.
        folder: relative to the lake.
    """
    found = list(lake.store.list(f"{folder}/").collect())
    # Most marks have objects below them: only of the others the store is asked.
    folders = {parent for item in found for parent in accumulate(item["path"].split("/")[:-1], "{}/{}".format)}
    return [item for item in found if item["size"] or not (item["path"] in folders or is_a_mark(lake.store, item))]


def objects_in(lake: Lake, folder: str) -> "list[ObjectMeta]":
    """The objects right in a folder, without the mark of it.

    Args:
        lake: where.
        folder: relative to the lake.
    """
    # Without its slash the mark of `sources/0` would be taken for an entry 0 of `sources`.
    found = lake.store.list_with_delimiter(f"{folder}/")["objects"]
    return [item for item in found if item["path"].startswith(f"{folder}/")]


def is_a_mark(store: ObjectStore, item: "ObjectMeta") -> bool:
    """Whether what was listed only marks a folder: it is empty, and not there under that name.

    Args:
        store: that has listed it.
        item: as listed.
    """
    if item["size"]:
        return False
    try:
        store.head(item["path"])
    except (NotFoundError, FileNotFoundError):
        return True
    return False


def remove_folder(lake: Lake, folder: str) -> int:
    """Removes all objects below a folder of a lake, and the marks of folders; how many objects."""
    paths = [item["path"] for item in objects_below(lake, folder)]
    remove_objects(lake, paths)
    remove_marks(lake, folder)
    return len(paths)


def remove_objects(lake: Lake, paths: Iterable[str]) -> None:
    """Removes objects of a lake, in their order."""
    left = list(paths)
    for start in range(0, len(left), _AT_ONCE):
        lake.store.delete(left[start : start + _AT_ONCE])


def remove_marks(lake: Lake, folder: str) -> None:
    """Removes what marks a folder, and those below it, in a bucket: nobody goes on to write there.

    Args:
        lake: where.
        folder: relative to the lake.
    """
    if not lake.on_s3 or not any(item["size"] == 0 for item in lake.store.list(f"{folder}/").collect()):
        return
    import boto3  # 0.2 s, only where something is left

    bucket, _, prefix = lake.path(folder).partition("://")[2].partition("/")
    settings = S3Settings.of_environment()
    client = boto3.client("s3", endpoint_url=settings.endpoint_url, region_name=settings.region)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", []):
            if entry["Key"].endswith("/") and entry["Size"] == 0:
                client.delete_object(Bucket=bucket, Key=entry["Key"])


def common_folder(paths: Iterable[str]) -> str:
    """The folder below which all of some objects lie."""
    return os.path.commonpath([path.rpartition("/")[0] for path in paths])
