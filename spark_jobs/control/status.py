"""What the supervisor knows of a job's driver: `_control/<job>/status/<number>.json`."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.records import Records

DriverState = Literal["starting", "running", "draining", "backing_off", "failed", "stopped"]


class Status(BaseModel):
    """A job's driver, as its supervisor sees it.

    Attributes:
        job: its name.
        state: `failed` is for good: until somebody orders something new.
        since: of this state.
        term: of the newest driver.
        order: number of the desired state that was followed.
        ends: when drivers ended that were not asked to, within the last hour.
        exit_code: of the driver that ended last; negative: a signal. None: it has not ended, or nobody saw it.
        last_lines: what that driver said last.
        next_start_at: `backing_off`: when the next one starts.
        supervisor: who wrote this.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    state: DriverState
    since: datetime
    term: int = 0
    order: int = 0
    ends: tuple[datetime, ...] = ()
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    next_start_at: datetime | None = None
    supervisor: str = ""


def records(lake: Lake, job: str) -> Records[Status]:
    """The statuses of a job's driver."""
    return Records(lake, f"{CONTROL}/{job}/status", Status)
