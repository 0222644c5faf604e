"""What a kind of window means: which windows an event belongs to, when they end, and what can be cut between them.

Instants are whole milliseconds or microseconds since 1970, computed by arithmetic and not by Spark's `window()`, so
that the late split costs one comparison an event; `tests/spark/test_grid.py` holds both against each other. Those of a
calendar are computed by Spark's functions for time zones.

They are SQL texts over the name of the event-time column: made again for each batch, a text costs one call to the JVM
and the same expression put together from columns costs dozens.
"""

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import ClassVar


class Windowing(ABC):
    """The windows of one `Aggregate`."""

    merging: ClassVar[bool]
    """Whether an event can merge windows that were several, so that no instant separates them for certain."""

    state_operators: ClassVar[tuple[str, ...]]
    """What Spark calls the operators that keep them, in a query's progress."""

    why_no_cut: ClassVar[str | None]
    """Why no instant parts closed windows from those that come; None: the end of a window does."""

    @abstractmethod
    def first_end_us(self, time: str) -> str:
        """End of the oldest window that holds the event, in microseconds: if any of them is late, this one is."""

    @abstractmethod
    def last_end_us(self, time: str) -> str:
        """End of the newest window that holds the event, in microseconds: if this one is late, all of them are."""

    @abstractmethod
    def count(self, time: str) -> str:
        """How many windows the event belongs to."""

    @property
    @abstractmethod
    def per_event(self) -> int | None:
        """How many windows each event belongs to; None: it depends on the event."""

    @property
    def most_per_event(self) -> int:
        """How many windows an event belongs to at most."""
        return self.per_event or 1

    @abstractmethod
    def start_of(self, end_us: str) -> str:
        """Start of the window of one event that ends there, in microseconds.

        Args:
            end_us: the end, in microseconds; SQL.
        """

    @property
    @abstractmethod
    def every_us(self) -> str:
        """The distance of two windows of one event, in microseconds; where it has one window, 1."""

    @abstractmethod
    def missed_ends(self, first_end_us: str, time: str, watermark_us: str) -> str:
        """The ends of the windows that a late event has missed: an array of microseconds.

        Args:
            first_end_us: of the oldest window that counts.
            time: the event-time column.
            watermark_us: that has passed the ends; SQL.
        """

    @property
    @abstractmethod
    def longest(self) -> timedelta:
        """How far past an event a window of it may reach."""

    @property
    @abstractmethod
    def reach(self) -> tuple[timedelta, timedelta]:
        """How far before and after a range of starts the events of windows lie that start in it."""

    @abstractmethod
    def first_open_us(self, watermark_ms: int) -> int:
        """No window that starts before this instant is open; microseconds since 1970."""

    @abstractmethod
    def last_end_upto(self, instant_us: int) -> int:
        """End of the newest window that has ended at an instant; microseconds since 1970.

        Raises:
            TypeError: if nothing parts them, which `why_no_cut` says.
        """

    @property
    def gap_of_event(self) -> str | None:
        """SQL of `GAP` over the columns of an event, where each brings its own; None: no event does."""
        return None

    @property
    @abstractmethod
    def lateness(self) -> str:
        """When an event is late for one of them, in a line."""

    @property
    @abstractmethod
    def repair_unit(self) -> str:
        """What one late event can change, in words."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Such as `tumbling windows`."""
