"""Delta's version checksum of a new table, from which Spark knows the table's columns and settings without a job.

Delta's own writer leaves such a file beside each of its commits; commits without a JVM have none. Of the first version
it is worth its request: whoever starts with the table reads that one.
"""

import json
import logging
from contextlib import suppress
from typing import Any

from obstore.exceptions import AlreadyExistsError, BaseError

from spark_jobs.lake.commit_records.history import actions_at
from spark_jobs.lake.errors import TidemarkError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import create_object

log = logging.getLogger("tidemark.lake")


def write_checksum(lake: Lake, table: str) -> None:
    """Writes the checksum of a table's first version, which has no rows, unless it is there.

    Nobody needs it: where it cannot be written, Spark finds out by itself.

    Args:
        lake: where.
        table: such as `bronze.sales`.
    """
    try:
        checksum = _checksum(lake, table)
        if checksum is not None:
            path = f"{table.replace('.', '/', 1)}/_delta_log/{0:020d}.crc"
            with suppress(AlreadyExistsError):
                create_object(lake, path, json.dumps(checksum).encode())
    except (BaseError, OSError, TidemarkError) as error:
        log.info("%s: its checksum was not written: %s", table, first_line(error))


def _checksum(lake: Lake, table: str) -> dict[str, Any] | None:
    actions = {name: value for action in actions_at(lake, table, 0) or () for name, value in action.items()}
    if "add" in actions or not actions.keys() >= {"metaData", "protocol"}:
        return None
    return {
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": actions["metaData"],
        "protocol": actions["protocol"],
    }
