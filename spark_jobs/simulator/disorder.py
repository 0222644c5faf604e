"""How badly the events arrive."""

from datetime import timedelta
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spark_jobs.simulator.durations import Duration

Share = Annotated[float, Field(ge=0, le=1)]


class Disorder(BaseModel):
    """Shares of the events to which something happens on their way, each drawn independently per event.

    Attributes:
        disorder: arrive out of order, up to `max_disorder` after their event time.
        max_disorder: longest delay of an event that is not late.
        late: arrive really late, between `late_after` and `late_by` after their event time. An event that is
            drawn both late and out of order is late.
        late_after: a late event is further behind than this; at least `max_disorder`.
        late_by: longest delay of a late event.
        duplicates: are emitted a second time, byte for byte, at the same time or later; of some streams a share of
            the copies (`StreamFormat.late_copies`) is really late, up to `late_by`.
        malformed: cannot be read (see `malformed.py` for the kinds).
        future: state an event time 2 to 30 days ahead of their arrival.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    disorder: Share = 0.2
    max_disorder: Duration = timedelta(seconds=90)
    late: Share = 0.005
    late_after: Duration = timedelta(minutes=10)
    late_by: Duration = timedelta(hours=2)
    duplicates: Share = 0.01
    malformed: Share = 0.002
    future: Share = 0.0005

    @classmethod
    def none(cls) -> Self:
        """Every event arrives once, in order and well-formed."""
        return cls(disorder=0, late=0, duplicates=0, malformed=0, future=0)

    @model_validator(mode="after")
    def _late_is_later_than_disordered(self) -> Self:
        if self.late_after < self.max_disorder:
            raise ValueError(
                f"late_after: expected at least max_disorder ({self.max_disorder}), got {self.late_after}; "
                "raise late_after or lower max_disorder"
            )
        if self.late_by <= self.late_after:
            raise ValueError(
                f"late_by: expected more than late_after ({self.late_after}), got {self.late_by}; raise late_by"
            )
        return self
