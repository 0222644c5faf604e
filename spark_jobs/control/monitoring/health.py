"""Whether a pipeline needs a person: a function of what its driver and its supervisor say. No clock, no lake.

Each kind of breach has a paragraph of the same name in docs/operate/runbook.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spark_jobs.control.desired.orders import Order
from spark_jobs.control.supervision.lease import GONE
from spark_jobs.control.supervision.pulse import Figures, PipelinePulse, Pulse
from spark_jobs.control.supervision.status import Status
from spark_jobs.lake.checkpoints.halts import Halt
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import ConcurrentDriverError
from spark_jobs.lake.tables.broken_expectations import BrokenExpectations
from spark_jobs.spec import Definition, Pipeline
from spark_jobs.spec.durations import format_duration

RUNBOOK = "docs/operate/runbook.md"

START = timedelta(minutes=2)
"""How long a pipeline may take from its order to its first progress."""

STALE = timedelta(seconds=30)
"""A pulse that is older is that of a driver which is gone, or cannot write to the lake; and a Spark that has not
answered for so long hangs."""

_HOUR = timedelta(hours=1)
FEWEST_EVENTS = 100
"""A share of fewer events says nothing."""


@dataclass(frozen=True)
class Breach:
    """Something that is wrong with one pipeline.

    Attributes:
        kind: its name in the runbook, such as `watermark-lag`.
        what: what is wrong, with the figures; no values of events, but that an error of Spark's may hold one.
        since: since when, as far as that is known.
        remedy: what to do first.
    """

    kind: str
    what: str
    since: datetime
    remedy: str

    def text(self, *, now: datetime) -> str:
        """As a person reads it."""
        return (
            f"{self.what}\n"
            f"Since {self.since:%Y-%m-%d %H:%M:%S} UTC ({span(now - self.since)}).\n"
            f"What to do: {self.remedy}\n"
            f"More: {RUNBOOK}#{self.kind}"
        )


@dataclass(frozen=True)
class ColumnUsage:
    """What the columns of an ingest took in the batches of the last ten minutes.

    Attributes:
        events: that went to bronze.
        searched: of these, searched for fields that no column takes.
        unknown: of these, with such a field.
        fields: some of these fields.
        nulls: column that held values before -> events without one.
    """

    events: int = 0
    searched: int = 0
    unknown: int = 0
    fields: tuple[str, ...] = ()
    nulls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineState:
    """All that is known of one deployed pipeline.

    Attributes:
        now: the time.
        definition: as it was deployed.
        order: what is wanted of it.
        status: of its job's driver; None: no supervisor has looked yet.
        pulse: of that driver; None: none has spoken in the newest term.
        books: what the newest batches of its ledger do not agree on; empty where they balance.
        newest_order: number of the job's newest order; a status of an older one knows nothing of it.
        unreadable: why its table cannot be read; None where it can.
        supervised_at: when a supervisor gave its last sign of life; None: none has ever watched the lake.
        acknowledged_at: up to when somebody knows of its restarts.
        taken_by_columns: of an ingest, what its columns took lately.
        files_gone: which data files of its tables are gone, table by table; empty where none is known to be.
        halt: the batch about which a person has to decide; None: it is not halted.
        broken: what the newest check of its table has found; None: nothing, or there was none.
    """

    now: datetime
    definition: Definition
    order: Order
    status: Status | None
    pulse: Pulse | None
    books: tuple[str, ...] = ()
    newest_order: int = 0
    unreadable: str | None = None
    supervised_at: datetime | None = None
    acknowledged_at: datetime | None = None
    files_gone: tuple[str, ...] = ()
    taken_by_columns: ColumnUsage = ColumnUsage()
    halt: Halt | None = None
    broken: BrokenExpectations | None = None

    @property
    def taken(self) -> bool:
        """Whether a supervisor has seen what is ordered."""
        return self.pipeline is not None or (self.status is not None and self.status.order >= self.newest_order)

    @property
    def supervised(self) -> bool:
        """Whether a supervisor is at work, as far as is known."""
        return self.supervised_at is None or self.now - self.supervised_at <= GONE

    @property
    def lost(self) -> tuple[str, datetime] | None:
        """What is wrong with its driver's signs of life, and since when; see `lost`."""
        return lost(self.pulse, now=self.now) if self.pulse else None

    @property
    def pipeline(self) -> PipelinePulse | None:
        """What the driver says of it, in the generation that is wanted."""
        found = self.pulse.pipelines.get(self.definition.name) if self.pulse else None
        return found if found is not None and found.generation >= self.order.generation else None


def lost(pulse: Pulse, *, now: datetime) -> tuple[str, datetime] | None:
    """What tells that a driver is gone or hangs, and since when; None where its signs of life are as they should be.

    Args:
        pulse: its newest.
        now: the time.
    """
    if now - pulse.at > STALE:
        return f"gives no sign of life: the last is {span(now - pulse.at)} old", pulse.at
    silent = timedelta(seconds=pulse.spark_silent_s)
    if silent > STALE:
        return f"hangs: Spark has not answered in it for {span(silent)}", pulse.at - silent
    return None


def examine(seen: PipelineState) -> tuple[Breach, ...]:
    """What is wrong with a pipeline; empty where nothing is, or where it is not to run."""
    if seen.order.state != "running":
        return ()
    down = (*_halted(seen), *_not_running(seen))
    breaches = [*_unsupervised(seen), *down]
    pipeline = seen.pipeline
    if pipeline is not None and not down:
        breaches += _slow(seen, pipeline)
    if pipeline is not None:
        breaches += _shares(seen, pipeline.figures)
    breaches += _shape(seen)
    if seen.unreadable is not None:
        remedy = "see who else writes to it; what its pipeline says of it stands in the driver's log"
        breaches.append(Breach("table-unreadable", f"Its table cannot be read: {seen.unreadable}", seen.now, remedy))
    if seen.files_gone:
        name = seen.definition.name
        what = f"Data files of its tables are gone. {'. '.join(seen.files_gone)}."
        remedy = (
            "bring them back from a copy of the lake; only where there is none: "
            f"`{command('stop', name)}`, `{command('reset', name, '--empty-tables')}`, `{command('deploy', name)}`"
        )
        breaches.append(Breach("data-file-missing", what, seen.now, remedy))
    if seen.books:
        breaches.append(
            Breach(
                "unbalanced-ledger",
                f"The ledger does not balance: {'; '.join(seen.books[:3])}.",
                seen.now,
                f"run `{command('ledger', seen.definition.name)}`; do not reset before you know why.",
            )
        )
    return (*breaches, *_expectations(seen), *_restarts(seen))


def summary(seen: PipelineState) -> str:
    """One line about a pipeline that is well, or what it does instead."""
    if seen.order.state == "stopped":
        return "stopped, as ordered"
    pipeline = seen.pipeline
    if pipeline is None:
        return "starting"
    figures = pipeline.figures
    parts: list[str] = [f"its driver {seen.lost[0]}" if seen.lost else "halted" if seen.halt else pipeline.state]
    if figures.batch_id is not None:
        parts.append(f"batch {figures.batch_id} of epoch {figures.epoch}")
    parts.append(f"{figures.read:,} events")
    if figures.input_rows_per_s is not None and not seen.lost:
        parts.append(f"{figures.input_rows_per_s:,.0f} events/s")
    if figures.rows_behind is not None:
        parts.append(f"{figures.rows_behind:,} behind")
    if figures.watermark_ms:
        parts.append(f"final up to {_clock(figures.watermark_ms)}")
    restarts = _recent_restarts(seen)
    if restarts:
        what = "restarted" if pipeline.state == "running" else "failed"
        parts.append(f"{what} {_times(restarts)} within the hour, last at {restarts[-1]:%H:%M:%S}")
    return ", ".join(parts)


# --- kinds ---


def _unsupervised(seen: PipelineState) -> Iterator[Breach]:
    start, ordered = f"start one: `make up`, or `{command('supervise')}`", seen.order.ordered_at
    if seen.supervised_at is not None and not seen.supervised:
        what = (
            f"No supervisor watches it: the last one has been silent for {span(seen.now - seen.supervised_at)}. A "
            "running driver continues; one that ends or hangs is not restarted."
        )
        yield Breach("no-supervisor", what, seen.supervised_at, start)
    elif (seen.status is None or not seen.taken) and seen.now - ordered > START:
        yield Breach("no-supervisor", "No supervisor has taken the order.", ordered, start)


def _halted(seen: PipelineState) -> Iterator[Breach]:
    if seen.halt is not None:
        name = seen.definition.name
        aside = {"quarantine": "`--quarantine` (set the rows aside)", "skip": "`--skip` (set the whole batch aside)"}
        remedy = (
            f"see `{command('status')}`, then decide: `{command('resume', name)}` (try the batch again), with "
            f"{' or '.join(aside[choice] for choice in seen.halt.choices if choice in aside)}; or the DAG Resume halted"
        )
        yield Breach("halted", f"It is halted: {seen.halt.what}.", seen.halt.since, remedy)


def _expectations(seen: PipelineState) -> Iterator[Breach]:
    # One without expectations any more is not checked again.
    if seen.broken is not None and seen.definition.is_checked:
        said = "; ".join(f"{name}: {observed}" for name, observed in seen.broken.expectations.items())
        name = seen.definition.name
        remedy = (
            f"see what `{command('check', name)}`, or the log of the DAG Check quality, shows; it clears when a check "
            "of newer rows finds nothing"
        )
        yield Breach(
            "broken-expectation", f"{seen.broken.table} is not as expected: {said}.", seen.broken.since, remedy
        )


def _not_running(seen: PipelineState) -> Iterator[Breach]:
    status, pipeline, name = seen.status, seen.pipeline, seen.definition.name
    ordered = seen.order.ordered_at
    see = f"see the driver's log{f' ({seen.pulse.log})' if seen.pulse and seen.pulse.log else ''}"
    if seen.halt is None and pipeline is not None and _is_down(pipeline):
        given_up = pipeline.state == "failed"
        again = "is not started again until it is deployed" if given_up else "is being tried again"
        kind = "checkpoint-failing" if _of_the_checkpoint(pipeline) else "not-running"
        then = f"then `{command('deploy', name)}`" if given_up else "if it does not pass by itself"
        remedy = f"fix what it says, {then}"
        yield Breach(kind, f"It does not run: it {again}. {pipeline.error}", pipeline.since, remedy)
    elif status is None or not seen.taken:
        return  # what it did before is of no account; `no-supervisor` tells if that lasts
    elif status.state in ("failed", "backing_off", "stopped"):
        end = status.last_end if status.state != "stopped" else None
        said = f" It said last: {status.last_lines[-1]}" if status.last_lines and not end else ""
        code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
        if end:
            said, see = f" Its cause: {end.cause}.", f"see the log of the driver that ended: {end.where}"
        again = "" if status.state == "backing_off" else " and is not started again until something is deployed"
        # A driver that died is back in a second; if it dies again and again, `restarts` tells.
        patience = {"failed": timedelta(0), "backing_off": STALE, "stopped": START}[status.state]
        # Also where it lies ahead: then a clock goes wrong, and nobody knows how long it has been wrong.
        if abs(seen.now - max(status.since, ordered)) >= patience:
            what = f"Its driver has ended{code}{again}.{said}"
            yield Breach("not-running", what, status.since, f"{see}, then `{command('deploy', name)}`")
    elif seen.lost:
        what, since = seen.lost
        remedy = (
            f"the supervisor replaces it after a minute; if it does not, see `{command('status')}`"
            if seen.supervised
            else f"start a supervisor, which ends it and starts another: `make up`, or `{command('supervise')}`"
        )
        yield Breach("not-running", f"Its driver {what}.", since, remedy)
    elif seen.halt is None and (pipeline is None or pipeline.progressed_at is None):
        # A driver that was started again begins from its checkpoint, and its first batch may take as long as any.
        began = max(ordered, status.since, seen.pulse.started_at if seen.pulse else ordered)
        silence = seen.definition.alerts.max_silence
        if silence is not None and seen.now - began > max(START, silence):
            yield Breach("no-progress", "It has not made any progress since it was started.", began, see)


def _slow(seen: PipelineState, pipeline: PipelinePulse) -> Iterator[Breach]:
    figures, limits, now = pipeline.figures, seen.definition.alerts, seen.now
    progressed = pipeline.progressed_at
    if limits.max_silence is not None and progressed is not None and now - progressed > limits.max_silence:
        what = f"No batch has ended for {span(now - progressed)}; the limit is {format_duration(limits.max_silence)}."
        yield Breach("no-progress", what, progressed, "see the driver's log; a batch may hang in a slow store")
    if limits.max_watermark_lag is not None and figures.watermark_ms is not None:
        lag = now - _instant(figures.watermark_ms)
        if lag > limits.max_watermark_lag:
            what = (
                f"Results are final up to {_clock(figures.watermark_ms)} only, {span(lag)} behind the clock; "
                f"the limit is {format_duration(limits.max_watermark_lag)}."
            )
            since = _instant(figures.watermark_ms) + limits.max_watermark_lag
            yield Breach("watermark-lag", what, since, "see whether the source sends, and events of which time")
    yield from _lags(seen, figures)
    yield from _durations(seen, figures)
    sizes = (
        ("state-rows", "Its state holds", figures.state_rows, limits.max_state_rows, "groups"),
        ("state-bytes", "Its state takes", figures.state_bytes, limits.max_state_bytes, "bytes"),
        ("checkpoint-size", "Its checkpoint takes", figures.checkpoint_bytes, limits.max_checkpoint_bytes, "bytes"),
    )
    for kind, what, value, limit, unit in sizes:
        if value is not None and limit is not None and value > limit:
            told = f"{what} {value:,} {unit}; the limit is {limit:,}."
            yield Breach(kind, told, now, "see which keys grow, and whether the watermark moves on")


def _lags(seen: PipelineState, figures: Figures) -> Iterator[Breach]:
    limits, now = seen.definition.alerts, seen.now
    rows, ms = figures.rows_behind, figures.behind_ms
    unit = "events" if isinstance(seen.definition, Pipeline) else seen.definition.source.unit
    remedy = "see whether it runs batch after batch; then give it more cores, or a job of its own"
    if limits.max_rows_behind is not None and rows is not None and rows > limits.max_rows_behind:
        told = f"Its source has {rows:,} {unit} that it has not read; the limit is {limits.max_rows_behind:,}."
        yield Breach("source-lag", told, now, remedy)
    elif limits.max_time_behind is not None and ms is not None and ms > _ms(limits.max_time_behind):
        told = (
            f"The oldest of {rows or 0:,} {unit} that it has not read came {span(timedelta(milliseconds=ms))} ago; the "
            f"limit is {format_duration(limits.max_time_behind)}."
        )
        yield Breach("source-lag", told, now - timedelta(milliseconds=ms) + limits.max_time_behind, remedy)


def _durations(seen: PipelineState, figures: Figures) -> Iterator[Breach]:
    limits, now = seen.definition.alerts, seen.now
    measured = (
        ("processing-latency", "From bronze to the result it takes", figures.latency_ms, limits.max_processing_latency),
        ("batch-duration", "Its newest batch took", figures.batch_ms, limits.max_batch_duration),
        ("checkpoint-duration", "Its checkpoint took", figures.checkpoint_ms, limits.max_checkpoint_duration),
    )
    for kind, what, value, limit in measured:
        if value is not None and limit is not None and value > _ms(limit):
            told = f"{what} {span(timedelta(milliseconds=value))}; the limit is {format_duration(limit)}."
            yield Breach(kind, told, now, "see in ops.metrics when that began and which phase grew")
    since = figures.backpressure_since
    if limits.backpressure_after is not None and since is not None and now - since > limits.backpressure_after:
        told = (
            f"It does not keep up: for {span(now - since)} its batches have been longer than its trigger's interval, "
            f"or one has not ended while events waited, or its backlog has grown ({figures.rows_behind or 0:,} behind, "
            f"{figures.input_rows_per_s or 0:,.0f} events/s read, {figures.processed_rows_per_s or 0:,.0f} events/s "
            "possible)."
        )
        yield Breach("backpressure", told, since, "give it more cores, larger batches or a job of its own")


def _shares(seen: PipelineState, figures: Figures) -> Iterator[Breach]:
    limits, name = seen.definition.alerts, seen.definition.name
    read = figures.recent_read
    shares = (
        ("late-share", "late", figures.recent_late, limits.max_late_share, f"see `{command('late', name)}`"),
        (
            "quarantine-share",
            "set aside",
            figures.recent_quarantined,
            limits.max_quarantine_share,
            f"see `{command('quarantine', name)}`",
        ),
    )
    for kind, what, count, limit, remedy in shares:
        if limit is not None and read >= FEWEST_EVENTS and count > limit * read:
            told = (
                f"{count:,} of {read:,} events of the last ten minutes were {what} ({count / read:.1%}); the limit is "
                f"{limit:.1%}."
            )
            yield Breach(kind, told, seen.now, remedy)


def _shape(seen: PipelineState) -> Iterator[Breach]:
    limits, usage = seen.definition.alerts, seen.taken_by_columns
    limit, enough = limits.max_unknown_share, usage.searched >= FEWEST_EVENTS
    if limit is not None and enough and usage.unknown > limit * usage.searched:
        told = (
            f"{usage.unknown:,} of {usage.searched:,} events of the newest batches have fields that no column takes "
            f"({', '.join(usage.fields)}); the limit is {limit:.1%}."
        )
        remedy = "see whether a column was renamed; if nobody needs them, alerts=Alerts(max_unknown_share=None)"
        yield Breach("unknown-fields", told, seen.now, remedy)
    limit, enough = limits.max_null_share, usage.events >= FEWEST_EVENTS
    empty = {name: count for name, count in usage.nulls.items() if limit is not None and count > limit * usage.events}
    if limit is not None and enough and empty:
        columns = ", ".join(f"{name} in {count:,}" for name, count in sorted(empty.items()))
        told = (
            f"Columns that held values are null in the newest batches: {columns} of {usage.events:,} events; the limit "
            f"is {limit:.1%}."
        )
        yield Breach("null-share", told, seen.now, "see whether the source has renamed or dropped them")


def _restarts(seen: PipelineState) -> Iterator[Breach]:
    limit, times = seen.definition.alerts.max_restarts, _recent_restarts(seen)
    if limit is not None and len(times) > limit:
        cause, log = _last_cause(seen)
        told = f"It has been restarted {_times(times)} within the hour; the limit is {limit}.{cause}"
        name = seen.definition.name
        remedy = (
            f"fix that{log}. Then `{command('deploy', name)}`, or `{command('acknowledge', name)}` where it runs well"
        )
        yield Breach("restarts", told, times[0], remedy)


def _times(restarts: tuple[datetime, ...]) -> str:
    return "once" if len(restarts) == 1 else f"{len(restarts)} times"


def _last_cause(seen: PipelineState) -> tuple[str, str]:
    """What the pipeline failed with last, or its driver where that was what ended; and whose log has all of it."""
    failed = seen.pipeline.failures if seen.pipeline else ()
    end = seen.status.last_end if seen.status else None
    if failed and seen.pipeline and seen.pipeline.error and (end is None or failed[-1] >= end.at):
        log = f"; the log of its driver: {seen.pulse.log} on {seen.pulse.host}" if seen.pulse and seen.pulse.log else ""
        return f" It failed last at {failed[-1]:%H:%M:%S} UTC: {seen.pipeline.error}", log
    if end is not None:
        return (
            f" Its driver (term {end.term}) ended last at {end.at:%H:%M:%S} UTC with {end.cause_in_words}.",
            f"; the log of the driver that ended: {end.where}",
        )
    return "", ""


def _recent_restarts(seen: PipelineState) -> tuple[datetime, ...]:
    """Those of what is deployed now, of which nobody has taken note."""
    ends = seen.status.ends if seen.status else ()
    failures = seen.pipeline.failures if seen.pipeline else ()
    known = max(seen.order.ordered_at, seen.acknowledged_at or seen.order.ordered_at)
    return tuple(sorted(at for at in (*ends, *failures) if at > known and seen.now - at < _HOUR))


def _is_down(pipeline: PipelinePulse) -> bool:
    """Whether it has failed and made no progress since: between two tries it starts, which is no recovery."""
    if pipeline.state in ("failed", "retrying"):
        return True
    failed, progressed = pipeline.failures, pipeline.progressed_at
    return bool(failed) and pipeline.error is not None and (progressed is None or progressed < failed[-1])


def _of_the_checkpoint(pipeline: PipelinePulse) -> bool:
    if pipeline.error is None or pipeline.error_kind == ConcurrentDriverError.__name__:
        return False
    return any(mark in pipeline.error for mark in _CHECKPOINT_MARKS)


# How errors of Spark's checkpoint are told: its folder, its logs, its state store.
_CHECKPOINT_MARKS = (
    "_checkpoints/",
    "StateStore",
    "CheckpointFileManager",
    "HDFSMetadataLog",
    "RocksDB",
    "CANNOT_LOAD_STATE",
    "MISSING_STATE_DIRECTORY",
)


def _ms(duration: timedelta) -> float:
    return duration.total_seconds() * 1000


def _instant(ms: int) -> datetime:
    return datetime.fromisoformat("1970-01-01T00:00:00+00:00") + timedelta(milliseconds=ms)


def _clock(ms: int) -> str:
    return f"{_instant(ms):%Y-%m-%d %H:%M:%S} UTC"


def span(duration: timedelta) -> str:
    """A span of time as a person says it."""
    seconds = duration.total_seconds()
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} seconds" if seconds < 10 else f"{seconds:.0f} seconds"
