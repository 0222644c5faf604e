"""A reference model of Tidemark's late rules, in plain Python: what Spark does to each (event, window) pair.

`run` is for windows. `first_events` and `joined` are for steps that judge an event by its own time.

Nothing here knows the product. The rules, in the words of this file:

- Batches are numbered from 0. W(N), the watermark of batch N, is fixed before batch N runs: the newest event
  time of all rows of the batches before N, less delay and grace; it never falls and is never below 0, where
  Spark begins. Of several sources the one that is furthest behind decides.
- In batch N the pair (event, window) is late iff `window.end <= W(N-1)`; for sessions, iff
  `event time + gap <= W(N-1)`, event by event, before sessions merge. In batch 0 nothing is late.
- In batch N every open window with `end <= W(N)` is closed, after the rows of N were counted. In append mode
  its row is emitted then; in update mode every window that changed in N emits its row of the moment in N.
- After a batch that moves the watermark Spark runs a batch without data, numbered as any other, unless it
  finds new data first.
- The published watermark is W + grace. What is late by it, and not late, came within grace.
- Without windows an event is late iff `event time <= W(N-1)`. A key is forgotten, and an event that waits for the
  other side gives up, in the first batch whose W(N) tells that nothing in time can need it any more.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

Number: TypeAlias = int | Decimal
Verdict: TypeAlias = Literal["on_time", "partly_late", "late", "filtered", "timeless", "duplicate"]
Mode: TypeAlias = Literal["append", "update"]


class Event(NamedTuple):
    """One row of the input; `passes_where` is False for what the definition's own filter removes."""

    event_id: str
    key: str | None
    event_time_ms: int | None
    value: Number = 1
    passes_where: bool = True
    source: int = 0


class Heartbeat(NamedTuple):
    """Moves the watermark and is no event."""

    event_time_ms: int
    source: int = 0


Batch: TypeAlias = Sequence[Event | Heartbeat]
NoDataBatches: TypeAlias = bool | Literal["at_end"]


class Tick(NamedTuple):
    """A batch, and the watermarks that act in it: W(N) closes, W(N-1) judges; nothing judges batch 0."""

    rows: Batch
    has_data: bool
    watermark_ms: int
    late_watermark_ms: int | None


class Clock:
    """The watermark, batch after batch; `delays_ms` are those of the sources, grace included."""

    def __init__(self, delays_ms: Sequence[int], *, filtered_rows_move_watermark: bool = True) -> None:
        self.next_watermark_ms = 0
        self._delays_ms = delays_ms
        self._watermarks_ms = [0] * len(delays_ms)
        self._filtered_rows_move_watermark = filtered_rows_move_watermark

    def ticks(self, batches: Sequence[Batch], *, no_data_batches: NoDataBatches) -> Iterator[Tick]:
        """The batches that run, those without data included."""
        last_ms: int | None = None
        for number, batch in enumerate(batches):
            watermark_ms = self.next_watermark_ms
            yield Tick(batch, True, watermark_ms, last_ms)
            last_ms = watermark_ms
            self._see(batch)
            then_empty = no_data_batches is True or (no_data_batches == "at_end" and number == len(batches) - 1)
            if then_empty and self.next_watermark_ms > last_ms:
                yield Tick([], False, self.next_watermark_ms, last_ms)
                last_ms = self.next_watermark_ms

    def _see(self, rows: Batch) -> None:
        for row in rows:
            moves = isinstance(row, Heartbeat) or row.passes_where or self._filtered_rows_move_watermark
            if moves and row.event_time_ms is not None:
                own_ms = row.event_time_ms - self._delays_ms[row.source]
                self._watermarks_ms[row.source] = max(self._watermarks_ms[row.source], own_ms)
        self.next_watermark_ms = max(self.next_watermark_ms, min(self._watermarks_ms))


class Span(NamedTuple):
    """A window: [start, end)."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Hopping:
    """Windows of one size on a grid."""

    size_ms: int
    every_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.every_ms <= self.size_ms:
            raise ValueError(f"hopping window: expected 0 < every <= size, got {self!r}")

    def spans(self, event_time_ms: int) -> list[Span]:
        """All windows that hold this instant, earliest first."""
        start_ms = event_time_ms - (event_time_ms - self.offset_ms) % self.every_ms
        spans = []
        while start_ms + self.size_ms > event_time_ms:
            spans.append(Span(start_ms, start_ms + self.size_ms))
            start_ms -= self.every_ms
        return spans[::-1]


def tumbling(size_ms: int, offset_ms: int = 0) -> Hopping:
    """Windows that touch."""
    return Hopping(size_ms, size_ms, offset_ms)


@dataclass(frozen=True)
class Session:
    """Windows that end with a gap; two events of a key at most `gap_ms` apart share one."""

    gap_ms: int

    def spans(self, event_time_ms: int) -> list[Span]:
        """The session of an event alone."""
        return [Span(event_time_ms, event_time_ms + self.gap_ms)]


Window: TypeAlias = Hopping | Session
Place: TypeAlias = tuple[str | None, Span]


class LatePair(NamedTuple):
    """An event that came too late for a window; for sessions, the window of the event alone."""

    batch_id: int
    event_id: str
    window_start_ms: int
    window_end_ms: int


@dataclass(frozen=True, order=True)
class Row:
    """A result, or a window that is still open."""

    key: str | None
    window_start_ms: int
    window_end_ms: int
    count: int
    sum: Number


@dataclass(frozen=True)
class BatchOutcome:
    """What one batch did.

    Attributes:
        batch_id: its number.
        has_data: False for a batch that Spark runs only to move the watermark.
        watermark_ms: W(N): closes windows.
        late_watermark_ms: W(N-1): judges rows; None in batch 0, where nothing is late.
        verdicts: of each event, in the order of the input.
        late_pairs: in the order of the input, earliest window first.
        within_grace: pairs that counted, and would have been late by the delay alone.
        emitted: result rows, sorted.
        closed: final rows of the windows that were closed, sorted; in append mode the same as `emitted`.
    """

    batch_id: int
    has_data: bool
    watermark_ms: int
    late_watermark_ms: int | None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    late_pairs: tuple[LatePair, ...] = ()
    within_grace: int = 0
    emitted: tuple[Row, ...] = ()
    closed: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a run did.

    Attributes:
        batches: one by one.
        open: windows in the state after the last batch, sorted.
        watermark_ms: what the next batch would have; without a last batch of no data no batch has used it.
    """

    batches: tuple[BatchOutcome, ...]
    open: tuple[Row, ...]
    watermark_ms: int

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Of every event."""
        return {event_id: verdict for batch in self.batches for event_id, verdict in batch.verdicts.items()}

    @property
    def late_pairs(self) -> list[LatePair]:
        """Of all batches."""
        return [pair for batch in self.batches for pair in batch.late_pairs]

    @property
    def emitted(self) -> list[Row]:
        """Of all batches, in the order of the batches."""
        return [row for batch in self.batches for row in batch.emitted]

    @property
    def closed(self) -> list[Row]:
        """Of all batches, in the order of the batches."""
        return [row for batch in self.batches for row in batch.closed]


def run(
    batches: Sequence[Batch],
    window: Window,
    *,
    delay_ms: int,
    grace_ms: int = 0,
    mode: Mode = "append",
    no_data_batches: NoDataBatches = True,
    filtered_rows_move_watermark: bool = True,
    sources: int = 1,
) -> Outcome:
    """Runs the rules over an input.

    Args:
        batches: the data batches, one after the other; an empty one runs too. Event ids are unique.
        window: tumbling, hopping or session.
        delay_ms: the delay that the definition states.
        grace_ms: added to it in Spark's watermark.
        mode: append or update; Spark refuses sessions in update mode, and so does this.
        no_data_batches: True: a batch without data follows each data batch, as when a test waits for it.
            "at_end": more data is always there, only the last batch is followed by one. False: never.
        filtered_rows_move_watermark: False where the engine filters below the watermark.
        sources: how many there are; rows say by number which one they come from.

    Returns:
        Verdicts, late pairs and rows of each batch, and what is open at the end.
    """
    if isinstance(window, Session) and mode == "update":
        raise ValueError("session windows in update mode: Spark refuses them; use append")
    state: dict[Place, tuple[int, Number]] = {}
    outcomes: list[BatchOutcome] = []
    clock = Clock([delay_ms + grace_ms] * sources, filtered_rows_move_watermark=filtered_rows_move_watermark)
    for tick in clock.ticks(batches, no_data_batches=no_data_batches):
        verdicts, late, counted = _judged(tick.rows, window, len(outcomes), tick.late_watermark_ms)
        changed = _count(counted, state, window)
        current = sorted(Row(key, *span, *state[key, span]) for key, span in changed)
        closed = _close(state, tick.watermark_ms)
        outcomes.append(
            BatchOutcome(
                batch_id=len(outcomes),
                has_data=tick.has_data,
                watermark_ms=tick.watermark_ms,
                late_watermark_ms=tick.late_watermark_ms,
                verdicts=verdicts,
                late_pairs=tuple(late),
                within_grace=_within_grace(counted, tick.late_watermark_ms, grace_ms),
                emitted=tuple(closed if mode == "append" else current),
                closed=tuple(closed),
            )
        )
    return Outcome(tuple(outcomes), tuple(_rows(state)), clock.next_watermark_ms)


@dataclass(frozen=True)
class JudgedEvents:
    """What became of events that are judged by their own time.

    Attributes:
        verdicts: of each event, in the order of the input.
        written: of each batch, data or not, its rows: the event that is let through, or the left and the right event
            of a match, with None for the one that never came.
        has_data: of each batch.
        waiting: events of a join, without a match so far, that may still find one.
    """

    verdicts: dict[str, Verdict]
    written: list[list[tuple[str | None, ...]]]
    has_data: list[bool]
    waiting: frozenset[str] = frozenset()

    def rows(self) -> list[tuple[str | None, ...]]:
        """Of all batches, in the order of the batches."""
        return [row for batch in self.written for row in batch]

    def of(self, verdict: Verdict) -> set[str]:
        """The events with a verdict."""
        return {event_id for event_id, found in self.verdicts.items() if found == verdict}


def first_events(
    batches: Sequence[Batch], *, delay_ms: int, within_ms: int, no_data_batches: NoDataBatches = True
) -> JudgedEvents:
    """The first event of each key; of several in one batch, the first of the input. A missing key is one like others.

    Args:
        batches: as for `run`.
        delay_ms: of the watermark, grace included.
        within_ms: how long a key is remembered; from its first event on, by the watermark.
        no_data_batches: as for `run`.
    """
    judged = JudgedEvents({}, [], [])
    remembered: dict[str | None, int] = {}
    for tick in Clock([delay_ms]).ticks(batches, no_data_batches=no_data_batches):
        firsts: list[tuple[str | None, ...]] = []
        for event, time_ms in _in_time(tick, judged.verdicts):
            if event.key in remembered:
                judged.verdicts[event.event_id] = "duplicate"
            else:
                remembered[event.key] = time_ms + within_ms
                firsts.append((event.event_id,))
        remembered = {key: until_ms for key, until_ms in remembered.items() if until_ms > tick.watermark_ms}
        judged.written.append(firsts)
        judged.has_data.append(tick.has_data)
    return judged


def joined(
    batches: Sequence[Batch],
    *,
    delays_ms: tuple[int, int],
    within_ms: int,
    before_ms: int,
    no_data_batches: NoDataBatches = True,
) -> JudgedEvents:
    """Matches of two sources, and the events of both that found none; a missing key matches nothing.

    Args:
        batches: as for `run`; source 0 is the left side, source 1 the right one.
        delays_ms: of the watermark of each side, grace included.
        within_ms: how long after a left event a right one matches it.
        before_ms: how long before.
        no_data_batches: as for `run`.
    """
    verdicts: dict[str, Verdict] = {}
    written: list[list[tuple[str | None, ...]]] = []
    has_data: list[bool] = []
    by_key: dict[tuple[int, str], list[tuple[str, int]]] = {}
    waiting: dict[str, tuple[int, int]] = {}
    for tick in Clock(delays_ms).ticks(batches, no_data_batches=no_data_batches):
        rows: list[tuple[str | None, ...]] = []
        for event, time_ms in _in_time(tick, verdicts):
            waiting[event.event_id] = (event.source, time_ms)
            if event.key is None:
                continue
            by_key.setdefault((event.source, event.key), []).append((event.event_id, time_ms))
            for other_id, other_ms in by_key.get((1 - event.source, event.key), ()):
                after_ms = time_ms - other_ms if event.source else other_ms - time_ms
                if -before_ms <= after_ms <= within_ms:
                    rows.append((other_id, event.event_id) if event.source else (event.event_id, other_id))
        for match in rows:
            for event_id in match:
                waiting.pop(str(event_id), None)
        for event_id, (source, time_ms) in list(waiting.items()):
            # Something at the very watermark would be late, but Spark waits for it all the same.
            if time_ms + (before_ms if source else within_ms) < tick.watermark_ms:
                del waiting[event_id]
                rows.append((None, event_id) if source else (event_id, None))
        written.append(rows)
        has_data.append(tick.has_data)
    return JudgedEvents(verdicts, written, has_data, frozenset(waiting))


def _in_time(tick: Tick, verdicts: dict[str, Verdict]) -> Iterator[tuple[Event, int]]:
    """The events of a batch that are neither late nor left out, and their time; notes the verdict of each."""
    for event in tick.rows:
        if isinstance(event, Heartbeat):
            continue
        if event.event_id in verdicts:
            raise ValueError(f"event id: expected each once, got {event.event_id!r} twice")
        if not event.passes_where:
            verdicts[event.event_id] = "filtered"
        elif event.event_time_ms is None:
            verdicts[event.event_id] = "timeless"
        elif tick.late_watermark_ms is not None and event.event_time_ms <= tick.late_watermark_ms:
            verdicts[event.event_id] = "late"
        else:
            verdicts[event.event_id] = "on_time"
            yield event, event.event_time_ms


def pairs(events: Iterable[Event | Heartbeat], window: Window) -> int:
    """(event, window) pairs of the events that pass the filter."""
    passed = [row for row in events if isinstance(row, Event) and row.passes_where]
    times_ms = [event.event_time_ms for event in passed if event.event_time_ms is not None]
    return sum(len(window.spans(time_ms)) for time_ms in times_ms)


def assert_conservation(batches: Sequence[Batch], window: Window, outcome: Outcome) -> None:
    """Every event has one verdict, and every pair is in a closed window, late, or in an open window.

    Raises:
        AssertionError: if one is missing, or is there twice.
    """
    rows = [row for batch in batches for row in batch]
    events = [row for row in rows if isinstance(row, Event)]
    assert sorted(outcome.verdicts) == sorted(event.event_id for event in events)
    filtered = sum(verdict == "filtered" for verdict in outcome.verdicts.values())
    assert filtered == sum(not event.passes_where for event in events)
    counted = sum(row.count for row in outcome.closed)
    still_open = sum(row.count for row in outcome.open)
    late = len(outcome.late_pairs)
    assert counted + late + still_open == pairs(rows, window), (counted, late, still_open)


def _judged(
    rows: Batch, window: Window, batch_id: int, late_watermark_ms: int | None
) -> tuple[dict[str, Verdict], list[LatePair], list[tuple[Event, Span]]]:
    """Verdicts, the pairs that are late, and the pairs that count."""
    verdicts: dict[str, Verdict] = {}
    late: list[LatePair] = []
    counted: list[tuple[Event, Span]] = []
    for event in rows:
        if isinstance(event, Heartbeat):
            continue
        if event.event_id in verdicts:
            raise ValueError(f"event id: expected each once, got {event.event_id!r} twice in batch {batch_id}")
        if not event.passes_where:
            verdicts[event.event_id] = "filtered"
            continue
        if event.event_time_ms is None:
            verdicts[event.event_id] = "timeless"
            continue
        spans = window.spans(event.event_time_ms)
        missed = [] if late_watermark_ms is None else [s for s in spans if s.end_ms <= late_watermark_ms]
        late.extend(LatePair(batch_id, event.event_id, *span) for span in missed)
        counted.extend((event, span) for span in spans if span not in missed)
        verdicts[event.event_id] = "on_time" if not missed else "late" if len(missed) == len(spans) else "partly_late"
    return verdicts, late, counted


def _count(counted: list[tuple[Event, Span]], state: dict[Place, tuple[int, Number]], window: Window) -> set[Place]:
    """Adds the pairs to the state; returns the keys of what changed."""
    changed = set()
    for event, span in counted:
        count, total = 1, event.value
        if isinstance(window, Session):
            # Distance <= gap means that neither session begins after the other's end: they touch or overlap.
            near = [
                (key, other)
                for key, other in state
                if key == event.key and other.start_ms <= span.end_ms and span.start_ms <= other.end_ms
            ]
        else:
            near = [(event.key, span)] if (event.key, span) in state else []
        for place in near:
            other_count, other_total = state.pop(place)
            changed.discard(place)
            count, total = count + other_count, total + other_total
            span = Span(min(span.start_ms, place[1].start_ms), max(span.end_ms, place[1].end_ms))
        state[event.key, span] = (count, total)
        changed.add((event.key, span))
    return changed


def _close(state: dict[Place, tuple[int, Number]], watermark_ms: int) -> list[Row]:
    """Takes the windows that are over out of the state."""
    over = {place: state[place] for place in state if place[1].end_ms <= watermark_ms}
    for place in over:
        del state[place]
    return _rows(over)


def _rows(windows: dict[Place, tuple[int, Number]]) -> list[Row]:
    return sorted(Row(key, *span, *totals) for (key, span), totals in windows.items())


def _within_grace(counted: list[tuple[Event, Span]], late_watermark_ms: int | None, grace_ms: int) -> int:
    """Nothing is within grace before there is a watermark: 0 is where Spark begins, not something it saw."""
    if not late_watermark_ms:
        return 0
    return sum(span.end_ms <= late_watermark_ms + grace_ms for _, span in counted)
