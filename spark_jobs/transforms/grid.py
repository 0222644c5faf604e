"""Windows as expressions over the event time: which windows an event belongs to, and when they end.

They are computed in whole milliseconds since 1970 by arithmetic, not by Spark's `window()`, so that the
late split costs one comparison an event; `tests/spark/test_grid.py` holds both against each other.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.spec import GridWindow, Session, Window
from spark_jobs.spec.durations import duration_ms


def micros(time: Column) -> Column:
    """A timestamp as microseconds since 1970."""
    return F.unix_micros(time)


def last_start_us(time: Column, window: GridWindow) -> Column:
    """Start of the newest window that holds the event, in microseconds."""
    every, offset = duration_ms(window.every) * 1000, duration_ms(window.offset) * 1000
    since = micros(time) - F.lit(offset)
    return since - F.pmod(since, F.lit(every)) + F.lit(offset)


def first_end_us(time: Column, window: Window) -> Column:
    """End of the oldest window that holds the event, in microseconds: if any of its windows is late, this one is."""
    if isinstance(window, Session):
        return micros(time) + F.lit(duration_ms(window.gap) * 1000)
    return last_end_us(time, window) - (window_count(time, window) - 1) * F.lit(duration_ms(window.every) * 1000)


def last_end_us(time: Column, window: Window) -> Column:
    """End of the newest window that holds the event, in microseconds: if this one is late, all of them are."""
    if isinstance(window, Session):
        return micros(time) + F.lit(duration_ms(window.gap) * 1000)
    return last_start_us(time, window) + F.lit(duration_ms(window.size) * 1000)


def window_count(time: Column, window: Window) -> Column:
    """How many windows the event belongs to."""
    if isinstance(window, Session):
        return F.lit(1).cast("bigint")
    size, every = duration_ms(window.size) * 1000, duration_ms(window.every) * 1000
    if size == every:
        return F.lit(1).cast("bigint")
    into_newest = micros(time) - last_start_us(time, window)
    # Starts lie `every` apart; the oldest window that still holds the event starts after time - size.
    return F.floor((F.lit(size) - 1 - into_newest) / F.lit(every)).cast("bigint") + 1


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
