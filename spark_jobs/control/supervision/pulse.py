"""A driver's sign of life: what each of its pipelines does and how fast.

`_control/<job>/pulse/<term>.json`, overwritten every few seconds. Each driver has a term of its own, hence an object of
its own: one that has been taken over cannot write over its successor's.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import obstore
from obstore.exceptions import NotFoundError
from pydantic import BaseModel, ConfigDict, ValidationError

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.store.folders import objects_in
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.health import refuse_vanished

State = Literal["starting", "running", "retrying", "stopping", "stopped", "failed", "halted"]

PULSE_EVERY_S = 2.0

DRAINED = "drained"
"""Why a driver ends that was asked to, or that has nothing to run any more."""


class Figures(BaseModel):
    """Figures of a pipeline. Rates and shares are of the last ten minutes of this driver; None: not known (yet).

    Attributes:
        batch_id: the newest committed batch.
        epoch: of the checkpoint.
        input_rows_per_s: events that were read.
        processed_rows_per_s: events a second of the time that batches took.
        batch_ms: duration of the newest batch, from its plan to its last commit.
        phases_ms: where Spark says its trigger's time went, such as `addBatch`, `walCommit`, `queryPlanning`.
        latency_ms: from the oldest event's commit in bronze to the commit of the newest batch.
        watermark_ms: published watermark, milliseconds since 1970.
        state_rows: groups in state.
        left_state_rows: of a join, events of its own side in state.
        right_state_rows: of the other side.
        state_bytes: memory that Spark reports for its state.
        checkpoint_ms: what Spark spent on its logs and on committing state in the newest batch.
        checkpoint_bytes: of all files of the checkpoint.
        read: events that this driver has read.
        late: of these, late for one window or more.
        quarantined: of these, set aside.
        batches: that this driver has run.
        recent_read: events of the last ten minutes.
        recent_late: of these, late.
        recent_quarantined: of these, set aside.
        rows_behind: rows, messages or files in the source that have not been read.
        behind_ms: age of the oldest of them.
        backpressure_since: since when batches take longer than they may, or more arrives than is processed.
    """

    model_config = ConfigDict(frozen=True)

    batch_id: int | None = None
    epoch: int | None = None
    input_rows_per_s: float | None = None
    processed_rows_per_s: float | None = None
    batch_ms: int | None = None
    phases_ms: Mapping[str, int] = {}
    latency_ms: int | None = None
    watermark_ms: int | None = None
    state_rows: int | None = None
    left_state_rows: int | None = None
    right_state_rows: int | None = None
    state_bytes: int | None = None
    checkpoint_ms: int | None = None
    checkpoint_bytes: int | None = None
    read: int = 0
    late: int = 0
    quarantined: int = 0
    batches: int = 0
    recent_read: int = 0
    recent_late: int = 0
    recent_quarantined: int = 0
    rows_behind: int | None = None
    behind_ms: int | None = None
    backpressure_since: datetime | None = None


class PipelinePulse(BaseModel):
    """One pipeline in its driver.

    Attributes:
        generation: of the order that it follows.
        state: what it does.
        since: of this state.
        progressed_at: when it last finished a batch or found that there is nothing to read; None: not in this
            generation.
        error: what stopped it last, in words; None where nothing did.
        error_kind: class of that error.
        failures: times at which it failed, within the last hour.
        next_try_at: `retrying`: when it starts again.
        figures: of it, as measured last.
    """

    model_config = ConfigDict(frozen=True)

    generation: int
    state: State
    since: datetime
    progressed_at: datetime | None = None
    error: str | None = None
    error_kind: str | None = None
    failures: tuple[datetime, ...] = ()
    next_try_at: datetime | None = None
    figures: Figures = Figures()


class Pulse(PersistedValue):
    """A driver that lives.

    Attributes:
        job: its name.
        term: of the driver.
        host: where it runs.
        pid: of its process.
        pid_born: tells that process from others with the same number, see `launchers.birth`.
        started_at: when the driver began.
        at: when this was written.
        sequence: grows with each pulse, so that nobody has to compare clocks.
        metrics_port: where Prometheus finds it; None: nowhere.
        log: its log file, on its host.
        spark_silent_s: for how long Spark has not answered the driver, by the driver's clock that only grows.
        ending: why it is about to exit; None while it goes on.
        pipelines: name -> its state.
    """

    job: str
    term: int
    host: str
    pid: int
    pid_born: str
    started_at: datetime
    at: datetime
    sequence: int
    metrics_port: int | None = None
    log: str | None = None
    spark_silent_s: float = 0.0
    ending: str | None = None
    pipelines: Mapping[str, PipelinePulse] = {}


def _path(job: str, term: int) -> str:
    return f"{CONTROL}/{job}/pulse/{term:06d}.json"


def beat(lake: Lake, pulse: Pulse) -> None:
    """Writes a sign of life.

    Raises:
        LakeUnavailableError: if the lake's folder is gone.
    """
    refuse_vanished(lake)
    lake.store.put(_path(pulse.job, pulse.term), pulse.model_dump_json().encode())


def pulse_of(lake: Lake, job: str, term: int) -> Pulse | None:
    """The newest sign of life of a term; None where its driver has not given one, or one that is not whole or not its.

    What it says of processes and files is the word of whoever may write there: nothing is signalled, read or changed
    by it alone.
    """
    try:
        found = Pulse.model_validate_json(bytes(obstore.get(lake.store, _path(job, term)).bytes()))
    except (NotFoundError, FileNotFoundError, ValidationError):
        return None
    return found if (found.job, found.term) == (job, term) else None


def forget(lake: Lake, job: str, *, before: int) -> None:
    """Removes the pulses of terms that are long over."""
    entries = objects_in(lake, f"{CONTROL}/{job}/pulse")
    old = [entry["path"] for entry in entries if entry["path"] < _path(job, before)]
    if old:
        lake.store.delete(old)
