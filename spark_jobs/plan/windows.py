"""Windows as expressions over the event time: which windows an event belongs to, and when they end.

They are computed in whole milliseconds since 1970 by arithmetic, not by Spark's `window()`, so that the
late split costs one comparison an event; `tests/spark/test_grid.py` holds both against each other.

They are SQL texts over the name of the event-time column: made again for each batch, a text costs one call to the JVM
and the same expression put together from columns costs dozens.
"""

from datetime import timedelta

from spark_jobs.plan.columns import GAP
from spark_jobs.spec import GridWindow, Session, Window
from spark_jobs.spec.durations import duration_ms


def last_start_us(time: str, window: GridWindow) -> str:
    """Start of the newest window that holds the event, in microseconds."""
    every, offset = duration_ms(window.every) * 1000, duration_ms(window.offset) * 1000
    since = f"(unix_micros({time}) - {offset}L)"
    return f"({since} - pmod({since}, {every}L) + {offset}L)"


def first_end_us(time: str, window: Window) -> str:
    """End of the oldest window that holds the event, in microseconds: if any of its windows is late, this one is."""
    if isinstance(window, Session):
        return f"(unix_micros({time}) + {gap_us(window)})"
    every = duration_ms(window.every) * 1000
    return f"({last_end_us(time, window)} - ({window_count(time, window)} - 1L) * {every}L)"


def last_end_us(time: str, window: Window) -> str:
    """End of the newest window that holds the event, in microseconds: if this one is late, all of them are."""
    if isinstance(window, Session):
        return first_end_us(time, window)
    return f"({last_start_us(time, window)} + {duration_ms(window.size) * 1000}L)"


def window_count(time: str, window: Window) -> str:
    """How many windows the event belongs to."""
    if isinstance(window, Session) or window.size == window.every:
        return "1L"
    size, every = duration_ms(window.size) * 1000, duration_ms(window.every) * 1000
    into_newest = f"(unix_micros({time}) - {last_start_us(time, window)})"
    # Starts lie `every` apart; the oldest window that still holds the event starts after time - size.
    return f"(({size - 1}L - {into_newest}) div {every}L + 1L)"


def first_start_after(instant_us: int, window: GridWindow) -> int:
    """Start of the first window that starts after an instant; microseconds since 1970."""
    every, offset = duration_ms(window.every) * 1000, duration_ms(window.offset) * 1000
    return (instant_us - offset) // every * every + every + offset


def last_end_upto(instant_us: int, window: GridWindow) -> int:
    """End of the newest window that has ended at an instant; microseconds since 1970."""
    every, ends = duration_ms(window.every) * 1000, duration_ms(window.offset + window.size) * 1000
    return (instant_us - ends) // every * every + ends


def gap_us(window: Session) -> str:
    """How long an event keeps its session open, in microseconds."""
    return f"{duration_ms(window.gap) * 1000}L" if window.gap_sql is None else GAP


def size_us(window: Window) -> str:
    """The length of the window that one event makes, in microseconds."""
    return gap_us(window) if isinstance(window, Session) else f"{duration_ms(window.size) * 1000}L"


def every_us(window: Window) -> str:
    """The distance of two windows of one event, in microseconds; of sessions an event has one."""
    return "1L" if isinstance(window, Session) else f"{duration_ms(window.every) * 1000}L"


def longest(window: Window) -> timedelta:
    """How far past an event a window of it may reach."""
    return window.gap if isinstance(window, Session) else window.size


def windows_per_event(window: Window) -> int | None:
    """How many windows each event belongs to; None: it depends on the event."""
    if isinstance(window, Session):
        return 1
    return window.size // window.every if window.size % window.every == timedelta(0) else None


def gap_of_event(window: Session) -> str:
    """SQL of `GAP` over the columns of an event, where each brings its own; null: the event belongs to no session."""
    epoch = "TIMESTAMP'1970-01-01 00:00:00Z'"
    given = f"unix_micros({epoch} + try_cast(({window.gap_sql}) AS INTERVAL))"
    # `least` alone would take the longest for none.
    return f"CASE WHEN {given} IS NOT NULL THEN least({given}, {duration_ms(window.gap) * 1000}L) END"
