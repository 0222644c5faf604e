"""What windows mean, one module for each kind: ends, counts, reach, where they can be cut, and words."""

from spark_jobs.plan.windowing.base import Windowing
from spark_jobs.plan.windowing.calendar import CalendarPeriods
from spark_jobs.plan.windowing.grid import Grid
from spark_jobs.plan.windowing.sessions import Sessions
from spark_jobs.spec import Calendar, Session, Window


def windowing_of(window: Window) -> Windowing:
    """What a window means."""
    match window:
        case Session():
            return Sessions(window)
        case Calendar():
            return CalendarPeriods(window)
        case _:
            return Grid(window)


__all__ = ["CalendarPeriods", "Grid", "Sessions", "Windowing", "windowing_of"]
