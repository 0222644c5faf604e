"""Rows as JSON lines, CSV and Parquet."""

import csv
import io
import json
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.simulator.arrivals import Arrival
from spark_jobs.simulator.malformed import FileFormat, spoilt_text, spoilt_values
from spark_jobs.simulator.streams import FORMATS, ColumnKind, StreamFormat, StreamName, Value, iso_ms

_ARROW: dict[ColumnKind, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "decimal": pa.decimal128(10, 2),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def encoded(stream: StreamName, rows: Sequence[Arrival], file_format: FileFormat) -> bytes:
    """One file with these rows, in their order; a malformed row is one line too. CSV has a header line."""
    match file_format:
        case "json":
            return "".join(f"{json_line(row)}\n" for row in rows).encode()
        case "csv":
            header = ",".join(FORMATS[stream].columns)
            return "".join(f"{line}\n" for line in (header, *map(csv_line, rows))).encode()
        case "parquet":
            return _parquet(FORMATS[stream], rows)


def json_line(row: Arrival) -> str:
    """One row as JSON: money as a number with two decimals, instants as text; without a line end."""
    stream = FORMATS[row.event.stream]
    values = _values(row, stream)
    fields = (f'"{name}":{_json_value(kind, values[name])}' for name, kind in stream.columns.items() if name in values)
    line = "{" + ",".join(fields) + "}"
    if row.malformed is None:
        return line
    return spoilt_text(row.malformed, line, last_cut=len(line) - 2, variation=row.variation)


def csv_line(row: Arrival) -> str:
    """One row as CSV, quoted where needed; what is null or missing is empty; without a line end."""
    stream = FORMATS[row.event.stream]
    values = _values(row, stream)
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(
        _csv_value(kind, values.get(name)) for name, kind in stream.columns.items()
    )
    line = text.getvalue()
    if row.malformed is None:
        return line
    return spoilt_text(row.malformed, line, last_cut=line.rindex(",") - 1, variation=row.variation)


def _values(row: Arrival, stream: StreamFormat) -> dict[str, Value]:
    values = row.stated_values
    if row.malformed is None:
        return values
    return spoilt_values(row.malformed, stream, values, variation=row.variation)


def _json_value(kind: ColumnKind, value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return json.dumps(value)
    return f'"{iso_ms(int(value))}"' if kind == "timestamp" else _number(value)


def _csv_value(kind: ColumnKind, value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return iso_ms(int(value)) if kind == "timestamp" else _number(value)


def _number(value: float | Decimal) -> str:
    return f"{value:.2f}" if isinstance(value, Decimal) else str(value)


def _parquet(stream: StreamFormat, rows: Sequence[Arrival]) -> bytes:
    values = [_values(row, stream) for row in rows]
    columns = {name: _arrow_column(kind, [row.get(name) for row in values]) for name, kind in stream.columns.items()}
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()


def _arrow_column(kind: ColumnKind, values: list[Value]) -> pa.Array:
    if kind == "timestamp":
        micros = [None if value is None else int(value) * 1000 for value in values]
        return pa.array(micros, type=pa.int64()).cast(_ARROW[kind])
    return pa.array(values, type=_ARROW[kind])
