"""A reference model of Tidemark's late rules, in plain Python: what Spark does to each (event, window) pair.

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
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

Number: TypeAlias = int | Decimal
Verdict: TypeAlias = Literal["on_time", "partly_late", "late", "filtered"]
Mode: TypeAlias = Literal["append", "update"]


class Event(NamedTuple):
    """One row of the input; `passes_where` is False for what the definition's own filter removes."""

    event_id: str
    key: str
    event_time_ms: int
    value: Number = 1
    passes_where: bool = True
    source: int = 0


class Heartbeat(NamedTuple):
    """Moves the watermark and is no event."""

    event_time_ms: int
    source: int = 0


Batch: TypeAlias = Sequence[Event | Heartbeat]


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


class LatePair(NamedTuple):
    """An event that came too late for a window; for sessions, the window of the event alone."""

    batch_id: int
    event_id: str
    window_start_ms: int
    window_end_ms: int


@dataclass(frozen=True, order=True)
class Row:
    """A result, or a window that is still open."""

    key: str
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
    no_data_batches: bool | Literal["at_end"] = True,
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
        no_data_batches: True: the stream settles after each data batch, as when a test waits for it.
            "at_end": more data is always there, only the last batch is followed by one. False: never.
        filtered_rows_move_watermark: False where the engine filters below the watermark.
        sources: how many there are; rows say by number which one they come from.

    Returns:
        Verdicts, late pairs and rows of each batch, and what is open at the end.
    """
    if isinstance(window, Session) and mode == "update":
        raise ValueError("session windows in update mode: Spark refuses them; use append")
    spark_delay_ms = delay_ms + grace_ms
    state: dict[tuple[str, Span], tuple[int, Number]] = {}
    outcomes: list[BatchOutcome] = []
    next_watermark_ms = 0
    watermarks_ms = [0] * sources

    def run_batch(rows: Batch, *, has_data: bool) -> None:
        nonlocal next_watermark_ms
        watermark_ms = next_watermark_ms
        late_watermark_ms = outcomes[-1].watermark_ms if outcomes else None
        verdicts, late, counted = _judged(rows, window, len(outcomes), late_watermark_ms)
        changed = _count(counted, state, window)
        current = sorted(Row(key, *span, *state[key, span]) for key, span in changed)
        closed = _close(state, watermark_ms)
        outcomes.append(
            BatchOutcome(
                batch_id=len(outcomes),
                has_data=has_data,
                watermark_ms=watermark_ms,
                late_watermark_ms=late_watermark_ms,
                verdicts=verdicts,
                late_pairs=tuple(late),
                within_grace=_within_grace(counted, late_watermark_ms, grace_ms),
                emitted=tuple(closed if mode == "append" else current),
                closed=tuple(closed),
            )
        )
        for row in rows:
            if isinstance(row, Heartbeat) or row.passes_where or filtered_rows_move_watermark:
                own_ms = row.event_time_ms - spark_delay_ms
                watermarks_ms[row.source] = max(watermarks_ms[row.source], own_ms)
        next_watermark_ms = max(next_watermark_ms, min(watermarks_ms))

    for number, batch in enumerate(batches):
        run_batch(batch, has_data=True)
        settles = no_data_batches is True or (no_data_batches == "at_end" and number == len(batches) - 1)
        if settles and next_watermark_ms > outcomes[-1].watermark_ms:
            run_batch([], has_data=False)
    return Outcome(tuple(outcomes), tuple(_rows(state)), next_watermark_ms)


def pairs(events: Iterable[Event | Heartbeat], window: Window) -> int:
    """(event, window) pairs of the events that pass the filter."""
    passed = [row for row in events if isinstance(row, Event) and row.passes_where]
    return sum(len(window.spans(event.event_time_ms)) for event in passed)


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
        spans = window.spans(event.event_time_ms)
        missed = [] if late_watermark_ms is None else [s for s in spans if s.end_ms <= late_watermark_ms]
        late.extend(LatePair(batch_id, event.event_id, *span) for span in missed)
        counted.extend((event, span) for span in spans if span not in missed)
        verdicts[event.event_id] = "on_time" if not missed else "late" if len(missed) == len(spans) else "partly_late"
    return verdicts, late, counted


def _count(
    counted: list[tuple[Event, Span]], state: dict[tuple[str, Span], tuple[int, Number]], window: Window
) -> set[tuple[str, Span]]:
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


def _close(state: dict[tuple[str, Span], tuple[int, Number]], watermark_ms: int) -> list[Row]:
    """Takes the windows that are over out of the state."""
    over = {place: state[place] for place in state if place[1].end_ms <= watermark_ms}
    for place in over:
        del state[place]
    return _rows(over)


def _rows(windows: dict[tuple[str, Span], tuple[int, Number]]) -> list[Row]:
    return sorted(Row(key, *span, *totals) for (key, span), totals in windows.items())


def _within_grace(counted: list[tuple[Event, Span]], late_watermark_ms: int | None, grace_ms: int) -> int:
    """Nothing is within grace before there is a watermark: 0 is where Spark begins, not something it saw."""
    if not late_watermark_ms:
        return 0
    return sum(span.end_ms <= late_watermark_ms + grace_ms for _, span in counted)
