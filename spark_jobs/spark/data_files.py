"""Data files of a Delta table, written without a commit."""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from pyspark.sql import DataFrame

from spark_jobs.lake import Lake
from spark_jobs.lake.commit_records.history import actions_at
from spark_jobs.lake.tables.appends import remove_files
from spark_jobs.spark.java import java_class

_ROWS_PER_FILE = 1_000_000
_ROWS_PER_TASK = 100_000
"""With fewer a file is too small for those who read it, however many processors there are to write it."""


def files_for(rows: DataFrame, count: int) -> int:
    """In how many files rows are written.

    Args:
        rows: that are written.
        count: how many they are.
    """
    cores = rows.sparkSession.sparkContext.defaultParallelism
    return max(1, -(-count // _ROWS_PER_FILE), min(cores, count // _ROWS_PER_TASK))


class DataFiles:
    """Writes data files of one table, again and again.

    Delta asks the table's log for columns and settings, which takes it a third of a second after each commit. They are
    taken once here, and again after a commit that changes them.

    Args:
        lake: where.
        table: such as `gold.valid_orders`.
    """

    def __init__(self, lake: Lake, table: str) -> None:
        self._lake, self._table = lake, table
        self._snapshot: Any = None
        self._version = -1
        """Up to which the log has been looked through."""

    def write(self, rows: DataFrame) -> list[dict[str, Any]]:
        """Writes rows to files in the job that computes them; no reader sees them before a commit names them.

        Delta's own writer: files get their final names at once, with statistics of the columns that the table asks for.

        Args:
            rows: with the columns of the table and of their types.

        Returns:
            Of each file what a commit says of it: the content of its `add` action.
        """
        session = rows.sparkSession
        path = self._lake.table_path(self._table)
        log = java_class(session, "org.apache.spark.sql.delta.DeltaLog").forTable(session._jsparkSession, path)
        if self._snapshot is None or self._has_changed():
            started = log.startTransaction()
            self._snapshot = started.snapshot()
            self._version = int(self._snapshot.version())
        some = java_class(session, "scala.Option").apply
        written = log.startTransaction(some(None), some(self._snapshot)).writeFiles(rows._jdf).iterator()
        actions = []
        while written.hasNext():
            actions.append(json.loads(written.next().json()))
        return [action["add"] for action in actions if "add" in action]

    def remove(self, files: Sequence[Mapping[str, Any]]) -> None:
        """Removes files that no commit names and none will.

        Args:
            files: as `write` returns them.
        """
        remove_files(self._lake, self._table, files)

    def _has_changed(self) -> bool:
        """Whether a commit since the last look has given the table other columns or settings."""
        for version in count(self._version + 1):
            actions = actions_at(self._lake, self._table, version)
            if actions is None:
                return False
            if any("metaData" in action or "protocol" in action for action in actions):
                return True
            self._version = version
        return False
