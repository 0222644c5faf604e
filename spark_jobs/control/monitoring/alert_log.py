"""Breaches over time: which are open and who knows of them, and `ops.alerts` for whoever reads Delta.

What is open stands in a small record (`_control/_monitor/open/<number>.json`): a look costs the same after years.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records
from spark_jobs.lake.tables.appends import append_rows

TABLE = "ops.alerts"

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("reported_at", _TIME),  # `at` is a word of SQL
        ("job", pa.string()),
        ("pipeline", pa.string()),
        ("kind", pa.string()),
        ("event", pa.string()),
        ("since", _TIME),
        ("message", pa.string()),
        ("muted", pa.bool_()),
    ]
)


class Change(BaseModel):
    """A breach that began, or has cleared.

    Attributes:
        pipeline: whose.
        job: of the pipeline.
        kind: of the breach.
        began: False: it has cleared.
        at: when the monitor saw it.
        since: when it began.
        message: in words.
        muted: whether nobody was to be called when the monitor saw it.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    job: str
    kind: str
    began: bool
    at: datetime
    since: datetime
    message: str
    muted: bool = False


class Entry(BaseModel):
    """A breach that is open, or whose end is not reported yet.

    Attributes:
        change: how it began.
        told: whether its begin has been reported.
        cleared_at: when it ended; None: it goes on.
    """

    model_config = ConfigDict(frozen=True)

    change: Change
    told: bool = False
    cleared_at: datetime | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What tells two alerts apart: the pipeline and the kind."""
        return self.change.pipeline, self.change.kind

    @property
    def cleared(self) -> Change:
        """The same alert with the time at which it cleared."""
        first = self.change.message.splitlines()[0]
        changes = {"began": False, "at": self.cleared_at, "message": f"cleared: {first}"}
        return self.change.model_copy(update=changes)


class OpenAlerts(PersistedValue):
    """An alert that has begun and not cleared."""

    entries: tuple[Entry, ...] = ()

    def since(self) -> Mapping[tuple[str, str], datetime]:
        """(pipeline, kind) -> since when, of the breaches that go on."""
        return {entry.key: entry.change.since for entry in self.entries if entry.cleared_at is None}


def records(lake: Lake) -> Records[OpenAlerts]:
    """What is open, with its history."""
    return Records(lake, f"{CONTROL}/_monitor/open", OpenAlerts)


def after(
    before: OpenAlerts, now: Mapping[tuple[str, str], Change], *, at: datetime
) -> tuple[OpenAlerts, tuple[Change, ...]]:
    """What is open after a look, and what the look has changed.

    Args:
        before: what was open.
        now: (pipeline, kind) -> the breaches that are.
        at: the time of the look.
    """
    known = {entry.key: entry for entry in before.entries}
    entries, changed = [], []
    for key, change in now.items():
        entry = known.get(key)
        if entry is None or entry.cleared_at is not None:
            changed.append(change)
        # One that came back before its end was reported goes on for whoever was notified of its begin.
        entries.append(entry.model_copy(update={"cleared_at": None}) if entry else Entry(change=change))
    for key, entry in known.items():
        if key in now:
            continue
        ended = entry.model_copy(update={"cleared_at": entry.cleared_at or at})
        if entry.cleared_at is None:
            changed.append(ended.cleared)
        if ended.told:
            entries.append(ended)
    return OpenAlerts(entries=tuple(entries)), tuple(changed)


def to_report(state: OpenAlerts, *, muted: Iterable[str]) -> tuple[Change, ...]:
    """What is not reported yet. A mute puts off the begin of a breach; an end is reported if the begin was."""
    quiet = set(muted)
    begun = [e.change for e in state.entries if e.cleared_at is None and not e.told and e.change.pipeline not in quiet]
    return (*begun, *(entry.cleared for entry in state.entries if entry.cleared_at is not None))


def mark_reported(state: OpenAlerts, changes: Iterable[Change]) -> OpenAlerts:
    """The same after these have been reported."""
    keys = {(change.pipeline, change.kind) for change in changes}
    left = (e for e in state.entries if e.cleared_at is None or e.key not in keys)
    return OpenAlerts(entries=tuple(e.model_copy(update={"told": True}) if e.key in keys else e for e in left))


def record(lake: Lake, changes: Sequence[Change]) -> None:
    """Appends what has changed to `ops.alerts`."""
    if changes:
        rows = [
            {
                **change.model_dump(include={"job", "pipeline", "kind", "since", "message", "muted"}),
                "reported_at": change.at,
                "event": "began" if change.began else "cleared",
            }
            for change in changes
        ]
        append_rows(lake, TABLE, pa.Table.from_pylist(rows, schema=_SCHEMA))
