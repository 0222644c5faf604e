"""Replays as somebody who may not run Spark asks for them: what would be read, and that it is not to be."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commit_records.history import newest_batch
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables import decisions
from spark_jobs.lake.tables.quarantine import QuarantineError, Selection, described, selected, table_of, waiting
from spark_jobs.pipelines import registry
from spark_jobs.plan import logical
from spark_jobs.plan.quarantine import NO_SUCH_KEY, NOT_AGAIN
from spark_jobs.spec import Ingest, Pipeline, definition_from_json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Found:
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


def look(lake: Lake, pipeline: str, selection: Selection) -> Found:
    """What a replay of a registered pipeline's quarantine would read; nothing is written.

    Raises:
        QuarantineError: if it sets nothing aside, or a reason is named of which no row can be replayed.
        MissingTableError: if it has not run here.
    """
    definition, epoch = registry().get(pipeline), current_epoch(lake, pipeline)
    if definition is None:
        raise QuarantineError(f"pipeline `{pipeline}`: expected a registered one. Nothing was replayed.")
    table_of(definition)
    if epoch is None:
        raise MissingTableError(f"pipeline `{pipeline}` has not run on {lake.uri} yet: there is nothing to replay.")
    if not isinstance(definition, Ingest):
        return _look_at_lookups(lake, definition, epoch.number, selection)
    ingest = definition.model_copy(update={"source": definition_from_json(epoch.definition).source})
    found = selected(lake, ingest, epoch.number, selection)
    lines = [f"{pipeline}: {found.rows:,} rows of {table_of(ingest)}, version {found.version}, would be read again"]
    lines += [f"reads    {reason}: {rows:,}" for reason, rows in found.reasons.items()]
    lines += [f"keeps    {reason}: {rows:,}; {NOT_AGAIN[why]}" for (reason, why), rows in found.left.items()]
    return Found(found.reasons, tuple(lines))


def _look_at_lookups(lake: Lake, definition: Pipeline, epoch: int, selection: Selection) -> Found:
    newest = newest_batch(lake, definition.sink.table, definition.name, epoch)
    if newest is None:
        raise MissingTableError(f"pipeline `{definition.name}`: no batch of it has ended: there is nothing to replay.")
    found = waiting(lake, definition, epoch, newest[0], selection)
    tables = ", ".join(dict.fromkeys(step.table for step in logical.build(definition).lookups))
    reasons = {NO_SUCH_KEY: found.rows} if found.rows else {}
    said = f"{definition.name}: {found.rows:,} rows of {table_of(definition)}, version {found.version}"
    return Found(reasons, (f"{said}, would be looked up again in {tables}",))


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
