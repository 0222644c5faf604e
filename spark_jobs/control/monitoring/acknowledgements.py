"""Acknowledgements: up to when a person knows of a pipeline's restarts. `_control/_monitor/acknowledged/<number>.json`.

Only what has happened is acknowledged; a condition that goes on clears when it ends, or is muted meanwhile.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError


class Acknowledgements(PersistedValue):
    """Pipeline -> up to when its restarts are known."""

    up_to: Mapping[str, datetime] = {}


def _records(lake: Lake) -> Records[Acknowledgements]:
    return Records(lake, f"{CONTROL}/_monitor/acknowledged", Acknowledgements)


@retry(
    retry=retry_if_exception_type(RecordTakenError),
    stop=stop_after_attempt(20),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    reraise=True,
)
def acknowledge(lake: Lake, pipelines: Iterable[str], *, at: datetime) -> None:
    """Takes note that somebody knows what has happened to pipelines up to then."""
    records = _records(lake)
    number, found = records.newest()
    known = dict(found.up_to) if found else {}
    records.append(number + 1, Acknowledgements(up_to={**known, **dict.fromkeys(pipelines, at)}))


def acknowledged(lake: Lake) -> Mapping[str, datetime]:
    """Pipeline -> up to when somebody knows of its restarts."""
    found = _records(lake).newest()[1]
    return found.up_to if found else {}
