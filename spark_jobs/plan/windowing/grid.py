"""Windows on a grid: tumbling and hopping. Where they begin and end does not depend on the events."""

from dataclasses import dataclass
from datetime import timedelta

from spark_jobs.plan.windowing.base import Windowing
from spark_jobs.spec import GridWindow
from spark_jobs.spec.durations import duration_ms


@dataclass(frozen=True)
class Grid(Windowing):
    """Windows of one size, at equal distances.

    Attributes:
        window: as it is defined.
    """

    window: GridWindow
    merging = False
    state_operators = ("stateStoreSave",)
    why_no_cut = None

    def last_start_us(self, time: str) -> str:
        """Start of the newest window that holds the event, in microseconds."""
        every, offset = self._every_us, duration_ms(self.window.offset) * 1000
        since = f"(unix_micros({time}) - {offset}L)"
        return f"({since} - pmod({since}, {every}L) + {offset}L)"

    def first_end_us(self, time: str) -> str:
        """So many distances before the newest as it has windows more than one."""
        return f"({self.last_end_us(time)} - ({self.count(time)} - 1L) * {self._every_us}L)"

    def last_end_us(self, time: str) -> str:
        """One size after the newest start."""
        return f"({self.last_start_us(time)} + {self._size_us}L)"

    def count(self, time: str) -> str:
        """One, or as many as overlap at the event."""
        if self.window.size == self.window.every:
            return "1L"
        into_newest = f"(unix_micros({time}) - {self.last_start_us(time)})"
        # Starts lie `every` apart; the oldest window that still holds the event starts after time - size.
        return f"(({self._size_us - 1}L - {into_newest}) div {self._every_us}L + 1L)"

    @property
    def per_event(self) -> int | None:
        """The same for all events where the size is a multiple of the distance."""
        window = self.window
        return window.size // window.every if window.size % window.every == timedelta(0) else None

    @property
    def most_per_event(self) -> int:
        """The size in distances, rounded up."""
        return -(-self.window.size // self.window.every)

    def start_of(self, end_us: str) -> str:
        """A size before the end."""
        return f"{end_us} - {self._size_us}L"

    @property
    def every_us(self) -> str:
        """The distance of two starts, in microseconds."""
        return f"{self._every_us}L"

    def missed_ends(self, first_end_us: str, time: str, watermark_us: str) -> str:
        """Of those ends that an event has, the ones that have passed."""
        all_ends = f"sequence({first_end_us}, {self.last_end_us(time)}, {self.every_us})"
        return f"filter({all_ends}, __end -> __end <= {watermark_us})"

    @property
    def longest(self) -> timedelta:
        """The size: a window that begins at the event ends so much later."""
        return self.window.size

    @property
    def reach(self) -> tuple[timedelta, timedelta]:
        """Events of a window that starts in a range come up to its end."""
        return timedelta(0), self.window.size

    def first_start_after(self, instant_us: int) -> int:
        """Start of the first window that starts after an instant; microseconds since 1970."""
        every, offset = self._every_us, duration_ms(self.window.offset) * 1000
        return (instant_us - offset) // every * every + every + offset

    def first_open_us(self, watermark_ms: int) -> int:
        """The start of the oldest window that is open."""
        return self.first_start_after(watermark_ms * 1000 - self._size_us)

    def last_end_upto(self, instant_us: int) -> int:
        """Ends lie as far apart as starts."""
        every, ends = self._every_us, duration_ms(self.window.offset + self.window.size) * 1000
        return (instant_us - ends) // every * every + ends

    @property
    def lateness(self) -> str:
        """An event is late for a window by the window's end."""
        return "late for each window that ends at or before the watermark"

    @property
    def repair_unit(self) -> str:
        """The groups of the event."""
        return "the rows of its key and windows"

    @property
    def name(self) -> str:
        """By the kind of the window."""
        return f"{self.window.kind} windows"

    @property
    def _size_us(self) -> int:
        return duration_ms(self.window.size) * 1000

    @property
    def _every_us(self) -> int:
        return duration_ms(self.window.every) * 1000
