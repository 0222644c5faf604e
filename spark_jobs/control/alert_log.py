"""`ops/alerts`: every breach with its begin and its end, for whoever reads Delta; and which are open."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables import append_rows, open_table

TABLE = "ops.alerts"

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("told_at", _TIME),  # `at` is a word of SQL
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
        muted: whether nobody is called.
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


def open_breaches(lake: Lake) -> dict[tuple[str, str], Change]:
    """(pipeline, kind) -> how it began, of the breaches that have not cleared."""
    try:
        table = open_table(lake, TABLE)
    except MissingTableError:
        return {}
    found: dict[tuple[str, str], Change] = {}
    for row in sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["told_at"]):
        key = row["pipeline"], row["kind"]
        if row["event"] == "began":
            found[key] = Change(**{name: row[name] for name in _SAME}, at=row["told_at"], began=True)
        else:
            found.pop(key, None)
    return found


_SAME = ("job", "pipeline", "kind", "since", "message", "muted")


def record(lake: Lake, changes: Sequence[Change]) -> None:
    """Appends what has changed."""
    if changes:
        rows = [
            {
                **change.model_dump(include=set(_SAME)),
                "told_at": change.at,
                "event": "began" if change.began else "cleared",
            }
            for change in changes
        ]
        append_rows(lake, TABLE, pa.Table.from_pylist(rows, schema=_SCHEMA))


def changes(
    before: Iterable[tuple[tuple[str, str], Change]], now: dict[tuple[str, str], Change], *, at: datetime
) -> tuple[Change, ...]:
    """What has begun and what has cleared between two looks.

    Args:
        before: the breaches that were open.
        now: those that are.
        at: the time of the second look.
    """
    known = dict(before)
    begun = [change for key, change in now.items() if key not in known]
    cleared = [
        change.model_copy(update={"began": False, "at": at, "message": f"cleared: {change.message.splitlines()[0]}"})
        for key, change in known.items()
        if key not in now
    ]
    return (*begun, *cleared)
