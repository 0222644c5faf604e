"""Figures of one pipeline over the last ten minutes, from what its query has counted. No clock, no Spark."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

WINDOW = timedelta(minutes=10)

# A backlog is judged by its median over so long. After a step up the median has followed within half of it: before
# `Alerts.backpressure_after`, so that a step alone is told to nobody.
_TREND = timedelta(minutes=5)


@dataclass(frozen=True)
class Counts:
    """What a query has counted since it started."""

    read: int = 0
    late: int = 0
    quarantined: int = 0
    batches: int = 0
    batch_seconds: float = 0.0


class Meter:
    """Takes the counts every few seconds and gives rates, shares and pressure.

    Args:
        interval: the trigger's; zero: batch follows batch.
    """

    def __init__(self, interval: timedelta = timedelta(0)) -> None:
        self._interval = interval
        self._samples: deque[tuple[datetime, Counts]] = deque()
        self._backlog: deque[tuple[datetime, int]] = deque()
        self._long_since: datetime | None = None
        self._held: tuple[int, datetime] | None = None
        self._grows_since: datetime | None = None

    def take(self, counts: Counts, *, now: datetime) -> None:
        """Adds what has been counted so far."""
        if self._samples and counts.batches < self._samples[-1][1].batches:
            self._samples.clear()  # the query has been started again
        self._samples.append((now, counts))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW:
            self._samples.popleft()

    @property
    def recent(self) -> Counts:
        """What was counted within the window."""
        if not self._samples:
            return Counts()
        first, last = self._samples[0][1], self._samples[-1][1]
        # Before the first sample nothing had been counted.
        start = first if len(self._samples) > 1 and self._covers_window() else Counts()
        return Counts(
            last.read - start.read,
            last.late - start.late,
            last.quarantined - start.quarantined,
            last.batches - start.batches,
            last.batch_seconds - start.batch_seconds,
        )

    def _covers_window(self) -> bool:
        return self._samples[-1][0] - self._samples[0][0] >= WINDOW

    @property
    def input_rows_per_s(self) -> float | None:
        """Events that were read, a second of the clock."""
        if len(self._samples) < 2:
            return None
        seconds = (self._samples[-1][0] - self._samples[0][0]).total_seconds()
        read = self._samples[-1][1].read - self._samples[0][1].read
        return read / seconds if seconds > 0 else None

    @property
    def processed_rows_per_s(self) -> float | None:
        """Events a second of the time that batches took."""
        recent = self.recent
        return recent.read / recent.batch_seconds if recent.batch_seconds else None

    def press(
        self, *, batch_seconds: float | None, runs: bool, rows_behind: int | None, now: datetime
    ) -> datetime | None:
        """Since when, without a break, the pipeline has not kept up; None while it does. Call it after `take`.

        It does not keep up while its batches take longer than the trigger's interval, while events wait for a batch
        that does not end, and while its backlog grows. The last two may take one interval: that much waits in any case.

        Args:
            batch_seconds: what the newest batch took; None before the first.
            runs: whether a batch runs.
            rows_behind: what the source has and the pipeline has not read; None: not known.
            now: the time.
        """
        batches = self._samples[-1][1].batches if self._samples else 0
        too_long = self._interval and batch_seconds is not None and batch_seconds > self._interval.total_seconds()
        # Once it has read all there is, it has caught up, however long the newest batch took.
        self._long_since = (self._long_since or now) if too_long and (runs or rows_behind) else None
        if not (runs and rows_behind):
            self._held = None
        elif self._held is None or self._held[0] != batches:
            self._held = batches, now
        self._note_backlog(rows_behind, now)
        waits_since = (self._held and self._held[1], self._grows_since)
        allowed = (since + self._interval for since in waits_since if since is not None)
        return min(filter(None, (self._long_since, *(since for since in allowed if since <= now))), default=None)

    def _note_backlog(self, rows: int | None, now: datetime) -> None:
        """A backlog grows while it is above its own median at each look.

        One that goes up and down without a trend is below it at every other look, and one that is worked off at most.
        """
        if rows is None:
            self._backlog.clear()
            self._grows_since = None
            return
        self._backlog.append((now, rows))
        while now - self._backlog[0][0] > max(_TREND, 2 * self._interval):
            self._backlog.popleft()
        grows = rows > median(rows for _, rows in self._backlog)
        self._grows_since = (self._grows_since or now) if grows else None


def checkpoint_ms(progress: Mapping[str, Any]) -> int:
    """What Spark spent on its checkpoint in a batch: its two logs, and the commit of state."""
    durations = progress.get("durationMs", {})
    logs = sum(int(durations.get(name, 0)) for name in ("walCommit", "commitOffsets", "commitBatch"))
    return logs + sum(int(operator.get("commitTimeMs", 0)) for operator in progress.get("stateOperators", ()))


def state_bytes(progress: Mapping[str, Any]) -> int | None:
    """Memory that Spark reports for its state; None where there is none."""
    operators = progress.get("stateOperators", ())
    return sum(int(operator.get("memoryUsedBytes", 0)) for operator in operators) if operators else None
