"""What windows mean, one module for each kind: ends, counts, reach, where they can be cut, and words."""

from spark_jobs.plan.windowing.base import Windowing
from spark_jobs.plan.windowing.grid import Grid
from spark_jobs.plan.windowing.sessions import Sessions
from spark_jobs.spec import Session, Window


def windowing_of(window: Window) -> Windowing:
    """What a window means."""
    return Sessions(window) if isinstance(window, Session) else Grid(window)


__all__ = ["Grid", "Sessions", "Windowing", "windowing_of"]
