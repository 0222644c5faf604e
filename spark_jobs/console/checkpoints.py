"""Checkpoints as a person reads them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from rich.console import Console

from spark_jobs.console.reports import print_rows
from spark_jobs.lake.checkpoints.describing import Description, Summary
from spark_jobs.lake.checkpoints.savepoints import Savepoint
from spark_jobs.spec.durations import format_duration

if TYPE_CHECKING:
    from spark_jobs.operations.state.execute import StateRows


def print_summaries(console: Console, found: Sequence[Summary], *, now: datetime | None = None) -> None:
    """Prints what `tidemark checkpoints list` shows: a line for each checkpoint."""
    now = now or datetime.now(UTC)
    head = ("pipeline", "epoch", "planned", "committed", "watermark (UTC)", "MB", "files", "newest snapshot")
    rows = [
        (
            each.pipeline,
            each.epoch,
            _shown(each.planned),
            _shown(each.committed),
            _shown(each.watermark),
            _mb(each.size_bytes),
            each.files,
            "-" if each.snapshot_at is None else f"{_age(now - each.snapshot_at)} ago",
        )
        for each in found
    ]
    print_rows(console, head, rows)


def print_savepoints(console: Console, found: Sequence[Savepoint]) -> None:
    """Prints what `tidemark savepoints list` shows: a line for each savepoint."""
    head = ("pipeline", "name", "taken (UTC)", "batch", "epoch", "kind", "MB", "note")
    rows = [
        (
            each.pipeline,
            each.name,
            f"{each.taken_at:%Y-%m-%d %H:%M:%S}",
            each.batch,
            each.epoch,
            each.kind,
            _mb(each.size_bytes),
            each.note,
        )
        for each in found
    ]
    print_rows(console, head, rows)


def description_lines(found: Description) -> list[str]:
    """What a checkpoint holds, less its state."""
    lines = [
        f"{found.pipeline}, epoch {found.epoch}, begun {found.begun_at:%Y-%m-%d %H:%M:%S} UTC",
        f"definition   {found.definition} (of its text, SHA-256)",
        f"owner        its table is {'nobody’s' if found.owner is None else f'that of {found.owner}'}",
        f"query        {_shown(found.query)}",
        f"batches      planned {_shown(found.planned)}, committed {_shown(found.committed)}",
        f"shown        batch {_shown(found.batch)}",
        f"watermark    {_shown(found.watermark)}",
        *(f"source {number}     {offset}" for number, offset in enumerate(found.offsets)),
    ]
    return [*lines, *([f"unreadable   {found.unreadable}"] if found.unreadable else [])]


def print_stores(console: Console, found: Description) -> None:
    """Prints the state of a checkpoint, a line for each store and partition."""
    if not found.stores:
        return
    head = ("operator", "name", "part", "store", "rows", "in snapshot", "changelogs", "snapshots", "bytes")
    rows = [
        (
            each.operator,
            each.name,
            each.partition,
            each.store,
            _shown(each.rows),
            "-" if each.snapshot is None else f"{each.snapshot_rows} at {each.snapshot}",
            f"{each.changelogs}, newest {_shown(each.newest_changelog)}",
            f"{each.snapshots}, newest {_shown(each.newest_snapshot)}",
            each.size_bytes,
        )
        for each in found.stores
    ]
    print_rows(console, head, rows)


def print_costs(console: Console, found: Description) -> None:
    """Prints what the newest batches have cost, a line for each."""
    if found.costs:
        head = ("batch", "planned (UTC)", "seconds", "bytes of state")
        print_rows(
            console,
            head,
            [(each.batch, _shown(each.planned_at), each.seconds, each.state_bytes) for each in found.costs],
        )


def _shown(value: object) -> object:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return "-" if value is None else value


def _mb(size: int) -> Decimal:
    return Decimal(size).scaleb(-6).quantize(Decimal("0.01"))


def _age(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    coarse = 86_400 if seconds >= 2 * 86_400 else 3600 if seconds >= 7200 else 60 if seconds >= 120 else 1
    return format_duration(timedelta(seconds=max(seconds, 1) // coarse * coarse or 1))


def state_heading(pipeline: str, found: "StateRows") -> str:
    """What stands above rows of state."""
    side = f", {found.side} side" if found.side else ""
    reached = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=found.watermark_ms)
    watermark = f"watermark {_shown(reached)} UTC" if found.watermark_ms else "no watermark"
    return f"{pipeline}: state of {found.name} (operator {found.operator}{side}) after batch {found.batch}, {watermark}"
