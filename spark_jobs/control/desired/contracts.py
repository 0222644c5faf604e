"""Holds what a source has now against the columns that its ingest declares: a sample of it, without a JVM."""

import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from spark_jobs.lake import Lake
from spark_jobs.lake.inputs.folders import is_hidden, source_store
from spark_jobs.lake.inputs.kafka import KafkaSettingsError, newest_messages
from spark_jobs.lake.inputs.parquet_files import parquet_shape
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables.opening import UNREADABLE, exists, open_table
from spark_jobs.plan.csv_headers import fields_of
from spark_jobs.spec import Files, Ingest, Kafka, Parsing
from spark_jobs.spec.sources import CHANGE_COLUMNS

_FILES = 3
_BYTES = 256 * 1024
_ROWS = 1_000
_ANSWER_S = 3.0
_RETYPED_SHARE = 0.01
"""Fewer rows of another type are single bad rows, which the quarantine keeps, and no change of the source."""
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?$")
_AS_USUAL = Parsing()
_WHOLE = ("TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG")
_NUMBERS = ("FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC")


@dataclass(frozen=True)
class Difference:
    """A column in which a source differs from its ingest.

    Attributes:
        kind: `new`: no column takes it; `missing`: no row of the sample has it; `retyped`: values of another type.
        column: its name.
        what: what was seen, without a value.
        stops: whether the stream would stop at it.
    """

    kind: Literal["new", "missing", "retyped"]
    column: str
    what: str
    stops: bool


def differences(lake: Lake, ingest: Ingest) -> tuple[Difference, ...]:
    """In what the newest files or messages of a source differ from the columns of its ingest.

    Nothing is said of a source that is empty or that cannot be read: its running stream reports that.

    Args:
        lake: where.
        ingest: that reads the source.
    """
    sample = SAMPLES[ingest.source.kind](lake, ingest)
    return tuple(_differences(ingest, sample)) if sample is not None and sample.rows else ()


@dataclass(frozen=True)
class _Sample:
    """Rows of the newest messages or files: of CSV only their headers, of Parquet only their schemas."""

    rows: Sequence[Mapping[str, Any]]
    typed: bool


def _of_folder(lake: Lake, ingest: Ingest) -> _Sample | None:
    """The newest files; None where they cannot be read."""
    try:
        store = source_store(lake, cast(Files, ingest.source))
        return _of_files(store, ingest) if store is not None else None
    except (BaseError, OSError, ValueError, pa.ArrowException):
        return None


def _of_files(store: ObjectStore, ingest: Ingest) -> _Sample:
    newest = sorted(
        (item for items in store.list() for item in items if not is_hidden(item["path"]) and item["size"]),
        key=lambda item: item["last_modified"],
        reverse=True,
    )[:_FILES]
    paths, source = [str(item["path"]) for item in newest], ingest.source
    if source.is_parquet:
        return _Sample([dict.fromkeys(parquet_shape(store, path)[0]) for path in paths], typed=False)
    if source.is_csv:
        heads = (next(_lines(store, path), "") for path in paths) if source.has_header else ()
        return _Sample([dict.fromkeys(_told(head, ingest)) for head in heads if head], typed=False)
    rows = [row for path in paths for row in map(_object, _lines(store, path)) if row is not None]
    return _Sample(rows[:_ROWS], typed=True)


def _of_topics(_: Lake, ingest: Ingest) -> _Sample | None:
    """The newest messages of all topics that are JSON objects; None where they cannot be read."""
    from confluent_kafka import KafkaException  # heavy: only where Kafka is used

    source = cast(Kafka, ingest.source)
    servers, topics = source.bootstrap_servers or Settings().kafka, source.topic.split(",")
    try:
        values = [
            value
            for topic in topics
            for value in newest_messages(servers, topic.strip(), _ROWS // len(topics), within_s=_ANSWER_S)
        ]
    except (KafkaException, KafkaSettingsError):
        return None
    rows = (_object(value.decode(errors="replace")) for value in values)
    return _Sample([row for row in rows if row is not None], typed=True)


def _of_result(lake: Lake, ingest: Ingest) -> _Sample | None:
    """Those columns of a result table that are declared: to leave some out is no difference; None: it is not there."""
    (table,) = ingest.read_tables
    try:
        fields = open_table(lake, table).schema().fields if exists(lake, table) else []
    except UNREADABLE:
        return None
    names = {field.name for field in fields} | CHANGE_COLUMNS.keys()
    return _Sample([dict.fromkeys(names & ingest.columns.keys())], typed=False) if fields else None


SAMPLES: Mapping[str, Callable[[Lake, Ingest], _Sample | None]] = {
    "files": _of_folder,
    "kafka": _of_topics,
    "results": _of_result,
}
"""Kind of a source -> what takes a sample of it."""


def _lines(store: ObjectStore, path: str) -> Iterator[str]:
    """The first lines of a file; the last of them, which may be cut off, is left out."""
    if path.endswith((".bz2", ".zst", ".snappy", ".lz4", ".deflate")):
        return
    data = bytes(obstore.get_range(store, path, start=0, end=_BYTES))
    whole = len(data) < _BYTES
    if path.endswith(".gz"):
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read1(_BYTES)
        except (OSError, EOFError):
            return
        whole = False
    lines = data.decode(errors="replace").removeprefix("\ufeff").split("\n")
    yield from (line for line in (lines if whole else lines[:-1] or lines) if line.strip())


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _told(head: str, ingest: Ingest) -> Sequence[str]:
    """The names of a header; of a line that may be an event, in a file without one, no value is a name."""
    names = fields_of(head, ingest.source.delimiter)
    if not ingest.personal or ingest.columns.keys() <= set(names):
        return names
    return [name if name in ingest.columns else f"field {at}" for at, name in enumerate(names, start=1)]


def _differences(ingest: Ingest, sample: _Sample) -> Iterator[Difference]:
    rows = [_by_columns(row, ingest) for row in sample.rows] if sample.typed else sample.rows
    count = len(rows)
    seen = Counter(name for row in rows for name in row)
    of = f"of {count:,} {'rows' if sample.typed else 'files'}"
    for name in sorted(seen.keys() - ingest.columns.keys()):
        kept = "it is kept in _unknown_fields" if ingest.contract.new == "keep" else "it is dropped"
        yield Difference("new", name, f"{seen[name]:,} {of} have it; {kept}", stops=False)
    for name, sql_type in ingest.columns.items():
        parsing = ingest.parsing.get(name, _AS_USUAL)
        if not seen[name]:
            stops = ingest.contract.missing == "fail"
            aside = "; such files are set aside" if ingest.source.is_csv else ""
            yield Difference("missing", name, f"none {of} has it{aside}", stops=stops)
        elif sample.typed and (odd := sum(not fits(row.get(name), sql_type, parsing) for row in rows)):
            stops = ingest.contract.retyped == "fail"
            if stops or odd >= _RETYPED_SHARE * count:
                yield Difference("retyped", name, f"{odd:,} {of} have a value that is no {sql_type}", stops=stops)


def _by_columns(event: Mapping[str, Any], ingest: Ingest) -> dict[str, Any]:
    """The values of an event by the columns that take them, and the fields that none takes."""
    paths = {name: ingest.path_of(name) for name in ingest.columns}
    outer = {path[0] for path in paths.values()}
    found = {name: value for name, value in event.items() if name not in outer}
    for name, (*way, last) in paths.items():
        place: Any = event
        for field in way:
            place = place.get(field) if isinstance(place, dict) else None
        if isinstance(place, dict) and last in place:
            found[name] = place[last]
    return found


def fits(value: Any, sql_type: str, parsing: Parsing = _AS_USUAL) -> bool:
    """Whether a value of a JSON object has the type of its column; null always does.

    Args:
        value: of the object.
        sql_type: of the column.
        parsing: how its values are written.
    """
    base = re.split(r"[(<\s]", sql_type.strip().upper(), maxsplit=1)[0]
    if value is None or base in ("STRING", "VARCHAR", "CHAR"):
        return True
    if base in _WHOLE:
        return isinstance(value, int) and not isinstance(value, bool)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if base in _NUMBERS:
        return is_number or (base.startswith(("DEC", "NUM")) and _is_text_of(value, _NUMBER))
    if base.startswith(("TIMESTAMP", "DATE")):
        if parsing.unit is not None:
            return is_number or _is_text_of(value, _NUMBER)
        return isinstance(value, str) if parsing.pattern is not None else _is_text_of(value, _DATE)
    expected = {"BOOLEAN": bool, "BINARY": str, "ARRAY": list, "MAP": dict, "STRUCT": dict}.get(base)
    return expected is None or isinstance(value, expected)


def _is_text_of(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None
