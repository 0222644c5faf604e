"""How far an ingest is behind the result table that it reads."""

from collections.abc import Mapping
from typing import Any

from spark_jobs.job.lag.base import Lag, SourceLag
from spark_jobs.job.lag.tables import commits_after, committed_at
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.spark_log import next_version
from spark_jobs.spec import Ingest

_CHANGED = (
    ("numTargetRowsInserted", "num_target_rows_inserted"),
    ("numTargetRowsUpdated", "num_target_rows_updated"),
    ("numTargetRowsDeleted", "num_target_rows_deleted"),
)
"""What Spark's and `deltalake`'s merges say of themselves; rows that they only write again are no change."""

_ADDED = ("numOutputRows", "num_added_rows")
_DELETED = ("numDeletedRows", "num_deleted_rows")


class ResultsLag(SourceLag[Ingest]):
    """Counts the rows that the versions which have not been read have brought, changed or taken away."""

    def behind(self, sources: Mapping[str, str]) -> Lag | None:
        """The lag in rows of the result; `oldest` is when the first version that was not read was made.

        Args:
            sources: as `SourceLag.behind`.

        Returns:
            None where nothing has been read yet.
        """
        if not sources:
            return None
        rows, oldest = 0, []
        for source, offset in sources.items():
            table = table_read(source, self._definition)
            for commit in commits_after(self._lake, table, next_version(offset)) if table and offset else ():
                if changed := _rows(commit.get("operationMetrics", {})):
                    rows += changed
                    oldest.append(committed_at(commit))
        return Lag(rows, min(oldest, default=None))


def _rows(metrics: Mapping[str, Any]) -> int:
    """How many rows a commit has brought, changed or taken away, as it says itself."""

    def said(names: tuple[str, ...]) -> int:
        return next((int(metrics[name]) for name in names if metrics.get(name) is not None), 0)

    if any(name in metrics for names in _CHANGED for name in names):
        return sum(map(said, _CHANGED))
    return said(_DELETED) or said(_ADDED)
