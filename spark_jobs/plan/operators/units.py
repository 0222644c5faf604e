"""Of what a range of results is made: rows that lie at an instant, windows, or windows that merge."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from spark_jobs.plan.columns import WINDOW_END
from spark_jobs.plan.windowing import Windowing
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.names import first_of, in_spark


class Unit(ABC):
    """What is computed again as a whole."""

    @property
    def merging(self) -> bool:
        """Whether an event can make one row of several, so that no instant separates rows for certain."""
        return False

    @property
    @abstractmethod
    def why_no_cut(self) -> str | None:
        """Why the history cannot be computed in batch up to a cut, beyond which the stream goes on; None: it can be."""

    @abstractmethod
    def closed(self, placed_by: Sequence[str], watermark_ms: int) -> str:
        """Which rows of the result the stream does not change any more once its watermark is there; SQL.

        Args:
            placed_by: the columns of which the first with a value says where a row lies.
            watermark_ms: where the watermark is.
        """

    @abstractmethod
    def first_open_us(self, watermark_ms: int) -> int:
        """No row that is placed before this instant is open; microseconds since 1970."""

    def last_cut_upto(self, instant_us: int) -> int:
        """The newest instant, up to one, that parts the rows: each is made of events before it or lies beyond.

        Raises:
            TypeError: if nothing parts them, which `why_no_cut` says.
        """
        raise TypeError(self.why_no_cut)


@dataclass(frozen=True)
class Rows(Unit):
    """Rows that lie at an instant of event time, each made of few events.

    Attributes:
        touches: how far from a late event's own time the rows lie that it can change.
    """

    touches: timedelta = timedelta(0)

    @property
    def why_no_cut(self) -> str | None:
        """An event before the cut may belong to a row beyond it."""
        return "its state cannot be split at a point in time"

    def closed(self, placed_by: Sequence[str], watermark_ms: int) -> str:
        """Rows out of reach of what may come in time."""
        return f"({first_of(tuple(placed_by), in_spark)} < timestamp_micros({self.first_open_us(watermark_ms)}L))"

    def first_open_us(self, watermark_ms: int) -> int:
        """As far before the watermark as an event may reach."""
        touches_us = duration_ms(self.touches) * 1000
        return watermark_ms * 1000 - touches_us if touches_us else watermark_ms * 1000 + 1


@dataclass(frozen=True)
class FinalRows(Unit):
    """Rows of one event each that nothing changes once they are written."""

    @property
    def why_no_cut(self) -> str | None:
        """There is nothing that a batch would do better."""
        return "it remembers nothing, so that its stream goes through the history as fast as a batch"

    def closed(self, placed_by: Sequence[str], watermark_ms: int) -> str:
        """An event that was read is in the result."""
        return "true"

    def first_open_us(self, watermark_ms: int) -> int:
        """Beyond every instant: no row is open."""
        return 2**62


@dataclass(frozen=True)
class Windows(Unit):
    """Windows, which end.

    Attributes:
        windows: what they mean.
    """

    windows: Windowing

    @property
    def merging(self) -> bool:
        """An event between two sessions makes them one."""
        return self.windows.merging

    @property
    def why_no_cut(self) -> str | None:
        """Windows that no event makes end where others do."""
        return self.windows.why_no_cut

    def closed(self, placed_by: Sequence[str], watermark_ms: int) -> str:
        """Windows that the watermark has passed."""
        return f"({WINDOW_END} <= timestamp_micros({watermark_ms * 1000}L))"

    def first_open_us(self, watermark_ms: int) -> int:
        """The start of the oldest window that is open."""
        return self.windows.first_open_us(watermark_ms)

    def last_cut_upto(self, instant_us: int) -> int:
        """The end of a window."""
        return self.windows.last_end_upto(instant_us)


@dataclass(frozen=True)
class Totals(Unit):
    """Rows of all events of a key, which never end."""

    @property
    def why_no_cut(self) -> str | None:
        """It goes on for ever."""
        return "a running total has no part that is ever closed"

    def closed(self, placed_by: Sequence[str], watermark_ms: int) -> str:
        """False: no total is ever closed."""
        return "false"

    def first_open_us(self, watermark_ms: int) -> int:
        """Before every instant: all totals are open."""
        return -(2**62)
