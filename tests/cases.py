"""Window cases of other engines, run through Tidemark: `python -m tests.cases FILE`.

Each case is fed as its source fed it: event by event, or batch by batch, and after each one the query settles. What
Tidemark writes must be what its own rules say (`tests/model.py`), and what its rules say must be what the case
expects; where another engine has other rules, `DIFFERENCES` names and explains each, and the case must then follow
from Tidemark's rules with nothing but differences of its engine applied.

Event times are shifted by whole hops to a time well after 1970, where Spark's watermark begins.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.engine.session import build_session
from spark_jobs.lake import Lake
from spark_jobs.lake.ledger import Totals
from spark_jobs.lake.settings import Settings
from spark_jobs.spec import Aggregate, Hopping, Pipeline, Session, Sink, Table, Watermark, Window
from tests import lakes, model

BUILT = ("tumbling", "hopping", "session")
FAR_MS = 1_000_000_000_000  # 2001
MEASURES = {
    "count": "count(*)",
    "sum": "sum(v)",
    "max": "max(v)",
    "min": "min(v)",
    "collect": "array_sort(collect_list(struct(_ingest_seq AS seq, v AS v)))",
}

DIFFERENCES: Mapping[str, tuple[frozenset[str], frozenset[str], str]] = {
    # name: engines, kinds, why
    "watermark names the last instant": (
        frozenset({"flink"}),
        frozenset(BUILT),
        "Flink's watermark w says that nothing at or before w will come, and closes a window at end - 1. Tidemark's "
        "W says that nothing before W will come, and closes it at end: w is fed as W = w + 1.",
    ),
    "end of a session": (
        frozenset({"kafka", "pathway", "quix"}),
        frozenset({"session"}),
        "They name the last event as the end of a session, inclusive; Tidemark, as Spark and Flink, last event + gap, "
        "exclusive: the same session.",
    ),
    "no window before zero": (
        frozenset({"kafka", "quix"}),
        frozenset({"hopping"}),
        "They have no window that starts before time 0; for Tidemark 1970 is an instant as any other.",
    ),
    "session open at equality": (
        frozenset({"kafka", "quix"}),
        frozenset({"session"}),
        "They close a session when last + gap + grace < stream time. Tidemark closes every window by one rule, "
        "end <= W, so one unit earlier.",
    ),
    "session judged after merging": (
        frozenset({"beam", "flink", "kafka", "quix"}),
        frozenset({"session"}),
        "They let an event that is late by itself join a session that is still open. Tidemark judges each event by "
        "itself, so that the verdict does not depend on what else is in the state.",
    ),
    "closed session joined again": (
        frozenset({"kafka"}),
        frozenset({"session"}),
        "Kafka keeps closed sessions until retention ends, and an event in time may join one. Tidemark's closed "
        "windows are final.",
    ),
    "apart at distance gap": (
        frozenset({"beam"}),
        frozenset({"session"}),
        "Beam's sessions merge only when they overlap; Tidemark's, as Spark's, also when they touch.",
    ),
    "watermark by key": (
        frozenset({"quix"}),
        frozenset(BUILT),
        "Quix has a stream time for each key. Tidemark's watermark is one for the whole stream: a silent key must not "
        "keep its windows open for ever.",
    ),
    "fires before it is final": (
        frozenset({"beam", "flink"}),
        frozenset(BUILT),
        "With allowed lateness they emit a window when the watermark passes its end, and again with each late event. "
        "Tidemark's row is final when grace is over too: it equals the last firing, or all of them together where "
        "they discard what was fired.",
    ),
    # Kafka and quix also judge a record by a stream time that includes the record itself: no window can tell, since
    # none that holds an event ends at or before it.
}
# Facts of how a case is written, not rules that decide: applied wherever the case calls for them.
_AS_WRITTEN = ("watermark names the last instant", "end of a session", "no window before zero")


class CaseError(AssertionError):
    """What Tidemark does is not what the case, or Tidemark's own rules, say."""


@dataclass(frozen=True, order=True)
class Found:
    """A window in the case's own time, with the arrival numbers of the events in it."""

    key: str
    start_ms: int
    end_ms: int
    members: tuple[int, ...]
    emitted_after: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Verdict:
    """What becomes of a case under some rules."""

    closed: tuple[Found, ...]
    open: tuple[Found, ...]
    late: frozenset[int]
    partly_late: frozenset[int]


@dataclass(frozen=True)
class Step:
    """One thing that is fed: events, by their place in the case, or a watermark."""

    events: tuple[int, ...] = ()
    watermark_ms: int | None = None
    after: int = 0


class Case:
    """A case as it is read: unknown fields do not matter, missing ones have a meaning."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.id: str = raw["id"]
        self.kind: str = raw["kind"]
        self.engine = next(
            (name for name in ("flink", "kafka", "quix", "spark", "beam", "pathway") if name in self._origin()), ""
        )

    def _origin(self) -> str:
        return f"{self.id.split('-')[0]} {self.raw.get('source', '').split(':')[0]}".lower()

    @property
    def built(self) -> bool:
        return self.kind in BUILT

    def prepare(self) -> None:
        """Reads what only windows have."""
        params = self.raw["params"]
        self.events: list[Mapping[str, Any]] = sorted(
            self.raw["events"], key=lambda event: event.get("arrival_order", 0)
        )
        self.orders = [event.get("arrival_order", index + 1) for index, event in enumerate(self.events)]
        self.grace_ms = int(params.get("grace_ms") or 0)
        self.agg = (params.get("agg") or "count").split()[0].strip(",;:")
        self.in_order = "arrival" in (params.get("agg") or "")
        model_text = params.get("watermark_model") or "none"
        self.fed = next(name for name in ("explicit", "per_event", "per_batch", "none") if model_text.startswith(name))
        self.size_ms = int(params["gap_ms"] if self.kind == "session" else params["size_ms"])
        self.every_ms = int(params.get("hop_ms") or self.size_ms)
        self.offset_ms = int(params.get("offset_ms") or 0) % self.every_ms
        self.shift_ms = self.every_ms * -(-(FAR_MS - min(self._times(), default=0)) // self.every_ms)
        # Sessions that end with their last event: told by the bounds, where the engine has such.
        bounds = (params.get("bounds") or "").replace(" ", "")
        self.inclusive_end = self.has("end of a session") and not bounds.startswith("[first,last+gap")
        self.explicit_lateness = self.fed == "explicit" and self.grace_ms > 0

    def has(self, difference: str) -> bool:
        """Whether a difference of the table is one of this case's engine and kind."""
        engines, kinds, _ = DIFFERENCES[difference]
        return self.engine in engines and self.kind in kinds

    def _times(self) -> list[int]:
        return [int(event["ts_ms"]) for event in self.events]

    @property
    def horizon_ms(self) -> int:
        """A watermark that closes everything."""
        return max(self._times(), default=0) + self.size_ms + self.grace_ms + 1

    @property
    def window(self) -> Window:
        if self.kind == "session":
            return Session(f"{self.size_ms} ms")
        return Hopping(f"{self.size_ms} ms", f"{self.every_ms} ms", offset=f"{self.offset_ms} ms")

    @property
    def modelled_window(self) -> model.Window:
        if self.kind == "session":
            return model.Session(self.size_ms)
        return model.Hopping(self.size_ms, self.every_ms, self.offset_ms)

    @property
    def delay_ms(self) -> int:
        """Kafka, quix, Spark: what they call grace. With explicit watermarks: so long that events move nothing."""
        if self.fed in ("per_event", "per_batch"):
            return self.grace_ms
        lowest = min((*self._times(), *(step.watermark_ms for step in self.steps() if step.watermark_ms is not None)))
        return self.horizon_ms - lowest + self.size_ms

    @property
    def pipeline_grace_ms(self) -> int:
        """Allowed lateness after the watermark is Tidemark's grace; elsewhere it is the delay."""
        return self.grace_ms if self.fed == "explicit" else 0

    def steps(self) -> list[Step]:
        """What is fed one after the other."""
        if self.fed == "none":
            everything = tuple(range(len(self.events)))
            last = self.orders[-1] if self.orders else 0
            return [Step(everything, after=last), Step(watermark_ms=self.horizon_ms, after=last)]
        if self.fed == "per_batch":
            batches: dict[Any, list[int]] = {}
            for index, event in enumerate(self.events):
                batches.setdefault(event.get("batch", ("alone", index)), []).append(index)
            return [Step(tuple(batch), after=self.orders[batch[-1]]) for batch in batches.values()]
        steps = []
        marks = self.raw.get("watermarks") or () if self.fed == "explicit" else ()
        for index in range(-1, len(self.events)):
            order = self.orders[index] if index >= 0 else 0
            if index >= 0:
                steps.append(Step((index,), after=order))
            following = self.orders[index + 1] if index + 1 < len(self.orders) else None
            for mark in marks:
                after = mark.get("after_arrival") or 0
                if (index < 0 or after >= order) and (following is None or after < following):
                    steps.append(Step(watermark_ms=self._explicit(int(mark["watermark_ms"])), after=order))
        return steps

    def _explicit(self, watermark_ms: int) -> int:
        """Tidemark's watermark for the engine's; the ends of time are brought to where they change nothing."""
        own = watermark_ms + 1 if self.has("watermark names the last instant") else watermark_ms
        lowest = min(self._times(), default=0) - 1
        return max(min(own, self.horizon_ms), lowest)

    def batches(self) -> list[model.Batch]:
        """The steps for the model: an event's value is a bit, so that a sum tells which events a window holds."""
        batches: list[model.Batch] = []
        for step in self.steps():
            if step.watermark_ms is not None:
                batches.append([model.Heartbeat(step.watermark_ms + self.delay_ms + self.shift_ms)])
            else:
                batches.append([self._modelled(index) for index in step.events])
        return batches

    def _modelled(self, index: int) -> model.Event:
        event = self.events[index]
        return model.Event(f"e{index}", key_of(event), int(event["ts_ms"]) + self.shift_ms, 1 << index)

    def value(self, members: Sequence[int]) -> Any:
        """The aggregate of some events."""
        values = [self.events[index].get("value") for index in members]
        known = [value for value in values if value is not None]
        match self.agg:
            case "count":
                return len(values)
            case "sum":
                return sum(known) if known else None
            case "max":
                return max(known, default=None)
            case "min":
                return min(known, default=None)
        return self.normal(values)

    def normal(self, value: Any) -> Any:
        """A value in the form in which two of them are compared."""
        if isinstance(value, list | tuple) and not self.in_order:
            return sorted(value, key=lambda item: json.dumps(item, sort_keys=True))
        return list(value) if isinstance(value, tuple) else value


def key_of(entry: Mapping[str, Any]) -> str:
    """A key as text; keys may be anything that JSON has, or be missing."""
    return json.dumps(entry.get("key"), sort_keys=True)


# --- Tidemark's rules, and those of other engines ---


def by_tidemarks_rules(case: Case) -> tuple[Verdict, model.Outcome]:
    """What the model says of a case, in the case's own time."""
    outcome = model.run(case.batches(), case.modelled_window, delay_ms=case.delay_ms, grace_ms=case.pipeline_grace_ms)
    data = iter(case.steps())
    after = None
    closed = []
    for batch in outcome.batches:
        after = next(data).after if batch.has_data else after
        closed += [_found(case, row, after) for row in batch.closed]
    missed = Counter(pair.event_id for pair in outcome.late_pairs if case_has(case, pair.window_start_ms))
    late, partly = set(), set()
    for index in range(len(case.events)):
        event = case._modelled(index)
        spans = [span for span in case.modelled_window.spans(event.event_time_ms) if case_has(case, span.start_ms)]
        if missed[event.event_id]:
            (late if missed[event.event_id] == len(spans) else partly).add(case.orders[index])
    kept = [window for window in closed if window.start_ms >= 0 or not case.has("no window before zero")]
    still = [_found(case, row) for row in outcome.open if case_has(case, row.window_start_ms)]
    return Verdict(tuple(sorted(kept)), tuple(sorted(still)), frozenset(late), frozenset(partly)), outcome


def case_has(case: Case, start_ms: int) -> bool:
    """Whether the case's engine has a window that starts then (in the shifted time)."""
    return start_ms >= case.shift_ms or not case.has("no window before zero")


def _found(case: Case, row: model.Row, after: int | None = None) -> Found:
    bits = int(row.sum)
    members = tuple(index for index in range(bits.bit_length()) if bits >> index & 1)
    end_ms = row.window_end_ms - case.shift_ms - (case.size_ms if case.inclusive_end else 0)
    return Found(row.key, row.window_start_ms - case.shift_ms, end_ms, members, after)


@dataclass
class _Open:
    start_ms: int
    end_ms: int
    members: list[int]
    closed: bool = False


def by_other_rules(case: Case, rules: frozenset[str]) -> Verdict:
    """What the rules say of a case with some differences of its engine applied; all in the case's own time."""
    windows: dict[str, list[_Open]] = {}
    watermarks: dict[str, int] = {}
    closed: list[Found] = []
    late, partly = set(), set()
    everything, grace_ms = "everything", case.pipeline_grace_ms

    def over(end_ms: int, watermark_ms: int | None) -> bool:
        if watermark_ms is None:
            return False
        strict = "session open at equality" in rules
        return end_ms + grace_ms < watermark_ms or (end_ms + grace_ms == watermark_ms and not strict)

    def touch(window: _Open, start_ms: int, end_ms: int) -> bool:
        if "apart at distance gap" in rules:
            return window.start_ms < end_ms and start_ms < window.end_ms
        return window.start_ms <= end_ms and start_ms <= window.end_ms

    for step in case.steps():
        before = dict(watermarks)
        for index in step.events:
            event, order = case.events[index], case.orders[index]
            key, time_ms = key_of(event), int(event["ts_ms"])
            watermark_key = key if "watermark by key" in rules else everything
            mine = windows.setdefault(key, [])
            spans = case.modelled_window.spans(time_ms)
            spans = [span for span in spans if span.start_ms >= 0 or not case.has("no window before zero")]
            missed = 0
            for start_ms, end_ms in spans:
                near = []
                if case.kind == "session":
                    again = "closed session joined again" in rules
                    near = [w for w in mine if (again or not w.closed) and touch(w, start_ms, end_ms)]
                else:
                    near = [w for w in mine if not w.closed and w.start_ms == start_ms]
                joined = "session judged after merging" in rules
                last_ms = max([end_ms, *(w.end_ms for w in near if joined)])
                if over(last_ms, before.get(watermark_key)):
                    missed += 1
                    continue
                merged = _Open(start_ms, end_ms, [index])
                for window in near:
                    mine.remove(window)
                    merged.start_ms = min(merged.start_ms, window.start_ms)
                    merged.end_ms = max(merged.end_ms, window.end_ms)
                    merged.members += window.members
                mine.append(merged)
            if missed:
                (late if missed == len(spans) else partly).add(order)
            if case.fed in ("per_event", "per_batch"):
                own = time_ms - case.delay_ms
                watermarks[watermark_key] = max(watermarks.get(watermark_key, own), own)
        if step.watermark_ms is not None:
            watermarks[everything] = max(watermarks.get(everything, step.watermark_ms), step.watermark_ms)
        for key, mine in windows.items():
            watermark_key = key if "watermark by key" in rules else everything
            for window in mine:
                if not window.closed and over(window.end_ms, watermarks.get(watermark_key)):
                    window.closed = True
                    closed.append(_other_found(case, key, window, step.after))
    still = [_other_found(case, key, w) for key, mine in windows.items() for w in mine if not w.closed]
    return Verdict(tuple(sorted(closed)), tuple(sorted(still)), frozenset(late), frozenset(partly))


def _other_found(case: Case, key: str, window: _Open, after: int | None = None) -> Found:
    end_ms = window.end_ms - (case.size_ms if case.inclusive_end else 0)
    return Found(key, window.start_ms, end_ms, tuple(sorted(window.members)), after)


# --- what a case expects ---


def disagreement(case: Case, verdict: Verdict) -> str | None:
    """In what a verdict is not what the case expects; None where it is."""
    raw = case.raw
    firings: dict[tuple[str, int, int], list[Any]] = {}
    for entry in raw.get("expected") or ():
        firings.setdefault(_place(entry), []).append(case.normal(entry.get("value")))
    ours = {(found.key, found.start_ms, found.end_ms): found for found in verdict.closed}
    if case.explicit_lateness:
        problem = _disagreement_of_firings(case, firings, verdict)
    else:
        last = {place: values[-1] for place, values in firings.items()}
        problem = _differ("windows", {place: case.value(found.members) for place, found in ours.items()}, last)
        problem = problem or _emitted_otherwise(case, ours)
    if problem is None and raw.get("expected_open") is not None and not case.explicit_lateness:
        still = {(w.key, w.start_ms, w.end_ms): case.value(w.members) for w in verdict.open}
        wanted = {_place(entry): case.normal(entry.get("value")) for entry in raw["expected_open"]}
        problem = _differ("open windows", still, wanted)
    if problem is None and raw.get("expected_late") is not None:
        problem = _differ("late events", sorted(verdict.late), _orders(case, raw["expected_late"]))
    if problem is None and raw.get("partially_late") is not None:
        problem = _differ("partly late events", sorted(verdict.partly_late), _orders(case, raw["partially_late"]))
    return problem


def _disagreement_of_firings(
    case: Case, firings: Mapping[tuple[str, int, int], list[Any]], verdict: Verdict
) -> str | None:
    """Final rows against what fired: the last firing is the final row, or all of them together are."""
    ours = {(w.key, w.start_ms, w.end_ms): w.members for w in (*verdict.closed, *verdict.open)}
    closed = {(w.key, w.start_ms, w.end_ms) for w in verdict.closed}
    unfired = sorted(closed - firings.keys())
    if unfired:
        return f"windows: {unfired} are final, and never fired"
    for (key, start_ms, end_ms), values in firings.items():
        members = ours.get((key, start_ms, end_ms))
        if members is not None:
            # Sessions fire under the bounds that they have by then: those count that grew into this one.
            parts = [
                value
                for (k, start, end), fired in firings.items()
                for value in fired
                if k == key and start_ms <= start and end <= end_ms
            ]
            value = case.value(members)
            if value not in (values[-1], _together(case, values), _together(case, parts)):
                return f"windows: expected {values} for {key} [{start_ms}, {end_ms}), got {value}"
        elif not any(k == key and start <= start_ms and end_ms <= end for k, start, end in ours):
            return f"windows: {key} [{start_ms}, {end_ms}) fired, and is part of none"
    return None


def _together(case: Case, values: Sequence[Any]) -> Any:
    if case.agg in ("count", "sum"):
        return sum(values)
    if case.agg in ("max", "min"):
        return (max if case.agg == "max" else min)(values)
    return case.normal([item for value in values for item in value])


def _emitted_otherwise(case: Case, ours: Mapping[tuple[str, int, int], Found]) -> str | None:
    numbers = [event.get("batch") for event in case.events]
    batches = case.raw.get("emitted_after_batch") or ()
    for index, entry in enumerate(case.raw.get("expected") or ()):
        after = ours[_place(entry)].emitted_after
        wanted = entry.get("emitted_after")
        if wanted is None and index < len(batches) and after is not None:
            wanted, after = batches[index], numbers[case.orders.index(after)]
        if wanted is not None and wanted != after:
            return f"windows: expected {_place(entry)} after {wanted}, got it after {after}"
    return None


def _place(entry: Mapping[str, Any]) -> tuple[str, int, int]:
    return key_of(entry), int(entry["start_ms"]), int(entry["end_ms"])


def _orders(case: Case, entries: Iterable[Mapping[str, Any]]) -> list[int]:
    left = list(range(len(case.events)))
    orders = []
    for entry in entries:
        named = [i for i in left if entry.get("arrival_order") in (None, case.orders[i])]
        fits = [i for i in named if all(case.events[i].get(name) == entry.get(name) for name in ("key", "ts_ms"))]
        if not fits:
            raise CaseError(f"the case names an event that it does not have: {entry}")
        left.remove(fits[0])
        orders.append(case.orders[fits[0]])
    return sorted(orders)


def _differ(what: str, ours: Any, wanted: Any) -> str | None:
    if isinstance(ours, dict):
        missing = {place: value for place, value in wanted.items() if ours.get(place, ...) != value}
        surplus = {place: value for place, value in ours.items() if wanted.get(place, ...) != value}
        return f"{what}: expected {missing}, got {surplus}" if missing or surplus else None
    return None if ours == wanted else f"{what}: expected {wanted}, got {ours}"


def explanation(case: Case, verdict: Verdict) -> list[str]:
    """The differences by which a case follows from Tidemark's rules; as few as will do.

    Raises:
        CaseError: if none of its engine's explain what it expects.
    """
    used = [name for name in _AS_WRITTEN if case.has(name) and _matters(case, name)]
    if case.explicit_lateness and case.has("fires before it is final"):
        used.append("fires before it is final")
    problem = disagreement(case, verdict)
    if problem is None:
        return used
    names = [name for name in DIFFERENCES if case.has(name) and name not in _AS_WRITTEN]
    for count in range(1, len(names) + 1):
        for rules in combinations(names, count):
            if disagreement(case, by_other_rules(case, frozenset(rules))) is None:
                return [*used, *(name for name in rules if name not in used)]
    raise CaseError(problem)


def _matters(case: Case, name: str) -> bool:
    if name == "end of a session":
        return case.inclusive_end
    if name == "no window before zero":
        return any(span.start_ms < 0 for t in case._times() for span in case.modelled_window.spans(t))
    return case.fed == "explicit"


# --- Tidemark itself ---


def run_case(spark: SparkSession, lake: Lake, case: Case) -> list[str]:
    """Runs a case and compares all that can be told.

    Returns:
        The names of the differences that the case shows.

    Raises:
        CaseError: if Tidemark does not do what its rules say, or they do not explain what the case expects.
    """
    case.prepare()
    if case.agg not in MEASURES:
        raise CaseError(f"agg: expected one of {sorted(MEASURES)}, got {case.agg!r}")
    verdict, outcome = by_tidemarks_rules(case)
    pipeline = _pipeline(case)
    _feed(spark, lake, case, pipeline)
    _compare(lake, case, pipeline, outcome)
    return explanation(case, verdict)


def _pipeline(case: Case) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name="case",
            source=Table("bronze.case"),
            event_time="t",
            watermark=Watermark(delay=f"{case.delay_ms} ms", grace=f"{case.pipeline_grace_ms} ms"),
            steps=(Aggregate(window=case.window, by=("k",), measures={"n": "count(*)", "value": MEASURES[case.agg]}),),
            sink=Sink("gold.case"),
        )
    )


def _feed(spark: SparkSession, lake: Lake, case: Case, pipeline: Pipeline) -> None:
    values = [event.get("value") for event in case.events]
    encoded = case.agg in ("collect", "count")
    if encoded or any(isinstance(value, str) for value in values):
        value_type = pa.string()
    else:
        value_type = pa.int64() if all(isinstance(value, int | None) for value in values) else pa.float64()
    bronze = lakes.Bronze(lake, "bronze.case", {"k": pa.string(), "v": value_type, "t": lakes.TIMESTAMP}, "t")
    bronze.append([])
    restarts = {entry.get("before_batch"): entry for entry in case.raw.get("restarts") or ()}
    query = PipelineQuery(spark, lake, pipeline)
    handle = query.start()
    try:
        for step in case.steps():
            if step.watermark_ms is not None:
                bronze.heartbeat(step.watermark_ms + case.delay_ms + case.shift_ms)
            else:
                batch = case.events[step.events[0]].get("batch")
                if batch in restarts:
                    handle.stop()
                    if restarts.pop(batch).get("purge_last_commit"):
                        _purge_last_commit(lake, query)
                    query = PipelineQuery(spark, lake, pipeline)
                    handle = query.start()
                    handle.processAllAvailable()
                events = [case.events[index] for index in step.events]
                bronze.append(
                    [
                        {
                            "k": key_of(event),
                            "v": json.dumps(event.get("value")) if encoded else event.get("value"),
                            "t": lakes.at(int(event["ts_ms"]) + case.shift_ms),
                        }
                        for event in events
                    ],
                    ids=[f"e{index}" for index in step.events],
                )
            handle.processAllAvailable()
    except StreamingQueryException as error:
        raise query.error or error from None
    finally:
        handle.stop()


def _purge_last_commit(lake: Lake, query: PipelineQuery) -> None:
    """As if the driver had died between a batch's last commit and Spark's own log of it."""
    commits = Path(lake.path(query.epoch.folder, "commits"))
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)


def _compare(lake: Lake, case: Case, pipeline: Pipeline, outcome: model.Outcome) -> None:
    """What Tidemark wrote against what its rules say."""
    written = {
        (row["k"], lakes.ms(row["window_start"]), lakes.ms(row["window_end"])): (row["n"], _written(case, row))
        for row in lakes.rows(lake, "gold.case")
    }
    ruled = {
        (row.key, row.window_start_ms, row.window_end_ms): (
            row.count,
            case.value(_found(case, row).members),
        )
        for row in outcome.closed
    }
    problem = _differ("rows", written, ruled)
    kept = [
        model.LatePair(-1, row["_event_id"], lakes.ms(w["window_start"]), lakes.ms(w["window_end"]))
        for row in lakes.rows(lake, "gold.case__late")
        for w in row["missed_windows"]
    ]
    problem = problem or _differ(
        "late rows", sorted(kept), sorted(pair._replace(batch_id=-1) for pair in outcome.late_pairs)
    )
    ledger = lakes.ledger(lake, pipeline)
    # The empty file that makes the table may be a batch of its own; it holds nothing and moves nothing.
    results = [row.pairs_result for _, row in ledger if row.pairs_result]
    emitted = [sum(row.count for row in batch.closed) for batch in outcome.batches if batch.closed]
    problem = problem or _differ("pairs of each batch that closed windows", results, emitted)
    still = sum(row.count for row in outcome.open)
    problem = problem or _differ("open pairs", Totals.of(row for _, row in ledger).pairs_open, still)
    if problem is not None:
        raise CaseError(f"Tidemark does not do what its rules say: {problem}")
    lakes.assert_balanced(lake, pipeline)


def _written(case: Case, row: Mapping[str, Any]) -> Any:
    if case.agg == "collect":
        return case.normal([json.loads(item["v"]) for item in row["value"]])
    return row["value"]


def read(path: Path) -> Iterator[Case]:
    """The cases of a file."""
    content = json.loads(path.read_text())
    for raw in content["cases"] if isinstance(content, dict) else content:
        yield Case(raw)


def main(arguments: Sequence[str]) -> int:
    """Runs the cases of a file; one line each."""
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        sys.stderr.write(f"expected one file of cases, got {list(arguments)}: make cases FILE=windows.json\n")
        return 2
    passed = failed = 0
    shown: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        spark = build_session(Lake(folder), settings=Settings(master="local[2]", shuffle_partitions=1))
        for number, case in enumerate(read(Path(arguments[0]))):
            if not case.built:
                _say(f"not built: {case.kind}  ({case.id})")
                continue
            try:
                differences = run_case(spark, Lake(f"{folder}/{number}"), case)
            except Exception as error:  # noqa: BLE001
                failed += 1
                _say(f"FAILED  {case.id}: {type(error).__name__}: {error}")
                continue
            passed += 1
            shown.update(differences)
            _say(f"passed  {case.id}" + (f"  [differs: {'; '.join(differences)}]" if differences else ""))
        spark.stop()
    for name in DIFFERENCES:
        if name in shown:
            _say(f"differs: {name}: {DIFFERENCES[name][2]}")
    _say(f"{passed} of {passed + failed} passed")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
