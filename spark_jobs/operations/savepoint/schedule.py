"""Savepoints that are taken as time goes by, beside a running stream."""

import logging
from datetime import UTC, datetime, timedelta

from obstore.exceptions import BaseError

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.savepoints import savepoints
from spark_jobs.lake.errors import TidemarkError, first_line
from spark_jobs.lake.tables.opening import UNREADABLE
from spark_jobs.operations.savepoint.execute import take_savepoint, thin_out
from spark_jobs.spec import Definition

log = logging.getLogger("tidemark.driver")

_AGAIN = timedelta(minutes=1)
"""So long after one that could not be taken it is tried again."""


class SavepointSchedule:
    """Takes the savepoints that definitions ask for; a driver has one.

    Args:
        lake: where.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._next: dict[str, datetime] = {}

    def look(self, definition: Definition, *, now: datetime | None = None) -> None:
        """Takes a savepoint of a running pipeline if it is time, and removes the oldest; the stream is not held up.

        Args:
            definition: of the pipeline.
            now: the time; None: the clock.
        """
        wanted, name = definition.savepoints, definition.name
        now = now or datetime.now(UTC)
        if wanted is None or now < self._next.get(name, now):
            return
        try:
            taken = [each.taken_at for each in savepoints(self._lake, name) if each.kind == "schedule"]
            if not taken or now - taken[-1] >= wanted.every:
                take_savepoint(self._lake, name, log.info, name=None, by="the driver", kind="schedule")
                thin_out(self._lake, name, "schedule", wanted.keep)
                taken = [now]
            self._next[name] = taken[-1] + wanted.every
        except (TidemarkError, BaseError, ValueError, *UNREADABLE) as error:
            # The stream does not need it; before its first batch there is nothing to save.
            log.warning("%s: no savepoint was taken: %s", name, first_line(error))
            self._next[name] = now + _AGAIN
