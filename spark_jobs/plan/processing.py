"""Runs a processor over the events of a key: the same in a stream, in batch and in a test. Pure.

Events and timers of a key are taken in one order of time. At one instant events come before timers, so that a timer
sees all that had happened by then; timers go by their instant and name.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlglot import exp

from spark_jobs.spec.errors import TidemarkError
from spark_jobs.spec.processors import Processor, Timers, made_from
from spark_jobs.spec.steps.process import Process

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_JSON = json.JSONDecoder(parse_float=str)
"""Numbers with a fraction stay texts: those of decimals are exact."""
_TTL = "\x00ttl"
"""The timer by which a key is forgotten; no processor's name has such a character."""

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""(a value of JSON -> of Python, a value of Python -> of JSON)."""


class ProcessorError(TidemarkError):
    """A processor has failed, or has given what its types do not allow."""


def instant_of(us: int) -> datetime:
    """An instant of microseconds since 1970."""
    return EPOCH + us * _US


def us_of(instant: datetime) -> int:
    """Microseconds since 1970 of an instant."""
    return (instant - EPOCH) // _US


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
        if unknown := sorted(given.keys() - codecs.keys()):
            raise ValueError(f"{unknown} are no fields of it; it has {sorted(codecs)}")
        found = {}
        for name, each in codecs.items():
            try:
                found[name] = each[1](given.get(name))
            except (TypeError, ValueError, ArithmeticError) as error:
                raise ValueError(f"{name}: {error}") from None
        return found

    return load, dump


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


@dataclass
class Arrival:
    """An event that a processor is to take.

    Attributes:
        at_us: when it happened, or, by the clock, when it arrived; microseconds since 1970.
        seq: its number in order of arrival.
        event: all of it, as JSON.
        time_us: its event time.
    """

    at_us: int
    seq: int
    event: str
    time_us: int


@dataclass
class Given:
    """A row that a processor has given.

    Attributes:
        at_us: the event time of what gave it.
        number: among the rows of its key at that instant: of an event its number times 1,024, and which of its rows.
        events: how many events of the key were taken since the row before.
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
        timers: name -> when it fires, in microseconds since 1970.
        events: taken since the last row.
    """

    fields: dict[str, Any]
    timers: dict[str, int] = field(default_factory=dict)
    events: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the key can be forgotten."""
        return not self.timers and all(value is None for value in self.fields.values())

    @property
    def next_us(self) -> int | None:
        """When the next timer fires; None: none is set."""
        return min(self.timers.values(), default=None)


class ProcessRunner:
    """A processor, ready to run.

    Args:
        step: which names it.
        columns: of the events, with their SQL types.
    """

    def __init__(self, step: Process, columns: Mapping[str, str]) -> None:
        self._step = step
        self._processor: Processor = made_from(step.code, step.processor)
        self._load_event, _ = fields_codec(columns)
        self._load_key, _ = fields_codec({name: columns[name] for name in step.by})
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
            return KeyState(dict.fromkeys(self._step.state))
        found = json.loads(kept)
        fields = found["state"]
        version = found["version"]
        if version > self._step.version:
            raise ProcessorError(
                f"processor {self._step.processor}: version {self._step.version} cannot read the state that version "
                f"{version} has kept. Put version {version} back, or restore a savepoint from before it"
            )
        if version < self._step.version:
            fields = self._processor.migrate(fields, version)
        return KeyState(self._load_state(fields), found["timers"], found["events"])

    def kept(self, state: KeyState) -> str | None:
        """What to keep of a key; None: nothing."""
        if state.is_empty:
            return None
        try:
            fields = self._dump_state(state.fields)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ProcessorError(f"processor {self._step.processor}: state: {error}") from None
        return json.dumps(
            {
                "version": self._step.version,
                "state": fields,
                "timers": state.timers,
                "events": state.events,
            },
            separators=(",", ":"),
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
        if not arrivals and (state.next_us is None or state.next_us > upto_us):
            return
        columns = self._load_key(_JSON.decode(key))
        for arrival in arrivals:
            if self._in_time:
                yield from self._fire(columns, state, min(arrival.at_us - 1, upto_us))
            yield from self._take(columns, state, arrival)
        yield from self._fire(columns, state, upto_us)

    def _take(self, key: Mapping[str, Any], state: KeyState, arrival: Arrival) -> Iterator[Given]:
        event = self._load_event(_JSON.decode(arrival.event))
        state.events += 1
        if self._ttl_us is not None:
            state.timers[_TTL] = arrival.at_us + self._ttl_us
        timers = self._timers(state)
        rows = self._call("on_event", key, event, state.fields, timers)
        self._set(state, timers)
        yield from self._given(rows, state, arrival.time_us, arrival.seq * 1024)

    def _fire(self, key: Mapping[str, Any], state: KeyState, upto_us: int) -> Iterator[Given]:
        """Fires the timers up to an instant, those included that are set meanwhile."""
        while state.timers:
            # A key is forgotten after what it does at that instant.
            at_us, _, name = min((at_us, name == _TTL, name) for name, at_us in state.timers.items())
            if at_us > upto_us:
                return
            del state.timers[name]
            if name == _TTL:
                state.fields = dict.fromkeys(self._step.state)
                state.timers.clear()
                return
            timers = self._timers(state)
            rows = self._call("on_timer", key, name, instant_of(at_us), state.fields, timers)
            self._set(state, timers)
            yield from self._given(rows, state, at_us, 0)

    def _timers(self, state: KeyState) -> Timers:
        return Timers({name: instant_of(us) for name, us in state.timers.items() if name != _TTL})

    def _set(self, state: KeyState, timers: Timers) -> None:
        for name in self._step.state:
            state.fields.setdefault(name)  # one that was taken out is null
        ttl = {_TTL: state.timers[_TTL]} if _TTL in state.timers else {}
        state.timers = {**{name: us_of(at) for name, at in timers.items()}, **ttl}

    def _given(self, rows: Iterable[Any], state: KeyState, at_us: int, first: int) -> Iterator[Given]:
        for number, row in enumerate(rows):
            text = json.dumps(self._checked(row), separators=(",", ":"))
            yield Given(at_us, first + number, state.events, text)
            state.events = 0

    def _checked(self, row: Any) -> dict[str, Any]:
        try:
            return self._dump_row(row)  # type: ignore[no-any-return]
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ProcessorError(f"processor {self._step.processor}: output: {error}") from None

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        try:
            rows = list(getattr(self._processor, method)(*arguments) or ())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise ProcessorError(f"processor {self._step.processor}: {method}: {said}") from error
        return rows


class Bucket:
    """The keys of one bucket of a stream: what waits for the watermark, and when timers fire.

    Args:
        runner: of the processor.
        step: which names it.
        kept: as `text` gave it; None: nothing was.
    """

    def __init__(self, runner: ProcessRunner, step: Process, kept: str | None) -> None:
        self._runner, self._ordered = runner, step.order == "event_time"
        waiting, _, timers = (kept or "\n\n").partition("\n\n")
        self._waiting = [_waiting(line) for line in waiting.split("\n") if line]
        self._timers = {key: int(at) for at, key in (line.split("\t") for line in timers.split("\n") if line)}

    def advance(
        self,
        arrivals: Iterable[tuple[str, Arrival]],
        upto_us: int,
        get: Callable[[str], str | None],
        put: Callable[[str, str | None], None],
    ) -> Iterator[tuple[str, Given]]:
        """Takes what is new, and goes on to an instant.

        Args:
            arrivals: (key, event).
            upto_us: where the watermark, or the clock, stands; microseconds since 1970.
            get: what is kept of a key.
            put: keeps something of a key; None: nothing any more.
        """
        self._waiting.extend(arrivals)
        ready, rest = dict[str, list[Arrival]](), []
        for key, arrival in self._waiting:
            if self._ordered and arrival.at_us > upto_us:
                rest.append((key, arrival))
            else:
                ready.setdefault(key, []).append(arrival)
        self._waiting = rest
        for key in [key for key, at_us in self._timers.items() if at_us <= upto_us]:
            ready.setdefault(key, [])
        for key, events in ready.items():
            events.sort(key=lambda each: (each.at_us, each.seq) if self._ordered else each.seq)
            before = get(key)
            state = self._runner.state(before)
            for given in self._runner.run(key, state, events, upto_us):
                yield key, given
            if (after := self._runner.kept(state)) != before:
                put(key, after)
            if (next_us := state.next_us) is None:
                self._timers.pop(key, None)
            else:
                self._timers[key] = next_us

    @property
    def next_us(self) -> int | None:
        """When something is to be done although nothing new comes; None: never."""
        waiting = (arrival.at_us for _, arrival in self._waiting)
        return min((*waiting, *self._timers.values()), default=None)

    @property
    def text(self) -> str:
        """What to keep of the bucket."""
        waiting = "\n".join(
            f"{each.at_us}\t{each.seq}\t{each.time_us}\t{key}\t{each.event}" for key, each in self._waiting
        )
        return waiting + "\n\n" + "\n".join(f"{at_us}\t{key}" for key, at_us in self._timers.items())


def _waiting(line: str) -> tuple[str, Arrival]:
    at_us, seq, time_us, key, event = line.split("\t")
    return key, Arrival(int(at_us), int(seq), event, int(time_us))
