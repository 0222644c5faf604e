"""How far a pipeline is behind the bronze tables that it reads."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from spark_jobs.job.lag.base import Lag, SourceLag
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.spark_log import next_version
from spark_jobs.lake.commit_records.history import commit_at
from spark_jobs.spec import Pipeline

_MOST_COMMITS = 500


class TablesLag(SourceLag[Pipeline]):
    """Counts the rows of the commits that have not been read."""

    def behind(self, sources: Mapping[str, str]) -> Lag | None:
        """The lag in rows of bronze tables; `oldest` is when the first commit that was not read was made.

        Args:
            sources: as `SourceLag.behind`.

        Returns:
            None where no table has been read yet.
        """
        if not sources:
            return None
        rows, oldest = 0, []
        for source, offset in sources.items():
            table = table_read(source, self._definition)
            for commit in commits_after(self._lake, table, next_version(offset)) if table and offset else ():
                metrics = commit.get("operationMetrics", {})
                rows += int(metrics.get("numOutputRows") or metrics.get("num_added_rows") or 0)
                oldest.append(committed_at(commit))
        return Lag(rows, min(oldest, default=None) if rows else None)


def committed_at(commit: Mapping[str, Any]) -> datetime:
    """When a version of a Delta table was committed."""
    return datetime.fromtimestamp(int(commit.get("timestamp", 0)) / 1000, UTC)


def commits_after(lake: Lake, table: str, version: int) -> Iterator[Mapping[str, Any]]:
    """The commits of a table from a version on, at most some hundreds: more is behind in any case."""
    for number in range(version, version + _MOST_COMMITS):
        commit = commit_at(lake, table, number)
        if commit is None:
            return
        yield commit
