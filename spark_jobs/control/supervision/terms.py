"""Terms: who may drive a job. Each start of a driver takes the next number; a driver of an older term stops.

`_control/<job>/terms/<number>.json`. The term keeps two drivers from running on for long side by side; what a driver of
an old term still does in the meantime can do no harm, see docs/concepts/exactly-once.md.
"""

import socket
from datetime import datetime

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records


class FencedError(TidemarkError):
    """A driver of a newer term has taken over: this one ends."""

    exit_code = 3


class Term(PersistedValue):
    """The right to drive a job.

    Attributes:
        host: where the driver is started.
        supervisor: who starts it.
        begun_at: when.
    """

    host: str
    supervisor: str
    begun_at: datetime


def records(lake: Lake, job: str) -> Records[Term]:
    """The terms of a job."""
    return Records(lake, f"{CONTROL}/{job}/terms", Term)


def this_host() -> str:
    """How this host calls itself in terms, leases and pulses."""
    return Settings().host or socket.gethostname()
