"""The monitor's own sign of life: `_control/_monitor/look.json`."""

from datetime import datetime

import obstore
from obstore.exceptions import NotFoundError
from pydantic import BaseModel

from spark_jobs.control.orders import CONTROL
from spark_jobs.lake import Lake

_PATH = f"{CONTROL}/_monitor/look.json"


class _Mark(BaseModel):
    at: datetime


def mark_look(lake: Lake, *, at: datetime) -> None:
    """Notes that the monitor has looked."""
    lake.store.put(_PATH, _Mark(at=at).model_dump_json().encode())


def last_look(lake: Lake) -> datetime | None:
    """When the monitor has looked last; None: never."""
    try:
        return _Mark.model_validate_json(bytes(obstore.get(lake.store, _PATH).bytes())).at
    except (NotFoundError, FileNotFoundError):
        return None
