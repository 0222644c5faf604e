"""How long to wait for events, and what becomes of those that come later."""

from datetime import timedelta
from enum import StrEnum
from typing import Self

from pydantic import model_validator

from spark_jobs.spec.base import Spec
from spark_jobs.spec.durations import Duration, format_duration


class Late(StrEnum):
    """What becomes of an event that comes after its window is final."""

    DROP = "drop"
    """Counted in the ledger, not kept."""
    UPDATE = "update"
    """Accepted into the published result for `grace`; after that as `SIDE_OUTPUT`."""
    SIDE_OUTPUT = "side_output"
    """Kept in `<table>__late`, with the windows that it missed."""


class Watermark(Spec):
    """No event older than the newest event time less `delay` is expected any more.

    Attributes:
        delay: how far events may arrive out of order.
        grace: how much longer than `delay` an event is still accepted (`within_grace`).
        late: what becomes of events that come after that.
    """

    delay: Duration
    grace: Duration = timedelta(0)
    late: Late = Late.SIDE_OUTPUT

    @property
    def engine_delay(self) -> timedelta:
        """Spark's one watermark delay: delay + grace."""
        return self.delay + self.grace

    @model_validator(mode="after")
    def _update_has_grace(self) -> Self:
        if self.late is Late.UPDATE and not self.grace:
            raise ValueError(
                f"late: Late.UPDATE accepts events for `grace`, got grace {format_duration(self.grace)!r}: "
                'set grace, such as "5 minutes"'
            )
        return self
