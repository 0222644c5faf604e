"""Data files of a Delta table, written without a commit."""

import json
from typing import Any

from pyspark.sql import DataFrame


def write_data_files(rows: DataFrame, path: str) -> list[dict[str, Any]]:
    """Writes rows to files of a table in the job that computes them; no reader sees them before a commit names them.

    Delta's own writer: files get their final names at once, with statistics of the columns that the table asks for.

    Args:
        rows: with the columns of the table, in its order and of its types.
        path: of the table.

    Returns:
        Of each file what a commit says of it: the content of its `add` action.
    """
    session = rows.sparkSession
    gateway: Any = session._jvm
    log = gateway.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
    written = log.startTransaction().writeFiles(rows._jdf).iterator()
    actions = []
    while written.hasNext():
        actions.append(json.loads(written.next().json()))
    return [action["add"] for action in actions if "add" in action]
