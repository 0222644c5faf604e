"""What the supervisor knows of a job's driver: `_control/<job>/status/<number>.json`."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records

DriverState = Literal["starting", "running", "draining", "backing_off", "failed", "stopped"]


class End(BaseModel):
    """An unplanned end of a driver.

    Attributes:
        at: when its supervisor saw it.
        term: of that driver.
        host: on which it ran.
        exit_code: negative: a signal. None: nobody saw it.
        cause: in a sentence.
        log: of that driver, on the supervisor's host; None where it ran on another one.
    """

    model_config = ConfigDict(frozen=True)

    at: datetime
    term: int
    host: str
    exit_code: int | None
    cause: str
    log: str | None

    @property
    def cause_in_words(self) -> str:
        """Exit code and cause, for a person."""
        return f"exit code {'not known' if self.exit_code is None else self.exit_code}: {self.cause}"

    @property
    def where(self) -> str:
        """Its log, for a person."""
        return f"{self.log or f'that of term {self.term} in its folder of logs'} on {self.host}"


class Status(PersistedValue):
    """A job's driver, as its supervisor sees it.

    Attributes:
        job: its name.
        state: `failed` is for good: until somebody orders something new, or another supervisor is the active one.
        since: of this state.
        term: of the newest driver.
        order: number of the desired state that was followed.
        ends: when drivers ended that were not asked to, within the last hour.
        last_end: the newest of these; None: there was none.
        exit_code: of the driver that ended last; negative: a signal. None: it has not ended, or nobody saw it.
        last_lines: what that driver said last.
        next_start_at: `backing_off`: when the next one starts.
        supervisor: who wrote this.
    """

    job: str
    state: DriverState
    since: datetime
    term: int = 0
    order: int = 0
    ends: tuple[datetime, ...] = ()
    last_end: End | None = None
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    next_start_at: datetime | None = None
    supervisor: str = ""


def records(lake: Lake, job: str) -> Records[Status]:
    """The statuses of a job's driver."""
    return Records(lake, f"{CONTROL}/{job}/status", Status)
