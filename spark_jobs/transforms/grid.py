"""Windows as expressions over the event time: which windows an event belongs to, and when they end.

They are computed in whole milliseconds since 1970 by arithmetic, not by Spark's `window()`, so that the
late split costs one comparison an event; `tests/spark/test_grid.py` holds both against each other.

They are SQL texts over the name of the event-time column: made anew for each batch, a text costs one call to the JVM
and the same expression put together from columns costs dozens.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

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
        return f"(unix_micros({time}) + {duration_ms(window.gap) * 1000}L)"
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


def window_column(time: Column, window: Window) -> Column:
    """Spark's own window of the event, for `groupBy`."""
    if isinstance(window, Session):
        return F.session_window(time, f"{duration_ms(window.gap)} milliseconds")
    return F.window(
        time,
        f"{duration_ms(window.size)} milliseconds",
        f"{duration_ms(window.every)} milliseconds",
        f"{duration_ms(window.offset)} milliseconds",
    )
