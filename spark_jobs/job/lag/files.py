"""How far an ingest is behind the folder that it reads."""

from collections.abc import Mapping
from typing import cast

from spark_jobs.job.lag.base import Lag, SourceLag
from spark_jobs.lake.checkpoints.spark_log import file_entries, file_number
from spark_jobs.lake.inputs.folders import source_store
from spark_jobs.lake.store.folders import is_a_mark
from spark_jobs.spec import Files, Ingest


class FilesLag(SourceLag[Ingest]):
    """Counts the files that are newer than the newest one that has been planned."""

    def behind(self, sources: Mapping[str, str]) -> Lag | None:
        """The lag in files that Spark has not planned yet; `oldest` is when the oldest of them was modified.

        Args:
            sources: as `SourceLag.behind`; before the first batch every file is behind.

        Returns:
            None where the folder is a pattern, is not there, or is on another file system.
        """
        newest_ms = self._newest_file_ms(sources)
        store = source_store(self._lake, cast(Files, self._definition.source))
        if store is None:
            return None
        waiting = [
            item["last_modified"]
            for items in store.list()
            for item in items
            if not item["path"].rsplit("/", 1)[-1].startswith(("_", "."))
            and item["last_modified"].timestamp() * 1000 >= newest_ms + 1
            and not is_a_mark(store, item)
        ]
        return Lag(len(waiting), min(waiting, default=None))

    def _newest_file_ms(self, sources: Mapping[str, str]) -> int:
        """Modification time of the newest file that has been planned: Spark takes files in this order."""
        offset = next(iter(sources.values()), "")
        if not offset:
            return -1
        try:
            entries = file_entries(self._lake, self._checkpoint, file_number(offset))
        except FileNotFoundError:
            return -1
        return max((int(entry["timestamp"]) for entry in entries), default=-1)
