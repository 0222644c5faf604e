"""Calendar windows: days, weeks and months of a time zone, of 23 to 25 hours where clocks change.

Spark computes an event's own window; edges that no event names, such as the cut of a bootstrap, are computed here. Both
read the IANA database, and `tests/spark/test_calendar.py` holds them against each other.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from spark_jobs.plan.windowing.base import Windowing
from spark_jobs.spec import Calendar
from spark_jobs.spec.names import text_in_spark

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The days of the longest one, and one more: no clock was ever turned back by more than a day.
_LONGEST = {"day": timedelta(days=2), "week": timedelta(days=8), "month": timedelta(days=32)}


@dataclass(frozen=True)
class CalendarPeriods(Windowing):
    """Windows that begin at a midnight of a time zone.

    Attributes:
        window: as it is defined.
    """

    window: Calendar
    merging = False
    state_operators = ("stateStoreSave",)
    why_no_cut = None

    def start_us(self, time: str) -> str:
        """Start of the window that holds the event, in microseconds."""
        return self._instant_us(self._midnight(time))

    def first_end_us(self, time: str) -> str:
        """The same as the last: an event has one window."""
        return self.last_end_us(time)

    def last_end_us(self, time: str) -> str:
        """The next start: one unit later by the calendar, however many hours that is."""
        return self._instant_us(f"{self._midnight(time)} + INTERVAL '1' {self.window.unit.upper()}")

    def count(self, time: str) -> str:
        """One."""
        return "1L"

    @property
    def per_event(self) -> int | None:
        """One."""
        return 1

    def start_of(self, end_us: str) -> str:
        """Start of the window that holds the last instant before the end."""
        return self.start_us(f"timestamp_micros({end_us} - 1L)")

    @property
    def every_us(self) -> str:
        """An event has no other window."""
        return "1L"

    def missed_ends(self, first_end_us: str, time: str, watermark_us: str) -> str:
        """The end of the event's one window."""
        return f"array({first_end_us})"

    @property
    def longest(self) -> timedelta:
        """More than any day, week or month has ever lasted."""
        return _LONGEST[self.window.unit]

    @property
    def reach(self) -> tuple[timedelta, timedelta]:
        """Events of a window that starts in a range come up to its end."""
        return timedelta(0), self.longest

    def first_open_us(self, watermark_ms: int) -> int:
        """The start of the window that holds the watermark: those before it have ended."""
        return self.last_end_upto(watermark_ms * 1000)

    def last_end_upto(self, instant_us: int) -> int:
        """The start of the window that holds the instant, at which the one before it ended."""
        zone = ZoneInfo(self.window.tz)
        local = (_EPOCH + timedelta(microseconds=instant_us)).astimezone(zone)
        first = local.date()
        if self.window.unit == "week":
            first -= timedelta(days=first.weekday())
        if self.window.unit == "month":
            first = first.replace(day=1)
        start = datetime(first.year, first.month, first.day, tzinfo=zone)
        return (start - _EPOCH) // timedelta(microseconds=1)

    @property
    def lateness(self) -> str:
        """An event is late for its window by the window's end."""
        return "late where its window ends at or before the watermark"

    @property
    def repair_unit(self) -> str:
        """The group of the event."""
        return "the row of its key and window"

    @property
    def name(self) -> str:
        """By the unit and the zone."""
        return f"calendar {self.window.unit}s in {self.window.tz}"

    def _midnight(self, time: str) -> str:
        """Where the window of an instant starts, by the clocks of the zone."""
        return f"date_trunc('{self.window.unit}', from_utc_timestamp({time}, {self._zone}))"

    def _instant_us(self, local: str) -> str:
        """When the clocks show a time: first, where they show it twice; where they leave it out, as they change."""
        return f"unix_micros(to_utc_timestamp({local}, {self._zone}))"

    @property
    def _zone(self) -> str:
        return text_in_spark(self.window.tz)
