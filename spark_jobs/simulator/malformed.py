"""The ways in which a row is unreadable or wrong."""

from typing import Literal, get_args

from spark_jobs.simulator.streams import StreamFormat, Value

MalformedKind = Literal[
    "truncated",  # the row breaks off
    "wrong_type",  # words where a number belongs
    "missing_event_time",
    "missing_key",
    "not_a_record",  # some other program's output
    "garbage_timestamp",
]
FileFormat = Literal["json", "csv", "parquet"]

_NUMBERS = ("int", "decimal", "double")
_FOREIGN_TEXTS = ("<html><body>502 Bad Gateway</body></html>", "ERROR connection reset by peer", "%PDF-1.4")
_NOT_NUMBERS = ("twelve", "n/a", "1O")
_NOT_TIMES = ("yesterday", "2024-02-31T25:61:00.000Z", "31/02/2024 noon")


def kinds_for(stream: StreamFormat, file_format: FileFormat) -> tuple[MalformedKind, ...]:
    """The kinds that a row of this stream can have: Parquet is typed and only has gaps."""
    if file_format == "parquet":
        return ("missing_event_time", "missing_key")
    has_numbers = any(kind in _NUMBERS for kind in stream.columns.values())
    return tuple(kind for kind in get_args(MalformedKind) if kind != "wrong_type" or has_numbers)


def spoilt_values(
    kind: MalformedKind, stream: StreamFormat, values: dict[str, Value], *, variation: float
) -> dict[str, Value]:
    """The row's values with the fault; a missing column is left out. Faults of the text change nothing here.

    Args:
        kind: the fault.
        stream: columns of the row.
        values: the sound values; not changed.
        variation: in [0, 1), picks among the variants of a kind.
    """
    match kind:
        case "missing_event_time":
            return {name: value for name, value in values.items() if name != stream.event_time}
        case "missing_key":
            return {name: value for name, value in values.items() if name != stream.key}
        case "garbage_timestamp":
            return {**values, stream.event_time: _pick(_NOT_TIMES, variation)}
        case "wrong_type":
            numbers = tuple(n for n, column in stream.columns.items() if column in _NUMBERS)
            return {**values, _pick(numbers, variation): _pick(_NOT_NUMBERS, variation * 7 % 1)}
        case "truncated" | "not_a_record":
            return values


def spoilt_text(kind: MalformedKind, line: str, *, last_cut: int, variation: float) -> str:
    """The row's text with the fault. Faults of the values change nothing here.

    Args:
        kind: the fault.
        line: the sound text, without a line end.
        last_cut: longest prefix that is still broken: for JSON all but the closing brace, for CSV up to the
            last comma, which is left out.
        variation: in [0, 1), picks the place of the cut or the text.
    """
    match kind:
        case "truncated":
            return line[: 1 + int(variation * last_cut)]
        case "not_a_record":
            return _pick(_FOREIGN_TEXTS, variation)
        case _:
            return line


def _pick(choices: tuple[str, ...], variation: float) -> str:
    return choices[int(variation * len(choices))]
