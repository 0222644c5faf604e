"""The figures of one running pipeline, gathered beside its batches."""

import itertools
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from spark_jobs.control.supervision.pulse import Figures
from spark_jobs.engine.driver import AnyQuery
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.job.lag import LagMeter
from spark_jobs.job.lag.base import Lag
from spark_jobs.job.lag.tables import commits_after, committed_at
from spark_jobs.job.meter import Counts, Meter, checkpoint_ms, state_bytes
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.spark_log import next_version
from spark_jobs.lake.commit_records.history import newest_ledger_rows
from spark_jobs.lake.errors import MissingTableError

_OF_STATE = ("state_rows", "left_state_rows", "right_state_rows")
_SIZE_EVERY_S = 60.0


class Gauges:
    """What is measured of one start of a pipeline.

    Args:
        lake: where.
        query: that runs.
    """

    def __init__(self, lake: Lake, query: AnyQuery) -> None:
        self._lake = lake
        self._query = query
        self._meter = Meter(query.definition.trigger_interval)
        self._lag = LagMeter(lake, query.definition, query.epoch.folder)
        self._measured: tuple[int, int | None] = (-1, None)
        self._before: LedgerEntry | None = None
        self._progress: Mapping[str, Any] = {}
        self._size: tuple[float, int | None] = (0.0, None)

    def read(self) -> Figures:
        """Measures now; looks at the source only every few seconds, and takes as long as that needs to answer.

        Only one thread may call this and `close`.
        """
        query, now = self._query, datetime.now(UTC)
        counts = Counts(
            query.total_read,
            query.total_late,
            query.total_quarantined,
            query.total_batches,
            query.total_batch_seconds,
        )
        self._meter.take(counts, now=now)
        row, batch_id = query.latest, query.latest_batch_id
        # Until the first batch of this start, what the newest one before it has left.
        known_id, known = (batch_id, row) if row else self._left
        progress = self._progress_of_batch()
        lag = self._lag.measure(known.sources) if known else None
        batch_seconds = query.batch_seconds if row else None
        recent = self._meter.recent
        return Figures(
            batch_id=known_id,
            epoch=query.epoch.number,
            input_rows_per_s=self._meter.input_rows_per_s,
            processed_rows_per_s=self._meter.processed_rows_per_s,
            batch_ms=round(batch_seconds * 1000) if batch_seconds is not None else None,
            phases_ms={name: int(ms) for name, ms in progress.get("durationMs", {}).items()},
            latency_ms=self._latency_ms(row, batch_id),
            watermark_ms=known.watermark_ms + known.grace_ms if known and known.watermark_ms else None,
            **{name: known.terms.get(name) if known else None for name in _OF_STATE},
            state_bytes=state_bytes(progress),
            checkpoint_ms=checkpoint_ms(progress) if progress else None,
            checkpoint_bytes=self._checkpoint_bytes(),
            read=counts.read,
            late=counts.late,
            quarantined=counts.quarantined,
            batches=counts.batches,
            recent_read=recent.read,
            recent_late=recent.late,
            recent_quarantined=recent.quarantined,
            rows_behind=lag.rows if lag else None,
            behind_ms=_age_ms(lag, now),
            backpressure_since=self._meter.press(
                batch_seconds=batch_seconds,
                runs=not query.waits,
                rows_behind=lag.rows if lag else None,
                now=now,
            ),
        )

    def _progress_of_batch(self) -> Mapping[str, Any]:
        """Spark's report of the newest batch: it also reports that there was nothing to read, with other durations."""
        newest = self._query.query.lastProgress
        if newest and "addBatch" in newest.get("durationMs", {}):
            self._progress = newest
        return self._progress

    @cached_property
    def _left(self) -> tuple[int | None, LedgerEntry | None]:
        """The newest batch that was committed before this start, and its ledger row; nothing where there is none."""
        definition = self._query.definition
        try:
            rows = newest_ledger_rows(self._lake, definition.sink.table, definition.name, self._query.epoch.number, 1)
        except MissingTableError:
            return None, None
        return rows[-1] if rows else (None, None)

    def close(self) -> None:
        """Ends what it holds open."""
        self._lag.close()

    def _latency_ms(self, row: LedgerEntry | None, batch_id: int) -> int | None:
        """From the commit of the oldest event in bronze to the end of the newest batch, which has just been seen."""
        if row is None or not isinstance(self._query, PipelineQuery):
            return None
        if self._measured[0] != batch_id:
            before, self._before = self._before, row
            # Only between two batches that were both seen it is known where the newest one began.
            latency = self._latency_between(before, row) if before and self._measured[0] == batch_id - 1 else None
            self._measured = batch_id, latency if latency is not None else self._measured[1]
        return self._measured[1]

    def _latency_between(self, before: LedgerEntry, row: LedgerEntry) -> int | None:
        ended_ms = row.started_ms + round(self._query.batch_seconds * 1000)
        begins = []
        for source, offset in before.sources.items():
            table = table_read(source, self._query.definition) if isinstance(self._query, PipelineQuery) else None
            if table and offset and offset != row.sources.get(source):
                begins += [
                    committed_at(c) for c in itertools.islice(commits_after(self._lake, table, next_version(offset)), 1)
                ]
        return max(0, ended_ms - round(min(begins).timestamp() * 1000)) if begins else None

    def _checkpoint_bytes(self) -> int | None:
        now = time.monotonic()
        if self._size[1] is None or now - self._size[0] > _SIZE_EVERY_S:
            items = self._lake.store.list(f"{self._query.epoch.folder}/").collect()
            self._size = now, sum(int(item["size"]) for item in items)
        return self._size[1]


def _age_ms(lag: Lag | None, now: datetime) -> int | None:
    if lag is None:
        return None
    return max(0, round((now - lag.oldest).total_seconds() * 1000)) if lag.oldest else 0 if not lag.rows else None
