"""One look at everything that is deployed: what is wrong, what has changed, which tables have moved. No JVM."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from deltalake.exceptions import DeltaError
from obstore.exceptions import BaseError
from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import job_now
from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.control.monitoring import alert_log, data_files, marks, mutes
from spark_jobs.control.monitoring.acknowledgements import acknowledged
from spark_jobs.control.monitoring.alert_log import Change, OpenAlerts
from spark_jobs.control.monitoring.columns import Columns
from spark_jobs.control.monitoring.health import Breach, ColumnUsage, PipelineState, examine, summary
from spark_jobs.control.supervision.lease import GONE, last_holder, last_renewal
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry, discrepancies
from spark_jobs.lake.accounting.ledger_table import changes_rows
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch, starts_of
from spark_jobs.lake.checkpoints.offsets import SourceEmptiedError, read_by_batch
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import actions_at, newest_ledger_rows
from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError, first_line
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.health import refuse_vanished, trouble
from spark_jobs.lake.store.records import Records
from spark_jobs.lake.tables import broken_expectations
from spark_jobs.lake.tables.opening import UNREADABLE, open_table
from spark_jobs.lake.tables.watermarks import published
from spark_jobs.plan import logical as plan
from spark_jobs.spec import Definition, DefinitionError, Pipeline
from spark_jobs.spec.shadows import shadow_of

log = logging.getLogger("tidemark.monitor")

_BATCHES_CHECKED = 20

_COMMITS_CHECKED = 100
"""Of a source, at each look: a batch that has read more of them at once is left to `tidemark ledger`."""

_GAP = timedelta(seconds=150)
"""Between two looks, of which there is one each minute: the lake was unreachable, or the monitor down."""


class Report(BaseModel):
    """One pipeline at this look.

    Attributes:
        pipeline: its name.
        job: of the pipeline.
        healthy: whether nothing is wrong.
        muted: whether what is wrong is to fail nothing and to call nobody.
        summary: one line.
        breaches: what is wrong, each in several lines.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    job: str
    healthy: bool
    muted: bool
    summary: str
    breaches: tuple[str, ...] = ()


class Move(BaseModel):
    """A table that has a new version since the last look.

    Attributes:
        table: such as `gold.top_products`.
        version: the newest.
        rows: of that version.
        watermark: published by the pipeline that writes it: up to here its rows are final.
    """

    model_config = ConfigDict(frozen=True)

    table: str
    version: int
    rows: int
    watermark: datetime | None = None


class Observation(BaseModel):
    """What one look has found.

    Attributes:
        at: when.
        reports: one for each deployed pipeline, by name.
        moves: tables with a new version since the look that was reported last.
        changes: what is not reported yet, see `mark_reported`: breaches that began or cleared, not muted ones.
    """

    model_config = ConfigDict(frozen=True)

    at: datetime
    reports: tuple[Report, ...] = ()
    moves: tuple[Move, ...] = ()
    changes: tuple[Change, ...] = ()


class _Versions(PersistedValue):
    """Table -> the version that the look before has seen."""

    seen: Mapping[str, int] = {}


def look(lake: Lake, *, now: datetime) -> Observation:
    """Looks at every deployed pipeline and records breaches that began or cleared; see `mark_reported`.

    Args:
        lake: where.
        now: the time.

    Raises:
        LakeUnavailableError: if the lake is gone, is an empty folder in its place, or cannot be read and written.
    """
    refuse_vanished(lake)
    try:
        _refuse_bare(lake)
        return _look(lake, now=now)
    except (BaseError, DeltaError, OSError) as error:
        raise LakeUnavailableError(
            f"lake {lake.uri}: {trouble(lake) or first_line(error)}. Nothing was recorded at this look, and no "
            "single pipeline is reported. Fix that: streams and this monitor continue by themselves."
        ) from error


def _refuse_bare(lake: Lake) -> None:
    """A disk that is not mounted leaves its mount point: that nothing is deployed there is no good news."""
    if not orders.jobs(lake) and last_holder(lake) is None:
        raise LakeUnavailableError(
            f"lake {lake.uri}: no supervisor has ever watched it, and nothing was ever deployed on it. Is it the right "
            f"one (TIDEMARK_LAKE), and is its disk mounted? If it is new, start a supervisor: `{command('supervise')}`."
        )


def mark_reported(lake: Lake, seen: Observation) -> None:
    """Marks what a look has found as reported, and notes that the monitor lives.

    Until then each further look gives the same changes and moves again.

    Raises:
        LakeUnavailableError: if the lake has gone meanwhile.
    """
    _refuse_bare(lake)
    known = alert_log.records(lake)
    number, before = known.newest()
    after = alert_log.mark_reported(before or OpenAlerts(), seen.changes)
    if after != before:
        known.append(number + 1, after)
    if seen.moves:
        versions = _versions(lake)
        number, noted = versions.newest()
        newest = {move.table: move.version for move in seen.moves}
        versions.append(number + 1, _Versions(seen={**(noted.seen if noted else {}), **newest}))
    marks.mark_look(lake, at=seen.at)


def _look(lake: Lake, *, now: datetime) -> Observation:
    quiet, noted = mutes.muted(lake, now=now), acknowledged(lake)
    known = alert_log.records(lake)
    number, before = known.newest()
    since = before.since() if before else {}
    reports, breaches, definitions = [], {}, []
    wanted, supervised_at = orders.all_desired(lake), _supervised_at(lake, now=now)
    columns, halted = Columns(lake), halts.all_standing(lake)
    broken = broken_expectations.all_broken(lake)
    files_gone = data_files.missing(lake, _to_run(wanted))
    running = {(job, name) for job, desired in wanted.items() for name in desired.running}
    for job, desired in wanted.items():
        driver = job_now(lake, job)
        newest_order = orders.records(lake, job).newest_number()
        for name, order in desired.pipelines.items():
            if order.state == "stopped" and any(other != job and one == name for other, one in running):
                continue  # it has moved to another job
            if order.state == "stopped" and shadow_of(name) is not None:
                continue  # it may be dropped
            try:
                definition = order.parsed()
            except DefinitionError as error:
                found: tuple[Breach, ...] = (_unreadable(error, now),)
                summed_up = "cannot be read"
            else:
                beside = shadow_of(name)
                if beside is None:
                    definitions.append(definition)  # of a shadow nobody is to know before it is promoted
                books = _books(lake, definition, columns, now=now) if order.state == "running" else _Books()
                state = PipelineState(
                    now,
                    definition,
                    order,
                    driver.status,
                    driver.pulse,
                    books.problems,
                    newest_order=newest_order,
                    unreadable=books.unreadable,
                    supervised_at=supervised_at,
                    acknowledged_at=noted.get(name),
                    taken_by_columns=books.taken,
                    files_gone=files_gone.get(name, ()),
                    halt=halted.get(name),
                    broken=broken.get(name),
                )
                found, summed_up = examine(state), summary(state)
                if beside is not None:
                    summed_up = f"shadow of {beside}: {summed_up}"
            found = tuple(replace(breach, since=since.get((name, breach.kind), breach.since)) for breach in found)
            for breach in found:
                breaches[name, breach.kind] = _began(name, job, breach, now=now, muted=name in quiet)
            reports.append(
                Report(
                    pipeline=name,
                    job=job,
                    healthy=not found,
                    muted=name in quiet,
                    summary=summed_up,
                    breaches=tuple(breach.text(now=now) for breach in found),
                )
            )
    _refuse_bare(lake)  # it may have gone during the look: what is written now would begin another one in its place
    columns.keep()
    after, changed = alert_log.after(before or OpenAlerts(), breaches, at=now)
    try:
        alert_log.record(lake, changed)
    except (LakeUnavailableError, DeltaError) as error:
        # Its history matters less than that people are notified; a lake that takes no writes ends the look below.
        log.warning("%d changes are missing in %s: %s", len(changed), alert_log.TABLE, first_line(error))
    if after != (before or OpenAlerts()):
        known.append(number + 1, after)
    # Where not even this can be written, the lake is unreachable, and nothing can be marked as reported.
    marks.mark_begin(lake, at=now)
    return Observation(
        at=now,
        reports=tuple(sorted(reports, key=lambda report: report.pipeline)),
        moves=_moves(lake, definitions),
        changes=alert_log.to_report(after, muted=quiet),
    )


def _supervised_at(lake: Lake, *, now: datetime) -> datetime | None:
    """When a supervisor gave its last sign of life.

    Where the lake was unreachable there was none for as long, and the supervisor comes back within half a minute of
    the lake: one that lived at the look before such a gap has until the next look.
    """
    renewed, looked = last_renewal(lake), marks.last_begin(lake)
    if renewed is None or looked is None or now - looked <= _GAP or looked - renewed > GONE:
        return renewed
    return now


def _to_run(wanted: Mapping[str, orders.DesiredState]) -> Iterator[Definition]:
    for desired in wanted.values():
        for order in desired.pipelines.values():
            if order.state == "running":
                # One that cannot be read has a breach of its own.
                with contextlib.suppress(DefinitionError):
                    yield order.parsed()


def _began(name: str, job: str, breach: Breach, *, now: datetime, muted: bool) -> Change:
    return Change(
        pipeline=name,
        job=job,
        kind=breach.kind,
        began=True,
        at=now,
        since=breach.since,
        message=breach.text(now=now),
        muted=muted,
    )


def _unreadable(error: DefinitionError, now: datetime) -> Breach:
    return Breach("not-running", str(error).splitlines()[0], now, "deploy it again with this version of Tidemark")


@dataclass(frozen=True)
class _Books:
    """The newest batches of a pipeline.

    Attributes:
        problems: what they do not agree on.
        taken: of an ingest, what its columns took.
        unreadable: why its table cannot be read, if it cannot.
    """

    problems: tuple[str, ...] = ()
    taken: ColumnUsage = field(default_factory=ColumnUsage)
    unreadable: str | None = None


def _books(lake: Lake, definition: Definition, columns: Columns, *, now: datetime) -> _Books:
    epoch = current_epoch(lake, definition.name)
    if epoch is None:
        return _Books()
    try:
        rows = newest_ledger_rows(lake, definition.sink.table, definition.name, epoch.number, _BATCHES_CHECKED)
    except MissingTableError:
        return _Books()
    except LakeUnavailableError as error:
        return _Books(unreadable=str(error))
    found = discrepancies(rows, plan.build(definition).equations, from_the_start=False)
    if isinstance(definition, Pipeline):
        return _Books(found + _source(lake, definition, epoch, rows[-2:]))
    return _Books(found, columns.taken(definition, epoch.number, (row for _, row in rows), now=now))


def _source(lake: Lake, definition: Pipeline, epoch: Epoch, rows: Sequence[tuple[int, LedgerEntry]]) -> tuple[str, ...]:
    """What the newest batch has read, held against the logs of its sources as they are now; the rest is the audit's."""
    starts = starts_of(lake, epoch)
    if starts is None or len(rows) < 2 or rows[-1][1].kind == "restore":
        return ()
    (_, before), (batch_id, row) = rows
    try:
        held = read_by_batch(lake, definition, starts, before.sources, row.sources, most=_COMMITS_CHECKED).rows
    except SourceEmptiedError as error:
        return (str(error),)
    except (*UNREADABLE, BaseError, ValueError) as error:
        # Of one pipeline's source; the others are looked at all the same.
        return (f"its source cannot be read: {first_line(error)}",)
    read = row["read"] + row["heartbeats"]
    if held is None or held == read:
        return ()
    return (f"batch {batch_id}: read {read} rows, its source holds {held} between its offsets now",)


def _moves(lake: Lake, definitions: list[Definition]) -> tuple[Move, ...]:
    before = _versions(lake).newest()[1]
    seen = before.seen if before else {}
    moved = []
    watermarks = _published(lake) if definitions else {}
    for definition in definitions:
        table = definition.sink.table
        try:
            opened = open_table(lake, table)
        except (MissingTableError, LakeUnavailableError):
            continue  # one that cannot be read is its pipeline's breach
        if opened.version() != seen.get(table) and _has_other_rows(lake, table, opened.version(), seen.get(table, -1)):
            rows, watermark = opened.count(), watermarks.get(definition.name)
            if watermark is not None and watermark.timestamp() <= 0:
                watermark = None  # no event has moved it yet
            moved.append(Move(table=table, version=opened.version(), rows=rows, watermark=watermark))
    return tuple(moved)


def _has_other_rows(lake: Lake, table: str, version: int, seen: int) -> bool:
    """Whether rows have changed since a version; a compaction changes none."""
    for number in range(version, max(seen, version - _COMMITS_CHECKED), -1):
        if (actions := actions_at(lake, table, number)) is None or changes_rows(actions):
            return True
    return version - seen > _COMMITS_CHECKED


def _versions(lake: Lake) -> Records[_Versions]:
    return Records(lake, f"{CONTROL}/_monitor/versions", _Versions)


def _published(lake: Lake) -> Mapping[str, datetime]:
    try:
        return published(lake)
    except UNREADABLE:
        return {}  # a damaged table of watermarks is told by the pipelines that write it
