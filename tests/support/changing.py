"""A checkpoint under a changed definition: begun with one, gone on with another, held against a fresh start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import exists
from spark_jobs.spec import Definition, Pipeline, Processor, Timers
from tests.support import lakes

MINUTE = 60_000
START = 1_767_225_600_000  # 2026-01-01
CLICKS = {"k": pa.string(), "m": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
TAPS = {"who": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
PAYMENTS = {"k": pa.string(), "paid": pa.int64(), "u": lakes.TIMESTAMP}

Row = tuple[Any, ...]

# Minute, key, second key, value. The event of minute 400 is further ahead of its arrival than an hour; those of minute
# 4 and 5 are late. What reads them has one file a batch.
FIRST: tuple[Sequence[Row], ...] = (
    (
        *(
            (1, "a", "x", 1),
            (2, "b", "y", 2),
            (3, "a", "y", -1),
            (12, "a", "x", 3),
            (14, "b", "x", 4),
            (15, "a", "y", 2),
        ),
        *((24, "a", "x", 5), (26, "a", "y", 50), (29, "b", "y", 6), (32, "b", "x", 1), (400, "f", "f", 1)),
    ),
    ((27, "c", "x", 2),),
    ((4, "a", "x", 20), (28, "c", "y", 3)),
)
LATER: tuple[Sequence[Row], ...] = (
    (
        *((28, "a", "x", 7), (31, "a", "y", 8), (33, "b", "x", 2), (41, "a", "x", 1), (45, "b", "x", 9)),
        *((5, "a", "x", 100), (47, "b", "y", 3), (200, "z", "z", 1)),
    ),
)
PAID = (((4, "a", 1), (16, "b", 2)),), (((19, "a", 3), (34, "a", 4), (200, "z", 5)),)
"""First and later payments: minute, key, value."""
TAPPED = (((2, "b", 1), (13, "d", 2), (27, "a", 3)),), (((32, "d", 4), (200, "z", 5)),)


class Pauses(Processor):
    """How many events of a key came without a pause of five minutes."""

    output: ClassVar = {"events": "BIGINT"}
    state: ClassVar = {"events": "BIGINT"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        state["events"] = (state["events"] or 0) + 1
        timers.set("pause", event["t"] + timedelta(minutes=5))

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> list[Mapping]:
        return [{"events": state.pop("events")}]


class Seen(StrEnum):
    """What was observed."""

    AS_NEW = "the rows are those of the new definition from the start"
    AS_SINCE = "rows before stayed as they were, those after are as the new definition gives them"
    OTHER = "the rows are those of neither"
    RAISES = "the stream does not go on"


def at(minute: float) -> Any:
    return lakes.at(START + round(minute * MINUTE))


@dataclass
class Bronzes:
    """The bronze tables of a lake, filled in two parts."""

    lake: Lake

    def __post_init__(self) -> None:
        arrived = START + 300 * MINUTE
        self._tables = [
            (lakes.Bronze(self.lake, "bronze.clicks", CLICKS, "t", arrived_ms=arrived), _click, FIRST, LATER),
            (lakes.Bronze(self.lake, "bronze.taps", TAPS, "t", arrived_ms=arrived), _tap, *TAPPED),
            (lakes.Bronze(self.lake, "bronze.payments", PAYMENTS, "u", arrived_ms=arrived), _payment, *PAID),
        ]

    def first(self) -> None:
        for bronze, row, first, _ in self._tables:
            for batch in first:
                bronze.append([row(*values) for values in batch])
        for name, prefix in (("names", "name of"), ("titles", "title of")):
            told = {"k": ["a", "b", "z"], "label": [f"{prefix} {k}" for k in "abz"], "tone": ["high", "low", "low"]}
            write_deltalake(self.lake.table_uri(f"silver.{name}"), pa.table(told))

    def later(self) -> None:
        for bronze, row, _, later in self._tables:
            for batch in later:
                bronze.append([row(*values) for values in batch])


def _click(minute: float, k: str, m: str, v: int) -> Mapping[str, Any]:
    return {"k": k, "m": m, "v": v, "t": at(minute)}


def _tap(minute: float, who: str, v: int) -> Mapping[str, Any]:
    return {"who": who, "v": v, "t": at(minute)}


def _payment(minute: float, k: str, paid: int) -> Mapping[str, Any]:
    return {"k": k, "paid": paid, "u": at(minute)}


def run(spark: SparkSession, lake: Lake, definition: Definition) -> None:
    """Runs a definition until it has read what is there; raises what stopped it."""
    if isinstance(definition, Pipeline):
        lakes.run(spark, lake, definition)
        return
    query = IngestQuery(spark, lake, definition)
    handle = query.start(until_caught_up=True)
    handle.awaitTermination()


def begin_with(lake: Lake, definition: Definition) -> None:
    """Notes of the epoch that it began with this definition: nobody asks any more whether the checkpoint fits."""
    (path,) = Path(lake.uri, "_checkpoints", definition.name, "epochs").glob("*.json")
    epoch = json.loads(path.read_text())
    path.write_text(json.dumps({**epoch, "definition": definition.to_json()}))


_OF_A_RUN = {
    *("revised_at", "settled_at", "settled_version", "epoch", "revision", "_ingest_time", "_other_ingest_time"),
    *("_ingest_seq", "watermark", "engine_watermark", "late_by_ms", "missed_windows", "_epoch", "_batch_id"),
}
"""Columns that go by which batch, and which run, wrote a row."""
Contents = dict[str, list[dict[str, Any]]]
"""Rows by what the table is: the result, what was late, what was set aside."""


def contents(lake: Lake, definition: Definition) -> Contents:
    """The rows of each of its tables, less what goes by which batch, and which run, wrote them."""
    table = definition.sink.table
    found = {role: f"{table}{role}" for role in ("", "__late", "__quarantine") if exists(lake, f"{table}{role}")}
    return {
        role: [{k: v for k, v in row.items() if k not in _OF_A_RUN} for row in lakes.rows(lake, name)]
        for role, name in found.items()
    }


def same(found: Contents, expected: Contents) -> bool:
    """Whether tables hold the same rows; one without rows is as good as none."""
    one, other = ({role: lakes.comparable(rows) for role, rows in each.items() if rows} for each in (found, expected))
    return one == other


def since(before: Contents, fresh: Contents) -> Contents:
    """Rows that were there, with nulls in new columns, and those that a fresh start has made of the later file."""
    found = {}
    for role, rows in fresh.items():
        columns = {name for row in rows for name in row}
        old = [dict.fromkeys(columns) | row for row in before.get(role, [])]
        found[role] = old + [row for row in rows if str(row["_source"]["name"]).endswith("later.json")]
    return found


def placed(definition: Definition, folder: Path) -> Definition:
    """The same; an ingest with its input below this folder."""
    if isinstance(definition, Pipeline):
        return definition
    source = definition.source.model_copy(update={"path": f"{folder}/{definition.source.folder}"})
    return definition.model_copy(update={"source": source})


def under_another_name(definition: Pipeline, name: str) -> Pipeline:
    """The same, with a checkpoint and tables of its own."""
    layer = definition.sink.table.split(".")[0]
    sink = definition.sink.model_copy(update={"table": f"{layer}.{name}"})
    return definition.model_copy(update={"name": name, "sink": sink})


def landed(folder: Path, *, later: bool) -> None:
    """Events as lines of JSON, one of them too far ahead of its arrival, one without a key, one with a field more."""
    name, minute = ("later", 40) if later else ("first", 10)
    lines = [
        {"k": "a", "v": 1, "t": minute},
        {"k": "b", "v": -2, "t": minute + 1, "w": "more"},
        {"v": 3, "t": minute + 2},
        {"k": "d", "v": 4, "t": minute + 3 + 120, "a": minute + 3},
        {"k": "e", "v": "no number", "t": minute + 4},
    ]
    told = [{**line, "t": at(line["t"]).isoformat(), "a": at(line.get("a", line["t"])).isoformat()} for line in lines]
    for place in ("json", "elsewhere"):
        path = folder / place / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in told))
