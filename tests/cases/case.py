"""A case as its file tells it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_jobs.spec import Hopping, Session, Window
from tests import model
from tests.cases.differences import BUILT, DIFFERENCES

FAR_MS = 1_000_000_000_000  # 2001


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
        self.shift_ms = self.every_ms * -(-(FAR_MS - min(self.times(), default=0)) // self.every_ms)
        # Sessions that end with their last event: told by the bounds, where the engine has such.
        bounds = (params.get("bounds") or "").replace(" ", "")
        self.inclusive_end = self.has("end of a session") and not bounds.startswith("[first,last+gap")
        self.explicit_lateness = self.fed == "explicit" and self.grace_ms > 0

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
        """Kafka, quix, Spark: what they call grace. With explicit watermarks: so long that events move nothing."""
        if self.fed in ("per_event", "per_batch"):
            return self.grace_ms
        lowest = min((*self.times(), *(step.watermark_ms for step in self.steps() if step.watermark_ms is not None)))
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
        lowest = min(self.times(), default=0) - 1
        return max(min(own, self.horizon_ms), lowest)

    def batches(self) -> list[model.Batch]:
        """The steps for the model: an event's value is a bit, so that a sum tells which events a window holds."""
        batches: list[model.Batch] = []
        for step in self.steps():
            if step.watermark_ms is not None:
                batches.append([model.Heartbeat(step.watermark_ms + self.delay_ms + self.shift_ms)])
            else:
                batches.append([self.modelled(index) for index in step.events])
        return batches

    def modelled(self, index: int) -> model.Event:
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


def read(path: Path) -> Iterator[Case]:
    """The cases of a file."""
    content = json.loads(path.read_text())
    for raw in content["cases"] if isinstance(content, dict) else content:
        yield Case(raw)
