"""How often the state of a running pipeline is saved by itself."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from spark_jobs.spec.base import Spec
from spark_jobs.spec.durations import PositiveDuration


class Savepoints(Spec):
    """Savepoints that the driver of a deployed pipeline takes. They may change under a running checkpoint.

    Attributes:
        every: after so long the next one is taken; at least a minute.
        keep: so many of the newest stay. Savepoints that people take are not counted and not removed.
    """

    every: Annotated[PositiveDuration, Field(ge=timedelta(minutes=1))] = timedelta(days=1)
    keep: Annotated[int, Field(ge=1)] = 7
