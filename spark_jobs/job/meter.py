"""Figures of one pipeline over the last ten minutes, from what its query has counted. No clock, no Spark."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

WINDOW = timedelta(minutes=10)


@dataclass(frozen=True)
class Counts:
    """What a query has counted since it started."""

    read: int = 0
    late: int = 0
    quarantined: int = 0
    batches: int = 0
    batch_seconds: float = 0.0


class Meter:
    """Takes the counts every few seconds and gives rates and shares."""

    def __init__(self) -> None:
        self._samples: deque[tuple[datetime, Counts]] = deque()
        self._long_since: datetime | None = None
        self._backlog: tuple[datetime, int] | None = None

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

    def press(self, *, batch_too_long: bool, rows_behind: int | None, now: datetime) -> datetime | None:
        """Since when, without a break, the pipeline has not kept up; None while it does.

        Args:
            batch_too_long: whether the newest batch took longer than the trigger's interval.
            rows_behind: what the source has and the pipeline has not read: it does not keep up while that never falls
                below what it was.
            now: the time.
        """
        self._long_since = (self._long_since or now) if batch_too_long else None
        if not rows_behind:
            self._backlog = None
        elif self._backlog is None or rows_behind < self._backlog[1]:
            self._backlog = now, rows_behind
        return min(filter(None, (self._long_since, self._backlog and self._backlog[0])), default=None)


def checkpoint_ms(progress: Mapping[str, Any]) -> int:
    """What Spark spent on its checkpoint in a batch: its two logs, and the commit of state."""
    durations = progress.get("durationMs", {})
    logs = sum(int(durations.get(name, 0)) for name in ("walCommit", "commitOffsets", "commitBatch"))
    return logs + sum(int(operator.get("commitTimeMs", 0)) for operator in progress.get("stateOperators", ()))


def state_bytes(progress: Mapping[str, Any]) -> int | None:
    """Memory that Spark reports for its state; None where there is none."""
    operators = progress.get("stateOperators", ())
    return sum(int(operator.get("memoryUsedBytes", 0)) for operator in operators) if operators else None
