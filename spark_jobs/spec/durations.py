"""Durations as people write them: "30 seconds", "1 hour 30 minutes"."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_UNITS_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_SPELLINGS_MS = {"ms": 1, **_UNITS_MS, **{f"{unit}s": unit_ms for unit, unit_ms in _UNITS_MS.items()}}
_PART = re.compile(r"([0-9]{1,999})\s*([A-Za-z]+)(?:\s*,\s*(?=[0-9])|\s+|(?=[0-9])|$)")
_LONGEST = timedelta(days=365_000)
_EXAMPLE = 'expected a duration such as "30 seconds" or "1 hour 30 minutes"'


def parse_duration(text: object) -> timedelta:
    """Reads a duration.

    Args:
        text: a sum of `<whole number> <unit>` parts; units are milliseconds (ms), seconds, minutes, hours,
            days and weeks, singular or plural. A `timedelta` passes through.

    Returns:
        The duration, a whole number of milliseconds, never negative, at most 365,000 days.

    Raises:
        ValueError: if the text is no such sum. Months and years have no fixed length and are refused.
    """
    if isinstance(text, timedelta):
        if text < timedelta(0):
            raise ValueError(f"{_EXAMPLE}, got the negative {text!r}")
        if text % timedelta(milliseconds=1):
            raise ValueError(f"expected a whole number of milliseconds, got {text!r}")
        if text > _LONGEST:
            raise ValueError(f"expected at most {_LONGEST.days} days, got {text!r}")
        return text
    if not isinstance(text, str):
        raise ValueError(f"{_EXAMPLE}, got {text!r}")
    total_ms, position = 0, 0
    stripped = text.strip()
    while position < len(stripped):
        part = _PART.match(stripped, position)
        unit = part.group(2).lower() if part else ""
        unit_ms = _SPELLINGS_MS.get(unit)
        if part is None or unit_ms is None:
            hint = ": months and years have no fixed length" if re.match("month|year", unit) else ""
            raise ValueError(f"{_EXAMPLE}, got {text!r}{hint}")
        total_ms += int(part.group(1)) * unit_ms
        position = part.end()
    if not stripped:
        raise ValueError(f"{_EXAMPLE}, got {text!r}")
    if total_ms > duration_ms(_LONGEST):
        raise ValueError(f"expected at most {_LONGEST.days} days, got {text!r}")
    return timedelta(milliseconds=total_ms)


def format_duration(duration: timedelta) -> str:
    """Writes a duration the way `parse_duration` reads it, largest units first."""
    rest_ms = duration_ms(duration)
    parts = []
    for unit in ("week", "day", "hour", "minute", "second", "millisecond"):
        count, rest_ms = divmod(rest_ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


def duration_ms(duration: timedelta) -> int:
    """The duration in whole milliseconds."""
    return duration // timedelta(milliseconds=1)


def _positive(text: object) -> timedelta:
    duration = parse_duration(text)
    if duration == timedelta(0):
        raise ValueError(f"expected a duration longer than zero, got {text!r}")
    return duration


_SERIALIZER = PlainSerializer(format_duration, return_type=str)

Duration = Annotated[timedelta, BeforeValidator(parse_duration), _SERIALIZER]
"""A duration of zero or more."""

PositiveDuration = Annotated[timedelta, BeforeValidator(_positive), _SERIALIZER]
"""A duration longer than zero."""
