"""Replays as somebody who may not run Spark asks for them: what would be read, and that it is not to be."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spark_jobs.lake import Lake
from spark_jobs.lake.tables import decisions
from spark_jobs.lake.tables.quarantine import QuarantineError, Selection, described, table_of
from spark_jobs.operations.replay.lookup_plan import plan_lookup
from spark_jobs.operations.replay.plan import plan_replay
from spark_jobs.operations.replay.text import lookup_text, replay_text
from spark_jobs.pipelines import registry
from spark_jobs.plan.quarantine import NO_SUCH_KEY, SKIPPED
from spark_jobs.spec import Ingest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ReplayPreview:
    """What a replay would read.

    Attributes:
        reasons: reason -> rows.
        lines: the same, and what is left, for people.
    """

    reasons: Mapping[str, int]
    lines: tuple[str, ...]

    @property
    def rows(self) -> int:
        """That would be read."""
        return sum(self.reasons.values())


def asked_for(reasons: Sequence[str], since: str | None, until: str | None) -> Selection:
    """The rows that a form names."""
    return Selection(reasons=tuple(reasons), since_us=_us("since", since), until_us=_us("until", until))


def look(lake: Lake, pipeline: str, selection: Selection) -> ReplayPreview:
    """What a replay of a registered pipeline's quarantine would read; nothing is written.

    Raises:
        QuarantineError: if it sets nothing aside, or a reason is named of which no row can be replayed.
        MissingTableError: if it has not run here.
    """
    definition = registry().get(pipeline)
    if definition is None:
        raise QuarantineError(f"pipeline `{pipeline}`: expected a registered one. Nothing was replayed.")
    table_of(lake, definition)
    if isinstance(definition, Ingest):
        plan = plan_replay(lake, definition, selection)
        return ReplayPreview(plan.found.reasons, tuple(replay_text(plan).split("\n")))
    looked = plan_lookup(lake, definition, selection)
    found = {NO_SUCH_KEY: looked.found.rows - looked.found.skipped, SKIPPED: looked.found.skipped}
    reasons = {reason: rows for reason, rows in found.items() if rows}
    return ReplayPreview(reasons, tuple(lookup_text(looked).split("\n")))


def reject(lake: Lake, pipeline: str, reasons: Mapping[str, int], *, by: str, comment: str) -> None:
    """Records that somebody has decided against a replay."""
    decisions.note(
        lake,
        pipeline=pipeline,
        action="reject",
        decided_by=by,
        subject=f"replay of {sum(reasons.values()):,} rows ({described(reasons)})",
        decision_id=f"replay-{uuid.uuid4().hex[:12]}",
        comment=comment,
    )


def _us(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise QuarantineError(f"{name}: expected an instant such as 2026-11-24T06:00:00Z, got {text!r}.") from None
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
