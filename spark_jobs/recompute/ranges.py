"""Half-open ranges of event time, as people write them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spark_jobs.spec.errors import TidemarkError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US = -62_135_596_800_000_000
"""Year 1: no event lies before it."""


class RangeError(TidemarkError):
    """A range of event time that nothing can be computed for."""


@dataclass(frozen=True)
class Range:
    """From an instant up to another one, which is left out; microseconds since 1970."""

    begin_us: int
    end_us: int

    @classmethod
    def parse(cls, begin: str, end: str) -> "Range":
        """From ISO 8601; without a zone it is UTC, without a time of day midnight.

        Raises:
            RangeError: if it is none, or empty.
        """
        return cls.between(instant("--from", begin), instant("--to", end))

    @classmethod
    def between(cls, begin: datetime, end: datetime) -> "Range":
        """From two instants.

        Raises:
            RangeError: if nothing lies between them.
        """
        if begin >= end:
            what = "empty" if begin == end else "reversed"
            raise RangeError(
                f"range from {shown(us(begin))} to {shown(us(end))}: it is {what}; expected the end after the "
                "beginning, and the end itself is left out. Nothing was read or written."
            )
        return cls(us(begin), us(end))

    @property
    def begin(self) -> datetime:
        """The first instant that belongs to the range."""
        return EPOCH + timedelta(microseconds=self.begin_us)

    @property
    def end(self) -> datetime:
        """The instant after the last."""
        return EPOCH + timedelta(microseconds=self.end_us)

    @property
    def options(self) -> str | None:
        """As a command takes it, `--from … --to …`, in whole seconds that hold it; None: no date can name it.

        Python's calendar has the years 1 to 9999, and the time of an event may be any.
        """
        try:
            begin, end = self.begin, self.end + timedelta(microseconds=999_999)
        except OverflowError:
            return None
        return " ".join(
            f"{option} {each.replace(tzinfo=None).isoformat(timespec='seconds')}"
            for option, each in (("--from", begin), ("--to", end))
        )

    def __str__(self) -> str:
        return f"{shown(self.begin_us)} to {shown(self.end_us)}"


def us(instant: datetime) -> int:
    """An instant as microseconds since 1970."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def shown(instant_us: int) -> str:
    """An instant for people; those that Python's calendar does not have by their number."""
    try:
        instant = EPOCH + timedelta(microseconds=instant_us)
    except OverflowError:
        return f"{instant_us} microseconds since 1970"
    return instant.replace(tzinfo=None).isoformat(" ")


def instant(option: str, text: str) -> datetime:
    """An instant by ISO 8601; without a zone it is UTC, without a time of day midnight.

    Args:
        option: which a person gave.
        text: of it.

    Raises:
        RangeError: if it is none.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise RangeError(
            f"{option}: expected an instant such as 2026-11-24 or 2026-11-24T06:00, got {text!r}. Nothing was read or "
            "written."
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
