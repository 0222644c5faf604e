"""A case as its file tells it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_jobs.spec import Hopping, Session, Window
from tests.cases.differences import BUILT, DIFFERENCES, WINDOWS
from tests.cases.errors import CaseError
from tests.cases.reach import Reach, reach
from tests.support import model

FAR_MS = 1_000_000_000_000  # 2001
SIDES = ("left", "right")
TIMES = ("ts_ms", "ts", "event_time")
KINDS_OF_JOIN = {"inner": "inner", "left": "left", "right": "right", "full": "full", "outer": "full"}


@dataclass(frozen=True, order=True)
class CaseWindow:
    """A window in the case's own time, with the arrival numbers of the events in it."""

    key: str
    start_ms: int
    end_ms: int
    members: tuple[int, ...]
    emitted_after: int | None = field(default=None, compare=False)


@dataclass(frozen=True, order=True)
class CaseRow:
    """A row of a dedup or join case: the places of its events in the case, -1 for the side that has none."""

    members: tuple[int, ...]
    emitted_after: int


@dataclass(frozen=True)
class Verdict:
    """What becomes of a case under some rules."""

    closed: tuple[CaseWindow, ...]
    open: tuple[CaseWindow, ...]
    late: frozenset[int]
    partly_late: frozenset[int]
    rows: tuple[CaseRow, ...] = ()
    duplicates: int = 0


@dataclass(frozen=True)
class Step:
    """One thing that is fed: events, by their place in the case, or a watermark, of one side or of all."""

    events: tuple[int, ...] = ()
    watermark_ms: int | None = None
    sides: tuple[int, ...] = (0,)
    after: int = 0


class Case:
    """A case as it is read: unknown fields do not matter, missing ones have a meaning."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        if not isinstance(raw, Mapping) or not {"id", "kind", "params", "events"} <= raw.keys():
            raise CaseError(f"expected a case with id, kind, params and events, got {str(raw)[:200]}")
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
        """Reads all that a case of its kind has.

        Raises:
            CaseError: if something that decides cannot be read.
        """
        params = self.raw["params"]
        self.events: list[Mapping[str, Any]] = sorted(
            self.raw["events"], key=lambda event: event.get("arrival_order", 0)
        )
        self.orders = [event.get("arrival_order", index + 1) for index, event in enumerate(self.events)]
        self.grace_ms = int(params.get("grace_ms") or 0)
        self.agg = (params.get("agg") or "count").split()[0].strip(",;:")
        self.in_order = "arrival" in (params.get("agg") or "")
        model_text = params.get("watermark_model") or "none"
        known = (name for name in ("explicit", "per_event", "per_batch", "none") if model_text.startswith(name))
        fed = next(known, None)
        if fed is None:
            raise CaseError(f"watermark_model: expected explicit, per_event, per_batch or none, got {model_text!r}")
        self.fed = fed
        self._prepare_what_is_judged()
        self.windowed = self.kind in WINDOWS
        if self.windowed:
            self._prepare_windows(params)
        elif self.kind == "join":
            self._prepare_join(params)
        else:
            self._prepare_dedup(params)
        self.shift_ms = self.every_ms * -(-(FAR_MS - min(self.times(), default=0)) // self.every_ms)
        # Sessions that end with their last event: told by the bounds, where the engine has such.
        bounds = (params.get("bounds") or "").replace(" ", "")
        self.inclusive_end = self.has("end of a session") and not bounds.startswith("[first,last+gap")
        self.explicit_lateness = self.windowed and self.fed == "explicit" and self.grace_ms > 0

    def _prepare_what_is_judged(self) -> None:
        asserts = self.raw.get("asserts")
        if asserts not in (None, "all", "late_only"):
            raise CaseError(f"asserts: expected 'late_only' or nothing, got {asserts!r}")
        self.late_only = asserts == "late_only"
        self.unasserted: list[Mapping[str, Any]] = list(self.raw.get("unasserted") or ())
        if not all(isinstance(entry, Mapping) and entry for entry in self.unasserted):
            raise CaseError(f"unasserted: expected a list of windows or rows, got {self.raw['unasserted']!r}")

    def _prepare_windows(self, params: Mapping[str, Any]) -> None:
        size = "gap_ms" if self.kind == "session" else "size_ms"
        if not isinstance(params.get(size), int):
            raise CaseError(f"{size}: expected milliseconds for a {self.kind} case, got {params.get(size)!r}")
        self.size_ms = params[size]
        self.every_ms = int(params.get("hop_ms") or self.size_ms)
        self.offset_ms = int(params.get("offset_ms") or 0) % self.every_ms

    def _prepare_dedup(self, params: Mapping[str, Any]) -> None:
        keys = params.get("dedup_keys") or ["key"]
        if isinstance(keys, str) or not all(isinstance(name, str) for name in keys):
            raise CaseError(f"dedup_keys: expected a list of names, got {keys!r}")
        self.dedup_keys: tuple[str, ...] = tuple("ts_ms" if name in TIMES else name for name in keys)
        # Spark remembers a key for as long as the watermark waits. With the time among the keys it does not matter:
        # what would be a duplicate by then is late.
        named = params.get("within_ms") or params.get("ttl_ms") or self.grace_ms
        self.size_ms = int(named) or int("ts_ms" in self.dedup_keys)
        self.every_ms = 1
        if not self.size_ms:
            raise CaseError("dedup: expected within_ms, ttl_ms or grace_ms to tell how long a key is remembered")

    def _prepare_join(self, params: Mapping[str, Any]) -> None:
        wanted = str(params.get("join_type") or "inner").lower()
        how = KINDS_OF_JOIN.get(wanted) or KINDS_OF_JOIN.get(wanted.replace("outer", "").strip("_- "))
        if how is None:
            raise CaseError(f"join_type: expected inner, left, right or full, got {wanted!r}")
        self.how = how
        sides = [event.get("side") for event in self.events]
        if not set(sides) <= set(SIDES):
            raise CaseError(f"side: expected 'left' or 'right' of each event, got {sides}")
        self.reach: Reach = reach(params)
        lowest, highest = self.reach
        span_ms = max(self.times(), default=0) - min(self.times(), default=0) + 1
        self.before_ms = span_ms if lowest is None else max(-lowest, 0)
        # Tidemark needs one bound that is greater than zero.
        self.within_ms = span_ms if highest is None else max(highest, int(not self.before_ms))
        self.narrower = lowest not in (None, -self.before_ms) or highest not in (None, self.within_ms)
        if self.narrower and self.how != "inner":
            raise CaseError(
                f"{self.how} join with {self.reach}: expected bounds with 0 between them and not both 0, which is all "
                "that Tidemark can say of a join that also writes events alone"
            )
        self.size_ms = max(self.within_ms, self.before_ms) + 1
        self.every_ms = 1

    def has(self, difference: str) -> bool:
        """Whether a difference of the table is one of this case's engine and kind."""
        engines, kinds, _ = DIFFERENCES[difference]
        return self.engine in engines and self.kind in kinds

    def times(self) -> list[int]:
        return [int(event["ts_ms"]) for event in self.events]

    @property
    def horizon_ms(self) -> int:
        """A watermark that closes everything."""
        return max(self.times(), default=0) + self.size_ms + self.grace_ms + 1

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
        """Of the left side, where there are two."""
        return self.delays_ms[0]

    @property
    def delays_ms(self) -> tuple[int, int]:
        """Kafka, quix, Spark: what they call grace. With explicit watermarks: so long that events move nothing."""
        if self.fed in ("per_event", "per_batch"):
            left, right = (self.raw["params"].get(f"{side}_delay_ms") for side in SIDES)
            return (self.grace_ms if left is None else int(left), self.grace_ms if right is None else int(right))
        lowest = min((*self.times(), *(step.watermark_ms for step in self.steps() if step.watermark_ms is not None)))
        return (self.horizon_ms - lowest + self.size_ms,) * 2

    @property
    def pipeline_grace_ms(self) -> int:
        """Allowed lateness after the watermark is Tidemark's grace; elsewhere it is the delay."""
        return self.grace_ms if self.fed == "explicit" else 0

    def steps(self) -> list[Step]:
        """What is fed one after the other."""
        if self.fed == "none":
            everything = tuple(range(len(self.events)))
            last = self.orders[-1] if self.orders else 0
            return [Step(everything, after=last), Step(watermark_ms=self.horizon_ms, sides=self.sides, after=last)]
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
                    own = self.sides if mark.get("side") is None else (SIDES.index(mark["side"]),)
                    watermark_ms = self._explicit(int(mark["watermark_ms"]))
                    steps.append(Step(watermark_ms=watermark_ms, sides=own, after=order))
        return steps

    @property
    def sides(self) -> tuple[int, ...]:
        """The streams of the case, by number."""
        return (0, 1) if self.kind == "join" else (0,)

    def side(self, index: int) -> int:
        """The stream of an event."""
        return SIDES.index(self.events[index]["side"]) if self.kind == "join" else 0

    @property
    def refused(self) -> bool:
        """Whether it is a join for which Tidemark has no definition."""
        return self.kind == "join" and self.reach == Reach(None, None)

    def _explicit(self, watermark_ms: int) -> int:
        """Tidemark's watermark for the engine's; the ends of time are brought to where they change nothing."""
        own = watermark_ms + 1 if self.has("watermark names the last instant") else watermark_ms
        lowest = min(self.times(), default=0) - 1
        return max(min(own, self.horizon_ms), lowest)

    def batches(self) -> list[model.Batch]:
        """The steps for the model: an event's value is a bit, so that a sum tells which events a window holds."""
        batches: list[model.Batch] = []
        for step in self.steps():
            if step.watermark_ms is not None:
                at = step.watermark_ms + self.shift_ms
                batches.append([model.Heartbeat(at + self.delays_ms[side], side) for side in step.sides])
            else:
                batches.append([self.modelled(index) for index in step.events])
        return batches

    def modelled(self, index: int) -> model.Event:
        event, side = self.events[index], self.side(index)
        return model.Event(f"e{index}", self.key(index), int(event["ts_ms"]) + self.shift_ms, 1 << index, source=side)

    def key(self, index: int) -> str | None:
        """What the case's step goes by; None where it matches nothing."""
        event = self.events[index]
        if self.kind == "dedup":
            return json.dumps([self.named(index, name) for name in self.dedup_keys], sort_keys=True)
        return None if self.kind == "join" and event.get("key") is None else key_of(event)

    def named(self, index: int, name: str) -> Any:
        """A field of an event, or of its value.

        Raises:
            CaseError: if it has none of that name.
        """
        event = self.events[index]
        if name in event:
            return event[name]
        if isinstance(event.get("value"), Mapping) and name in event["value"]:
            return event["value"][name]
        raise CaseError(f"dedup_keys: the event {event} has no field {name!r}")

    def matches(self, left: int, right: int) -> bool:
        """Whether two events of a join are close enough by the case's own bounds."""
        apart_ms = int(self.events[right]["ts_ms"]) - int(self.events[left]["ts_ms"])
        lowest, highest = self.reach
        return (lowest is None or lowest <= apart_ms) and (highest is None or apart_ms <= highest)

    def row(self, members: Sequence[int], after: int) -> CaseRow | None:
        """A row of a dedup or join case; None if the case does not want it: an event alone, of a side not named."""
        if self.kind == "join":
            left, right = members
            if left < 0 or right < 0:
                wanted = self.how in ("full", "left" if right < 0 else "right")
            else:
                wanted = self.matches(left, right)
            if not wanted:
                return None
        return CaseRow(tuple(members), after)

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


def read(path: Path) -> Iterator[Case]:
    """The cases of a file."""
    content = json.loads(path.read_text())
    for raw in content["cases"] if isinstance(content, dict) else content:
        yield Case(raw)
