"""Time zones by their names in the IANA database."""

from difflib import get_close_matches
from functools import cache
from zoneinfo import available_timezones

_OF_PYTHON_ALONE = frozenset({"EST", "Factory", "GMT+0", "GMT-0", "HST", "MST", "ROC", "localtime"})
"""Old names, and such as stand for no zone, that Python knows and Java, in which Spark computes, does not list."""


@cache
def zones() -> frozenset[str]:
    """The names of all time zones that Python and Spark know."""
    return frozenset(available_timezones()) - _OF_PYTHON_ALONE


def check_zone(name: str) -> str:
    """The name of a time zone, if there is one of that name.

    Args:
        name: such as "Europe/Berlin"; capital letters count.

    Raises:
        ValueError: if there is none.
    """
    if name in zones():
        return name
    by_folded = {zone.casefold(): zone for zone in zones()}
    near = get_close_matches(name.casefold(), by_folded, n=1)
    meant = f"; did you mean {by_folded[near[0]]!r}?" if near else ""
    raise ValueError(f'expected a time zone of the IANA database such as "Europe/Berlin", got {name!r}{meant}')
