"""By what an event is late: exactly as Spark's operators decide it (design: docs/concepts/late-events.md).

Late events are judged in batch N by W(N-1), the watermark of the batch before. All of it is SQL text over the narrow
row of an event and a watermark, itself SQL: microseconds since 1970.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from spark_jobs.plan.columns import KEY, TIME
from spark_jobs.plan.windowing import Windowing

MISSED = "ARRAY<STRUCT<window_start: TIMESTAMP, window_end: TIMESTAMP, late_by_ms: BIGINT>>"


class LatenessRule(ABC):
    """By what an event is late."""

    in_windows: bool = False
    """Whether lateness belongs to an (event, window) pair, so that an event can be late for some windows only."""

    counts_groups: bool = False
    """Whether Spark counts what it drops after it was put into groups; else it counts events."""

    @property
    def counts_per_task(self) -> bool:
        """Whether Spark counts a group once for each task that drops some of it."""
        return False

    @abstractmethod
    def any_late(self, watermark_us: str) -> str:
        """Whether an event is late, for a window at least."""

    def all_late(self, watermark_us: str) -> str:
        """Whether an event is late for all of its windows."""
        return self.any_late(watermark_us)

    def pairs(self) -> str:
        """How many windows an event belongs to."""
        return "1L"

    def late_pairs(self, watermark_us: str) -> str:
        """How many windows a late event has missed."""
        return "1L"

    def beyond(self, cut_us: int) -> Self:
        """The rule of a stream that passes over every window that ends at or before a cut, which is such an end."""
        raise TypeError(f"{self.describe()}: no cut parts these events")

    @property
    def history(self) -> str | None:
        """Whether such a stream passes over an event; None where it passes over none."""
        return None

    @abstractmethod
    def late_by_ms(self, watermark_us: str) -> str:
        """How much longer the watermark would have had to wait for a late event."""

    def missed(self, watermark_us: str) -> str:
        """The windows that a late event has missed, as `MISSED`."""
        return f"CAST(array() AS {MISSED})"

    def groups(self, missed: str) -> str:
        """A hash of each group that a late event has missed.

        Args:
            missed: SQL of the windows that it has missed.
        """
        return f"array({KEY})"

    @abstractmethod
    def describe(self) -> str:
        """When an event is late, in a line."""


@dataclass(frozen=True)
class WindowEnd(LatenessRule):
    """A pair is late where its window's end is at or before the watermark.

    Attributes:
        windows: of the pairs.
        after_us: only windows that end after this cut count, itself the end of one; None: all do.
    """

    windows: Windowing
    after_us: int | None = None
    in_windows = True
    counts_groups = True

    @property
    def counts_per_task(self) -> bool:
        """Of windows that are merged after they were dropped."""
        return self.windows.merging

    def beyond(self, cut_us: int) -> Self:
        """Of windows that a cut parts."""
        return super().beyond(cut_us) if self.windows.why_no_cut else replace(self, after_us=cut_us)

    @property
    def history(self) -> str | None:
        """All of its windows end at or before the cut."""
        return None if self.after_us is None else f"({self.windows.last_end_us(TIME)} <= {self.after_us}L)"

    @property
    def _first_end_us(self) -> str:
        """End of the oldest of its windows that count."""
        first = self.windows.first_end_us(TIME)
        if self.after_us is None:
            return first
        return f"greatest({first}, {self.after_us}L + {self.windows.every_us})"

    def any_late(self, watermark_us: str) -> str:
        """The oldest of its windows has passed."""
        return f"({self._first_end_us} <= {watermark_us})"

    def all_late(self, watermark_us: str) -> str:
        """The newest of its windows has passed."""
        return f"({self.windows.last_end_us(TIME)} <= {watermark_us})"

    def pairs(self) -> str:
        """The number of windows that the event belongs to."""
        if self.after_us is None:
            return self.windows.count(TIME)
        newest = self.windows.last_end_us(TIME)
        return f"(({newest} - {self._first_end_us}) div {self.windows.every_us} + 1L)"

    def late_pairs(self, watermark_us: str) -> str:
        """Those of its windows that have passed."""
        if self.windows.per_event == 1:
            return "1L"
        past_us = f"({watermark_us} - {self._first_end_us})"
        return f"least({past_us} div {self.windows.every_us} + 1L, {self.pairs()})"

    def late_by_ms(self, watermark_us: str) -> str:
        """By its oldest window."""
        return f"({watermark_us} - {self._first_end_us}) div 1000L"

    def missed(self, watermark_us: str) -> str:
        """Each window that has passed."""
        ends = self.windows.missed_ends(self._first_end_us, TIME, watermark_us)
        start = self.windows.start_of("__end")
        return (
            f"transform({ends}, __end -> named_struct('window_start', timestamp_micros({start}), "
            f"'window_end', timestamp_micros(__end), 'late_by_ms', ({watermark_us} - __end) div 1000L))"
        )

    def groups(self, missed: str) -> str:
        """A hash of the key and each window that the event has missed."""
        return f"transform({missed}, __missed -> xxhash64(__missed.window_end, {KEY}))"

    def describe(self) -> str:
        """When an event is late, in a line."""
        return self.windows.lateness


@dataclass(frozen=True)
class EventTime(LatenessRule):
    """An event is late where its time is at or before the watermark."""

    def any_late(self, watermark_us: str) -> str:
        """Its time has passed."""
        return f"(unix_micros({TIME}) <= {watermark_us})"

    def late_by_ms(self, watermark_us: str) -> str:
        """How far the event's time lies before the watermark."""
        return f"({watermark_us} - unix_micros({TIME})) div 1000L"

    def describe(self) -> str:
        """When an event is late, in a line."""
        return "late where event time is at or before the watermark"


@dataclass(frozen=True)
class Never(LatenessRule):
    """Nothing waits for events, so none is late."""

    def any_late(self, watermark_us: str) -> str:
        """Never: nothing waits for events."""
        return "false"

    def late_by_ms(self, watermark_us: str) -> str:
        """Zero: no event is late."""
        return "0L"

    def describe(self) -> str:
        """When an event is late, in a line."""
        return "never late"
