"""Mutes: pipelines whose alerts call nobody for a while. `_control/_monitor/mutes/<number>.json`."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError


class Mutes(PersistedValue):
    """Pipeline -> until when its alerts are muted."""

    until: Mapping[str, datetime] = {}


def _records(lake: Lake) -> Records[Mutes]:
    return Records(lake, f"{CONTROL}/_monitor/mutes", Mutes)


@retry(
    retry=retry_if_exception_type(RecordTakenError),
    stop=stop_after_attempt(20),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    reraise=True,
)
def mute(lake: Lake, pipelines: Iterable[str], *, until: datetime | None) -> None:
    """Mutes pipelines until then; None: not any more."""
    records = _records(lake)
    number, found = records.newest()
    now = dict(found.until) if found else {}
    for name in pipelines:
        now.pop(name, None)
        if until is not None:
            now[name] = until
    records.append(number + 1, Mutes(until=now))


def muted(lake: Lake, *, now: datetime) -> frozenset[str]:
    """The pipelines that are muted."""
    found = _records(lake).newest()[1]
    return frozenset(name for name, until in found.until.items() if now < until) if found else frozenset()
