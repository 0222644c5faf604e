"""The monitor's own sign of life: `_control/_monitor/look.json`, and `began.json` beside it."""

from datetime import datetime

import obstore
from obstore.exceptions import NotFoundError
from pydantic import ValidationError

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.store.formats import PersistedValue

_BEGAN, _PATH = f"{CONTROL}/_monitor/began.json", f"{CONTROL}/_monitor/look.json"


class _MonitorPulse(PersistedValue):
    at: datetime


def mark_begin(lake: Lake, *, at: datetime) -> None:
    """Notes that the monitor looks; it can be told of nothing that it finds where this cannot be written."""
    lake.store.put(_BEGAN, _MonitorPulse(at=at).model_dump_json().encode())


def mark_look(lake: Lake, *, at: datetime) -> None:
    """Notes that the monitor has looked, and told what it has found."""
    lake.store.put(_PATH, _MonitorPulse(at=at).model_dump_json().encode())


def last_begin(lake: Lake) -> datetime | None:
    """When the monitor has looked last, whether it could tell or not; None: never."""
    return _marked(lake, _BEGAN)


def last_look(lake: Lake) -> datetime | None:
    """When the monitor has looked last, and told; None: never."""
    return _marked(lake, _PATH)


def _marked(lake: Lake, path: str) -> datetime | None:
    try:
        return _MonitorPulse.model_validate_json(bytes(obstore.get(lake.store, path).bytes())).at
    except (NotFoundError, FileNotFoundError, ValidationError):
        return None
