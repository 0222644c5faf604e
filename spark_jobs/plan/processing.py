"""Runs a processor over the events of a key: the same in a stream, in batch and in a test. Pure.

Events and timers of a key are taken in one order of time. At one instant events come before timers, so that a timer
sees all that had happened by then; timers go by their instant and name.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from sqlglot import exp

from spark_jobs.spec.errors import TidemarkError
from spark_jobs.spec.processors import Processor, Timers, instant_of, made_from
from spark_jobs.spec.steps.process import Process

_US = timedelta(microseconds=1)
_value = json.JSONDecoder(parse_float=str).raw_decode
"""Reads the value at the beginning of a text. Numbers with a fraction stay texts: those of decimals are exact."""
_text = json.JSONEncoder(separators=(",", ":")).encode
_TTL = "\x00ttl"
"""The timer by which a key is forgotten; no processor's name has such a character."""

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""(a value of JSON -> of Python, a value of Python -> of JSON)."""


class ProcessorError(TidemarkError):
    """A processor has failed, or has given what its types do not allow."""


_WHOLE = {
    exp.DType.TINYINT: 8,
    exp.DType.SMALLINT: 16,
    exp.DType.INT: 32,
    exp.DType.BIGINT: 64,
}


def codec(sql_type: str | exp.DataType) -> Codec:
    """How values of a SQL type stand in JSON.

    Args:
        sql_type: of Spark.
    """
    tree = exp.DataType.build(sql_type, dialect="spark") if isinstance(sql_type, str) else sql_type
    kind, inner = tree.this, tree.expressions
    if (bits := _WHOLE.get(kind)) is not None:
        return int, _whole(bits)
    match kind:
        case exp.DType.BOOLEAN:
            return bool, _checked(bool)
        case exp.DType.TEXT | exp.DType.VARCHAR | exp.DType.CHAR:
            return str, _checked(str)
        case exp.DType.FLOAT | exp.DType.DOUBLE:
            return float, _real
        case exp.DType.DECIMAL:
            scale = int(inner[1].name) if len(inner) > 1 else 0
            return Decimal, _decimal(scale)
        case exp.DType.TIMESTAMP | exp.DType.TIMESTAMPTZ | exp.DType.TIMESTAMPLTZ:
            return datetime.fromisoformat, _instant
        case exp.DType.DATE:
            return date.fromisoformat, _day
        case exp.DType.ARRAY:
            load, dump = nullable(codec(inner[0]))
            return (lambda value: [load(v) for v in value]), (lambda value: [dump(v) for v in _a(list, tuple)(value)])
        case exp.DType.MAP:
            load, dump = nullable(codec(inner[1]))
            return (
                lambda value: {k: load(v) for k, v in value.items()},
                lambda value: {_checked(str)(k): dump(v) for k, v in _a(dict)(value).items()},
            )
        case exp.DType.STRUCT:
            return fields_codec({each.name: each.args["kind"] for each in inner})
    raise ProcessorError(f"type {tree.sql(dialect='spark')}: a processor's values are of other types: cast the column")


def fields_codec(types: Mapping[str, str | exp.DataType]) -> Codec:
    """Of values with named fields."""
    codecs = {name: nullable(codec(each)) for name, each in types.items()}

    def load(value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: each[0](value.get(name)) for name, each in codecs.items()}

    def dump(value: Any) -> dict[str, Any]:
        given = _a(dict)(value)
        if not given.keys() <= codecs.keys():
            raise ValueError(f"{sorted(given.keys() - codecs.keys())} are no fields of it; it has {sorted(codecs)}")
        found = {}
        for name, each in codecs.items():
            try:
                found[name] = each[1](given.get(name))
            except (TypeError, ValueError, ArithmeticError) as error:
                raise ValueError(f"{name}: {error}") from None
        return found

    return load, dump


def reader(types: Mapping[str, str | exp.DataType]) -> Callable[[str], dict[str, Any]]:
    """What reads the JSON of values with named fields, as Spark has written it of columns of these very types.

    So whole numbers, texts and truth values are there already as they are to be.
    """
    load_all, _ = fields_codec(types)
    loads = [(name, codec(each)[0]) for name, each in types.items()]
    loads = [(name, load) for name, load in loads if load not in (int, str, bool)]

    def read(text: str) -> dict[str, Any]:
        found: dict[str, Any]
        found, _ = _value(text)
        if found.keys() != types.keys():
            return dict(load_all(found))
        for name, load in loads:
            if (value := found[name]) is not None:
                found[name] = load(value)
        return found

    return read


def nullable(of: Codec) -> Codec:
    """Of values that may be null."""
    load, dump = of
    return (
        lambda value: None if value is None else load(value),
        lambda value: None if value is None else dump(value),
    )


def _a(*kinds: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError(f"expected {' or '.join(kind.__name__ for kind in kinds)}, got {value!r}")
        return value

    return check


def _checked(kind: type) -> Callable[[Any], Any]:
    return _a(kind)


def _whole(bits: int) -> Callable[[Any], int]:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def dump(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"expected a whole number, got {value!r}")
        if not least <= value <= most:
            raise ValueError(f"expected a number from {least} to {most}, got {value}")
        return value

    return dump


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def _decimal(scale: int) -> Callable[[Any], str]:
    def dump(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise TypeError(f"expected a Decimal, got {value!r}")
        exact = Decimal(value)
        if exact != (rounded := round(exact, scale)):
            raise ValueError(f"expected at most {scale} digits after the point, got {value}: round it")
        return str(rounded)

    return dump


def _instant(value: Any) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError(f"expected a datetime with a zone, got {value!r}")
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _day(value: Any) -> str:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise TypeError(f"expected a date, got {value!r}")
    return value.isoformat()


Arrival = tuple[int, int, int, str]
"""An event that a processor is to take: when it happened, or, by the clock, when it arrived; its number in order of
arrival; its event time; all of it, as JSON. Times are microseconds since 1970."""


class Given(NamedTuple):
    """A row that a processor has given.

    Attributes:
        at_us: the event time of what gave it.
        number: among the rows of its key at that instant: of an event its number times 1,024, and which of its rows.
        events: how many events of the key were taken since the row before, or since the key was forgotten.
        row: as JSON.
    """

    at_us: int
    number: int
    events: int
    row: str


@dataclass
class KeyState:
    """What is kept of a key.

    Attributes:
        fields: of the processor.
        timers: that are set.
        events: taken since the last row.
        forget_us: when its time to live ends, in microseconds since 1970; None: never.
    """

    fields: dict[str, Any]
    timers: Timers = field(default_factory=Timers)
    events: int = 0
    forget_us: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the key can be forgotten."""
        nothing = not self.timers.at_us and self.forget_us is None
        return nothing and all(value is None for value in self.fields.values())

    @property
    def next_us(self) -> int | None:
        """When the next timer fires, or the key is forgotten; None: never."""
        first = min(self.timers.at_us.values(), default=None)
        if first is None or self.forget_us is None:
            return self.forget_us if first is None else first
        return min(first, self.forget_us)


class ProcessRunner:
    """A processor, ready to run.

    Args:
        step: which names it.
        columns: of the events, with their SQL types.
    """

    def __init__(self, step: Process, columns: Mapping[str, str]) -> None:
        self._step, self._names = step, tuple(step.state)
        self._processor: Processor = made_from(step.code, step.processor)
        self._read_event = reader(columns)
        self._read_key = reader({name: columns[name] for name in step.by})
        self._load_state, self._dump_state = fields_codec(step.state)
        _, self._dump_row = fields_codec(step.output)
        self._ttl_us = None if step.ttl is None else step.ttl // _US
        # Of events as they are read nothing tells what their times have passed but the watermark, at the end.
        self._in_time = step.order == "event_time" or step.clock == "processing_time"

    def state(self, kept: str | None) -> KeyState:
        """What was kept of a key.

        Args:
            kept: as `kept` gave it; None: nothing was.
        """
        if kept is None:
            return KeyState(dict.fromkeys(self._names))
        found = json.loads(kept)
        fields, timers, version = found["state"], found["timers"], found["version"]
        if version > self._step.version:
            raise ProcessorError(
                f"processor {self._step.processor}: version {self._step.version} cannot read the state that version "
                f"{version} has kept. Put version {version} back, or restore a savepoint from before it"
            )
        fields = self._migrated(fields, version) if version < self._step.version else self._load_state(fields)
        forget_us = timers.pop(_TTL, None)
        return KeyState(fields, Timers(timers), found["events"], forget_us)

    def _migrated(self, kept: dict[str, Any], version: int) -> dict[str, Any]:
        """The fields of a state that a lower version has kept; none is taken for what it is not."""
        try:
            given = self._processor.migrate(kept, version)
            fields = self._load_state(given)
            if not _has_form(given, self._dump_state({**fields, **dict.fromkeys(given.keys() - fields)})):
                raise ValueError(f"expected {dict(self._step.state)} in the form in which they are kept, got {given}")
        except Exception as error:
            said = f"migrate from version {version}: {type(error).__name__}: {error}"
            raise ProcessorError(f"processor {self._step.processor}: {said}") from error
        return dict(fields)

    def kept(self, state: KeyState) -> str | None:
        """What to keep of a key; None: nothing."""
        if state.is_empty:
            return None
        try:
            fields = self._dump_state(state.fields)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ProcessorError(f"processor {self._step.processor}: state: {error}") from None
        ttl = {} if state.forget_us is None else {_TTL: state.forget_us}
        return _text(
            {
                "version": self._step.version,
                "state": fields,
                "timers": {**state.timers.at_us, **ttl},
                "events": state.events,
            }
        )

    def run(self, key: str, state: KeyState, arrivals: Sequence[Arrival], upto_us: int) -> Iterator[Given]:
        """Takes events and fires timers, in one order of time.

        Args:
            key: its columns, as JSON.
            state: of the key; it is changed.
            arrivals: events, in the order in which they are to be taken.
            upto_us: timers fire up to this instant.

        Raises:
            ProcessorError: if the processor fails.
        """
        next_us = state.next_us
        if not arrivals and (next_us is None or next_us > upto_us):
            return
        columns = self._read_key(key)
        for at_us, seq, time_us, text in arrivals:
            if self._in_time and next_us is not None and next_us < at_us:
                yield from self._fire(columns, state, min(at_us - 1, upto_us))
            event = self._read_event(text)
            state.events += 1
            if self._ttl_us is not None:
                state.forget_us = at_us + self._ttl_us
            if rows := self._call("on_event", state, columns, event):
                yield from self._given(rows, state, time_us, seq * 1024)
            # Here, not when it is kept: where a batch ends must not matter.
            if state.is_empty:
                state.events = 0
            next_us = state.next_us
        yield from self._fire(columns, state, upto_us)

    def _fire(self, key: Mapping[str, Any], state: KeyState, upto_us: int) -> Iterator[Given]:
        """Fires the timers up to an instant, those included that are set meanwhile."""
        last_us, number = None, 0
        while (at_us := state.next_us) is not None and at_us <= upto_us:
            set_at = state.timers.at_us
            name = min((name for name, each in set_at.items() if each == at_us), default=None)
            # A key is forgotten after what it does at that instant.
            if name is None:
                state.fields, state.timers, state.forget_us = dict.fromkeys(self._names), Timers(), None
                state.events = 0
                return
            del set_at[name]
            rows = self._call("on_timer", state, key, name, instant_of(at_us))
            # Of timers at one instant the rows count on, so that each has a number of its own.
            number = number if at_us == last_us else 0
            yield from self._given(rows, state, at_us, number)
            last_us, number = at_us, number + len(rows)
            if state.is_empty:
                state.events = 0

    def _given(self, rows: Iterable[Any], state: KeyState, at_us: int, first: int) -> Iterator[Given]:
        for number, row in enumerate(rows):
            yield Given(at_us, first + number, state.events, _text(self._checked(row)))
            state.events = 0

    def _checked(self, row: Any) -> dict[str, Any]:
        try:
            return self._dump_row(row)  # type: ignore[no-any-return]
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ProcessorError(f"processor {self._step.processor}: output: {error}") from None

    def _call(self, method: str, state: KeyState, *arguments: Any) -> list[Any]:
        fields = state.fields
        try:
            rows = list(getattr(self._processor, method)(*arguments, fields, state.timers) or ())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ProcessorError(f"processor {self._step.processor}: {method}: {said}") from error
        for name in self._names:
            if name not in fields:
                fields[name] = None  # one that was taken out is null
        return rows


def _has_form(given: Any, kept: Any) -> bool:
    """Whether a value of JSON stands as values of its type are kept; a struct may leave fields out."""
    if isinstance(kept, dict) and isinstance(given, dict):
        return given.keys() <= kept.keys() and all(_has_form(given.get(name), each) for name, each in kept.items())
    if isinstance(kept, list) and isinstance(given, list):
        return len(given) == len(kept) and all(map(_has_form, given, kept))
    return type(given) is type(kept) or (type(given) is int and type(kept) is float)


class Bucket:
    """The keys of one bucket of a stream: what waits for the watermark, and when timers fire.

    Args:
        runner: of the processor.
        step: which names it.
        kept: as `text` gave it; None: nothing was.

    Attributes:
        next_us: when something is to be done although nothing new comes; None: never.
    """

    def __init__(self, runner: ProcessRunner, step: Process, kept: str | None) -> None:
        self._runner, self._ordered = runner, step.order == "event_time"
        waiting, _, timers = (kept or "\n\n").partition("\n\n")
        self._waiting = waiting.split("\n") if waiting else []
        self._timers = {key: int(at) for at, _, key in (line.partition("\t") for line in timers.split("\n") if line)}
        self.next_us: int | None = None

    def advance(
        self,
        lines: Iterable[str],
        upto_us: int,
        get: Callable[[Sequence[str]], Iterable[str | None]],
        put: Callable[[Sequence[tuple[str, str | None]]], None],
    ) -> Iterator[tuple[str, Given]]:
        """Takes what is new, and goes on to an instant.

        Args:
            lines: an event each, as `line_of` writes it.
            upto_us: where the watermark, or the clock, stands; microseconds since 1970.
            get: what is kept of keys.
            put: keeps something of keys; None: nothing any more.
        """
        ready, rest = dict[str, list[Arrival]](), list[str]()
        # Of events that go on waiting the lines stay as they are.
        after_us = upto_us if self._ordered else _NEVER_US
        least_us = _NEVER_US
        for line in chain(self._waiting, lines):
            at, _, others = line.partition("\t")
            if (at_us := int(at)) > after_us:
                rest.append(line)
                least_us = min(least_us, at_us)
                continue
            seq, time, key, event = others.split("\t")
            arrival = (at_us, int(seq), int(time), event)
            if (found := ready.get(key)) is None:
                ready[key] = [arrival]
            else:
                found.append(arrival)
        self._waiting, timers = rest, self._timers
        for key in [key for key, at_us in timers.items() if at_us <= upto_us]:
            ready.setdefault(key, [])
        changed = list[tuple[str, str | None]]()
        for (key, events), before in zip(ready.items(), get(tuple(ready)), strict=True):
            events.sort(key=None if self._ordered else itemgetter(1))
            state = self._runner.state(before)
            for given in self._runner.run(key, state, events, upto_us):
                yield key, given
            if (after := self._runner.kept(state)) != before:
                changed.append((key, after))
            if (next_us := state.next_us) is None:
                timers.pop(key, None)
            else:
                timers[key] = next_us
        put(changed)
        least_us = min(least_us, *timers.values(), _NEVER_US)
        self.next_us = None if least_us == _NEVER_US else least_us

    @property
    def text(self) -> str:
        """What to keep of the bucket."""
        timers = "\n".join([f"{at_us}\t{key}" for key, at_us in self._timers.items()])
        return "\n".join(self._waiting) + "\n\n" + timers


_NEVER_US = 2**63


def line_of(at_us: int, seq: int, time_us: int, key: str, event: str) -> str:
    """An event of a bucket, as it arrives and as it waits; JSON has neither tabulators nor line breaks in it.

    Args:
        at_us: when it happened, or, by the clock, when it arrived; microseconds since 1970.
        seq: its number in order of arrival.
        time_us: its event time.
        key: of it, as JSON.
        event: all of it, as JSON.
    """
    return f"{at_us}\t{seq}\t{time_us}\t{key}\t{event}"
