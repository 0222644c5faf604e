"""A processor without Spark and without a lake."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from spark_jobs.plan.columns import INGEST_TIME
from spark_jobs.plan.operators import step_of
from spark_jobs.plan.processing import Bucket, ProcessRunner, fields_codec, line_of
from spark_jobs.spec import Pipeline, Process
from spark_jobs.spec.errors import DefinitionError
from spark_jobs.spec.processors import instant_of, us_of


class ProcessorTest:
    """Runs the processor of a pipeline over events that a test gives it, as a stream would.

    Nothing is kept between two calls but what a stream keeps: state, timers and what waits go through the form in which
    they lie in a checkpoint, and the processor is made anew. No JVM is started.

    Args:
        pipeline: with a `Process`; its other steps are not run: events are as they meet the processor.
        columns: of the events, with their SQL types.
    """

    def __init__(self, pipeline: Pipeline, columns: Mapping[str, str]) -> None:
        self._step, self._time = step_of(pipeline, Process), str(pipeline.event_time)
        if missing := sorted({*self._step.by, self._time} - columns.keys()):
            raise DefinitionError(f"columns: expected {missing} among them, got {sorted(columns)}")
        by_clock = {INGEST_TIME: "TIMESTAMP"} if self._step.clock == "processing_time" else {}
        self._columns = {**columns, **by_clock}
        _, self._dump_event = fields_codec(self._columns)
        self._load_key, self._dump_key = fields_codec({name: columns[name] for name in self._step.by})
        self._load_row, _ = fields_codec(self._step.output)
        self._text: str | None = None
        self._kept: dict[str, str] = {}
        self._now_us = -(2**62)
        self._seq = 0
        self._counts: Counter[str] = Counter()
        self._rows: list[dict[str, Any]] = []
        self._late: list[dict[str, Any]] = []

    def events(self, *events: Mapping[str, Any], arrived: datetime | str | None = None) -> "ProcessorTest":
        """Has events arrive, in this order; those at or behind the watermark are late.

        Args:
            events: column -> value; an instant may be a text such as `2026-11-27T18:00:00Z`.
            arrived: when they arrived in bronze, `_ingest_time`, where the step goes by the clock; None: now.
        """
        arrivals = []
        for given in events:
            event = {name: self._value(name, value) for name, value in given.items()}
            time_us, by_clock = us_of(event[self._time]), self._step.clock == "processing_time"
            self._counts["read"] += 1
            if not by_clock and time_us <= self._now_us:
                self._counts["late"] += 1
                self._late.append(event)
                continue
            self._counts["on_time"] += 1
            at_us = time_us
            if by_clock:
                at_us = self._now_us if arrived is None else us_of(_instant(arrived))
                event[INGEST_TIME] = instant_of(at_us)
            key = json.dumps(self._dump_key({name: event.get(name) for name in self._step.by}))
            text = json.dumps(self._dump_event(event))
            arrivals.append(line_of(at_us, self._seq, time_us, key, text))
            self._seq += 1
        self._advance(arrivals)
        return self

    def watermark(self, to: datetime | str) -> "ProcessorTest":
        """Moves the watermark: events up to it are taken, timers up to it fire."""
        return self._move("event_time", to)

    def clock(self, to: datetime | str) -> "ProcessorTest":
        """Moves the clock, where the step goes by it: timers up to it fire."""
        return self._move("processing_time", to)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What the processor has given so far: the key, the event time of what gave it, the output."""
        return list(self._rows)

    @property
    def late(self) -> list[dict[str, Any]]:
        """The events that came too late."""
        return list(self._late)

    @property
    def ledger(self) -> dict[str, int]:
        """Terms: read = on_time + late; on_time = counted, in rows, + remembered."""
        remembered = self._counts["on_time"] - self._counts["counted"]
        return {
            **{name: self._counts[name] for name in ("read", "on_time", "late", "counted")},
            "remembered": remembered,
        }

    def state(self, **key: Any) -> dict[str, Any] | None:
        """What is kept of a key; None: nothing."""
        kept = self._kept.get(self._key(key))
        return None if kept is None else self._runner().state(kept).fields

    def timers(self, **key: Any) -> dict[str, datetime]:
        """The timers of a key, and when each fires."""
        kept = self._kept.get(self._key(key))
        return {} if kept is None else dict(self._runner().state(kept).timers.items())

    def _key(self, key: Mapping[str, Any]) -> str:
        return json.dumps(self._dump_key({name: self._value(name, value) for name, value in key.items()}))

    def _value(self, name: str, value: Any) -> Any:
        if name not in self._columns:
            raise DefinitionError(f"event: {name!r} is none of the columns {sorted(self._columns)}")
        is_time = self._columns[name].strip().upper() == "TIMESTAMP"
        return _instant(value) if is_time and isinstance(value, str) else value

    def _move(self, clock: str, to: datetime | str) -> "ProcessorTest":
        if self._step.clock != clock:
            raise DefinitionError(f"the step goes by {self._step.clock}, and not by {clock}")
        to_us = us_of(_instant(to))
        if to_us < self._now_us:
            raise DefinitionError(f"{clock}: it stands at {instant_of(self._now_us)} and moves no way back, got {to}")
        self._now_us = to_us
        self._advance([])
        return self

    def _runner(self) -> ProcessRunner:
        return ProcessRunner(self._step, self._columns)

    def _advance(self, arrivals: list[str]) -> None:
        bucket = Bucket(self._runner(), self._step, self._text)
        for key, given in bucket.advance(arrivals, self._now_us, self._get, self._put):
            self._counts["counted"] += given.events
            row = self._load_row(json.loads(given.row, parse_float=str))
            self._rows.append({**self._load_key(json.loads(key)), self._time: instant_of(given.at_us), **row})
        self._text = bucket.text

    def _get(self, keys: Sequence[str]) -> list[str | None]:
        return [self._kept.get(key) for key in keys]

    def _put(self, states: Sequence[tuple[str, str | None]]) -> None:
        for key, state in states:
            if state is None:
                self._kept.pop(key, None)
            else:
                self._kept[key] = state

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)


def _instant(value: datetime | str) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
