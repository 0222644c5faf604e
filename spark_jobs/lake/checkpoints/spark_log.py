"""What Spark writes into a checkpoint: the one place that knows its files, and the offsets of its sources.

`metadata` names the query, `offsets/<N>` is written before batch N runs, `commits/<N>` when it has ended,
`sources/0/<M>` lists the files that the file source has taken.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import obstore
from obstore.exceptions import NotFoundError

from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.folders import objects_in

_FILE_LOG = re.compile(r"(\d+)(\.compact)?")

Place = tuple[int, int]
"""A place in the log of a Delta table: all versions before the first number, of that one the data files up to the
second."""


def query_id(lake: Lake, checkpoint: str) -> str | None:
    """The id that Spark gave the query of a checkpoint; None before its first start."""
    content = _read(lake, f"{checkpoint}/metadata")
    return None if content is None else str(json.loads(content)["id"])


def newest_batch(lake: Lake, checkpoint: str, log: Literal["offsets", "commits"]) -> int | None:
    """The newest batch that Spark has planned (`offsets`) or finished (`commits`); None: none.

    What a planner that died left half written is no batch.
    """
    entries = objects_in(lake, f"{checkpoint}/{log}")
    names = (entry["path"].rsplit("/", 1)[-1] for entry in entries)
    return max((int(name) for name in names if name.isdigit()), default=None)


def file_number(offset: str) -> int:
    """The newest entry in the log of the file source, from its offset; -1: none."""
    return int(json.loads(offset)["logOffset"]) if offset else -1


def file_entries(lake: Lake, checkpoint: str, number: int) -> list[dict[str, Any]]:
    """An entry in the log of the file source: `path`, `timestamp` and `batchId` of each file; compacted, the earlier
    ones, too.

    Raises:
        FileNotFoundError: if there is none.
    """
    for name in (str(number), f"{number}.compact"):
        content = _read(lake, f"{checkpoint}/sources/0/{name}")
        if content is not None:
            # The first line is the version of the log.
            return [json.loads(line) for line in content.decode().splitlines()[1:]]
    raise FileNotFoundError(f"{lake.path(checkpoint)}/sources/0/{number}")


def file_logs(lake: Lake, checkpoint: str) -> list[str]:
    """The entries in the log of the file source, relative to the lake, the oldest first."""
    entries = objects_in(lake, f"{checkpoint}/sources/0")
    found = ((_FILE_LOG.fullmatch(entry["path"].rsplit("/", 1)[-1]), entry["path"]) for entry in entries)
    # Of one number the compacted one says more.
    return [path for _, _, path in sorted((int(name[1]), name[0], path) for name, path in found if name)]


def file_log(lake: Lake, path: str) -> tuple[str, list[dict[str, Any]]]:
    """The version line of such an entry, and what it says of each file.

    Args:
        lake: where.
        path: as `file_logs` gives it.
    """
    head, *lines = bytes(lake.store.get(path).bytes()).decode().splitlines()
    return head, [json.loads(line) for line in lines if line]


def tables_read(lake: Lake, checkpoint: str) -> list[str]:
    """The ids of the Delta tables that the newest planned batch of a checkpoint reads."""
    offsets = [json.loads(offset) for offset in planned_offsets(lake, checkpoint)]
    return [str(offset["reservoirId"]) for offset in offsets if "reservoirId" in offset]


def planned_offsets(lake: Lake, checkpoint: str) -> list[str]:
    """Up to where the newest planned batch of a checkpoint reads each source; without those that have no place yet."""
    newest = newest_batch(lake, checkpoint, "offsets")
    content = _read(lake, f"{checkpoint}/offsets/{newest}") if newest is not None else None
    # The first line is the version of the log, the second is of the batch; one for each source follows.
    lines = content.decode().splitlines()[2:] if content is not None else []
    return [line for line in lines if line.startswith("{")]


def place(offset: str) -> Place:
    """Where a stream is in the log of a Delta table."""
    found = json.loads(offset)
    return int(found["reservoirVersion"]), int(found.get("index", -1))


def in_snapshot(offset: str) -> bool:
    """Whether a stream still reads what the table held when it began: its place is then one among these files."""
    return bool(json.loads(offset).get("isStartingVersion", False))


def next_version(offset: str) -> int:
    """The first version of a Delta table that a stream has not read to its end."""
    version, index = place(offset)
    # Between two versions Spark notes the next one with the index before its first file.
    return version + (1 if index >= 0 else 0)


def kafka_positions(sources: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Topic, partition and the next message, from the offsets of a batch."""
    for offset in filter(None, sources.values()):
        for topic, partitions in json.loads(offset).items():
            for partition, position in partitions.items():
                yield topic, int(partition), int(position)


def _read(lake: Lake, path: str) -> bytes | None:
    try:
        return bytes(obstore.get(lake.store, path).bytes())
    except (NotFoundError, FileNotFoundError):
        return None
