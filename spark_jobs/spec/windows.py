"""Windows of event time. A window is half-open: it holds events from its start up to, not including, its end."""

from datetime import timedelta
from typing import Literal, Self

from pydantic import field_validator, model_validator

from spark_jobs.spec.base import Spec
from spark_jobs.spec.durations import Duration, PositiveDuration, format_duration
from spark_jobs.spec.expressions import Scalar
from spark_jobs.spec.zones import check_zone

_MOST_WINDOWS = 10_000


class Tumbling(Spec):
    """Windows that touch: every event belongs to exactly one.

    Attributes:
        size: length of a window.
        offset: shift of the grid from 1970-01-01 00:00 UTC; "6 hours" starts daily windows at 06:00 UTC.
    """

    kind: Literal["tumbling"] = "tumbling"
    size: PositiveDuration
    offset: Duration = timedelta(0)

    def __init__(self, size: str | timedelta, *, offset: str | timedelta = timedelta(0), **other: object) -> None:
        super().__init__(size=size, offset=offset, **other)

    @property
    def every(self) -> timedelta:
        """Distance between the starts of two neighbours."""
        return self.size

    @model_validator(mode="after")
    def _offset_within_grid(self) -> Self:
        _check_offset(self)
        return self


class Hopping(Spec):
    """Windows of one size that overlap on a fixed grid: an event belongs to several.

    Attributes:
        size: length of a window.
        every: distance between the starts of two neighbours; at most `size`.
        offset: shift of the grid from 1970-01-01 00:00 UTC.
    """

    kind: Literal["hopping"] = "hopping"
    size: PositiveDuration
    every: PositiveDuration
    offset: Duration = timedelta(0)

    def __init__(
        self,
        size: str | timedelta,
        every: str | timedelta,
        *,
        offset: str | timedelta = timedelta(0),
        **other: object,
    ) -> None:
        super().__init__(size=size, every=every, offset=offset, **other)

    @model_validator(mode="after")
    def _no_gaps(self) -> Self:
        if self.every > self.size:
            raise ValueError(
                f"every: expected at most the size ({format_duration(self.size)}), got "
                f"{format_duration(self.every)}: events between two windows would belong to none"
            )
        if self.size > self.every * _MOST_WINDOWS:
            raise ValueError(
                f"every: expected at least size / {_MOST_WINDOWS:,}, got {format_duration(self.every)} for a size of "
                f"{format_duration(self.size)}: each event would be kept in {-(-self.size // self.every):,} windows"
            )
        _check_offset(self)
        return self


class Session(Spec):
    """Windows of activity: one ends when its key has been silent for the gap.

    Two events of a key at most `gap` apart share a session. The window is [first event, last event + gap). With
    `gap_sql` each event brings a gap of its own, and the session ends where the last of them does.

    Attributes:
        gap: how long a silence ends a session; with `gap_sql` the longest that it may give.
        gap_sql: SQL expression over an event that gives its gap as text, such as
            `if(device = 'tv', '2 hours', '30 minutes')`. An event for which it gives nothing, or no more than zero,
            belongs to no session and is counted as `timeless`; a longer one than `gap` is shortened to it.
    """

    kind: Literal["session"] = "session"
    gap: PositiveDuration
    gap_sql: Scalar | None = None

    def __init__(self, gap: str | timedelta, **other: object) -> None:
        super().__init__(gap=gap, **other)


class Calendar(Spec):
    """Days, weeks or months of a calendar in a time zone: every event belongs to exactly one.

    A day starts at midnight there, so that it has 23 or 25 hours where clocks change; a week starts on Monday, a month
    on its first day.

    Attributes:
        unit: "day", "week" or "month".
        tz: name of the time zone in the IANA database, such as "Europe/Berlin".
    """

    kind: Literal["calendar"] = "calendar"
    unit: Literal["day", "week", "month"]
    tz: str

    def __init__(self, unit: str, *, tz: str, **other: object) -> None:
        super().__init__(unit=unit, tz=tz, **other)

    @field_validator("tz")
    @classmethod
    def _zone_is_known(cls, tz: str) -> str:
        return check_zone(tz)


Window = Tumbling | Hopping | Session | Calendar
GridWindow = Tumbling | Hopping


def _check_offset(window: GridWindow) -> None:
    if window.offset >= window.every:
        raise ValueError(
            f"offset: expected less than {format_duration(window.every)}, got {format_duration(window.offset)}: "
            "the grid repeats after that"
        )
