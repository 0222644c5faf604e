"""Durations as people write them, for the simulator's settings: "90 seconds", "1 hour 30 minutes"."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator

_UNIT_MS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_PART = re.compile(r"\s*(\d+)\s*(millisecond|second|minute|hour|day)s?\b")


def parse_duration(text: object) -> timedelta:
    """Reads a sum of `<whole number> <milliseconds … days>`; a `timedelta` passes through.

    Raises:
        ValueError: if the text is no such sum, or the `timedelta` is negative.
    """
    if isinstance(text, timedelta) and text >= timedelta(0):
        return text
    if not isinstance(text, str) or not text.strip() or _PART.sub("", text).strip():
        raise ValueError(f'expected a duration such as "90 seconds" or "1 hour 30 minutes", got {text!r}')
    return timedelta(milliseconds=sum(int(n) * _UNIT_MS[unit] for n, unit in _PART.findall(text)))


def whole_ms(duration: timedelta) -> int:
    """The duration in whole milliseconds."""
    return duration // timedelta(milliseconds=1)


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""A duration of zero or more; text is parsed."""
