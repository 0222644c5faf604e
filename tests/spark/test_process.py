"""Processors in a stream and in batch, against plain Python over all events that were on time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.state.execute import read_state
from spark_jobs.operations.state.plan import plan_state
from spark_jobs.recompute.target import BackfillRefusedError, Target
from spark_jobs.spec import Pipeline, Process, Processor, Sink, Table, Timers, Union, Watermark
from tests.support import clicks, lakes

MINUTE = 60_000
START = 1_700_000_040_000
DELAY = 3
READINGS = {"k": pa.string(), "v": pa.decimal128(10, 2), "t": lakes.TIMESTAMP}
QUIET = timedelta(minutes=4)


class Visits(Processor):
    """Events of a key that are at most four minutes apart: how many, their sum, their values, when they began."""

    output: ClassVar = {
        "began": "TIMESTAMP",
        "events": "BIGINT",
        "total": "DECIMAL(12, 2)",
        "seen": "ARRAY<DECIMAL(10, 2)>",
    }
    state: ClassVar = {"began": "TIMESTAMP", "seen": "ARRAY<DECIMAL(10, 2)>"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        state["began"] = state["began"] or event["t"]
        state["seen"] = [*(state["seen"] or []), event["v"]]
        timers.set("quiet", event["t"] + QUIET)

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> Iterator[Mapping]:
        seen = state["seen"]
        yield {"began": state["began"], "events": len(seen), "total": sum(seen), "seen": seen}
        state.update(began=None, seen=None)


def pipeline(name: str, **options: Any) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name=name,
            source=Table("bronze.readings"),
            event_time="t",
            watermark=Watermark(delay=f"{DELAY} minutes"),
            steps=(Process(Visits, by=("k",), **options),),
            sink=Sink(f"gold.{name}"),
        )
    )


VISITS = pipeline("visits")
ARRIVING = pipeline("arriving", order="arrival")

Event = tuple[int, int, "str | None", int, Decimal]
"""Batch, number, key, milliseconds, value."""


def events_of(seed: int) -> list[list[Event]]:
    chance, seq, batches = random.Random(seed), 0, []
    for batch in range(5):
        events = []
        for _ in range(chance.randint(6, 12)):
            minute = batch * 4 + chance.randint(*((-30, -12) if chance.random() < 0.2 else (-2, 3)))
            events.append((batch, seq, chance.choice("ab€"), START + minute * MINUTE, Decimal(seq) / 4))
            seq += 1
        batches.append(events)
    batches[3].append((3, seq, None, START + 12 * MINUTE, Decimal("0.25")))
    return batches


def by_the_rules(batches: Sequence[Sequence[Event]]) -> tuple[list[tuple[Any, ...]], int]:
    """The visits of the events that are on time, and how many events are late."""
    kept, late = defaultdict(list), 0
    for batch, events in enumerate(batches):
        known = [ms for before in batches[: max(0, batch - 1)] for _, _, _, ms, _ in before]
        closed = max(known) - DELAY * MINUTE if known else None
        for _, seq, key, ms, value in events:
            if closed is not None and ms <= closed:
                late += 1
            else:
                kept[key].append((ms, seq, value))
    rows = []
    for key, events in kept.items():
        visit: list[tuple[int, int, Decimal]] = []
        for event in [*sorted(events), None]:
            # A timer at the instant of an event comes after it.
            if visit and (event is None or event[0] > visit[-1][0] + QUIET // timedelta(milliseconds=1)):
                values = [value for _, _, value in visit]
                rows.append((key, lakes.at(visit[0][0]), len(values), sum(values), values))
                visit = []
            if event is not None:
                visit.append(event)
    return rows, late


@pytest.fixture(scope="module")
def streamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, list[list[Event]]]:
    lake = Lake(str(tmp_path_factory.mktemp("processed"))).ensure_exists()
    batches = events_of(3)
    bronze = lakes.Bronze(lake, "bronze.readings", READINGS, "t")
    for events in batches:
        bronze.append([{"k": key, "v": value, "t": lakes.at(ms)} for _, _, key, ms, value in events])
    bronze.heartbeat(START + 10_000 * MINUTE)
    lakes.run_all(spark, lake, [VISITS], close=False)
    return lake, batches


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: (str(row[0]), row[1]))


def found(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    columns = ("k", "began", "events", "total", "seen")
    return in_order([tuple(row[column] for column in columns) for row in lakes.rows(lake, f"gold.{name}")])


def test_a_processor_takes_events_and_timers_in_order_of_time(streamed: tuple[Lake, list[list[Event]]]) -> None:
    lake, batches = streamed
    expected, late = by_the_rules(batches)
    assert late >= 3
    assert found(lake, "visits") == in_order(expected)
    assert len(lakes.rows(lake, "gold.visits__late")) == late
    # Each event on time is in a visit, and each row says of how many it is.
    assert sum(row["__events"] for row in lakes.rows(lake, "gold.visits")) == sum(map(len, batches)) - late
    lakes.assert_balanced(lake, VISITS)


# Rows in order of arrival: test_of_two_tables_each_row_has_a_number_of_its_own_across_restarts; timers, and
# in which order they fire: tests/unit/test_processors.py::test_rows_are_the_same_however_the_watermark_moves
@pytest.mark.long
def test_the_ledger_of_a_processor_in_order_of_arrival_balances(
    streamed: tuple[Lake, list[list[Event]]], tmp_path: Path, spark: SparkSession
) -> None:
    lake = clicks.copy_of(streamed[0], tmp_path / "copy")
    lakes.run_all(spark, lake, [ARRIVING], close=False)
    lakes.assert_balanced(lake, ARRIVING)


def test_an_audit_runs_the_processor_again(streamed: tuple[Lake, list[list[Event]]], spark: SparkSession) -> None:
    lake, _ = streamed
    audit = clicks.audited(spark, lake, VISITS)
    assert audit.sound, audit
    assert audit.rows == len(lakes.rows(lake, "gold.visits"))


def test_the_state_of_a_processor_is_shown_with_names(
    streamed: tuple[Lake, list[list[Event]]], spark: SparkSession
) -> None:
    lake, batches = streamed
    asked = plan_state(lake, "visits", keys=(), open_windows=False, at=4, limit=100)
    waiting, kept = read_state(spark, lake, asked)
    assert {"k", "t", "event"} == set(waiting.columns)
    assert {"k", "began", "seen", "timers"} == set(kept.columns)
    in_state = [dict(zip(kept.columns, row, strict=True)) for row in kept.rows]
    assert {"a", "b", "€"} >= {row["k"] for row in in_state}
    seen = [value for row in in_state for value in row["seen"]]
    values = {value for events in batches[:5] for *_, value in events}
    assert set(seen) <= values
    assert [[name for name, _ in row["timers"]] for row in in_state] == [["quiet"]] * len(in_state)
    checkpoint = checkpoint_of(lake, "visits")
    assert verify(checkpoint, begun_with(checkpoint.epoch)) == []


def test_late_events_of_a_processor_stay_where_they_are(
    streamed: tuple[Lake, list[list[Event]]], spark: SparkSession
) -> None:
    with pytest.raises(BackfillRefusedError, match="late events cannot be counted after all"):
        clicks.run_repair(spark, streamed[0], VISITS)


class Numbered(Processor):
    """A row for each event."""

    output: ClassVar = {"v": "DECIMAL(10, 2)"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> list[Mapping]:
        return [{"v": event["v"]}]


def test_of_two_tables_each_row_has_a_number_of_its_own_across_restarts(lake: Lake, spark: SparkSession) -> None:
    select = {"k": "k", "v": "v", "t": "t"}
    source = Union(Table("bronze.readings", select=select), Table("bronze.others", select=select))
    numbered = lakes.one_file_a_batch(
        VISITS.model_copy(update={"source": source, "steps": (Process(Numbered, by=("k",), order="arrival"),)})
    )
    bronze = [lakes.Bronze(lake, table, READINGS, "t") for table in ("bronze.readings", "bronze.others")]
    for batch in range(2):  # each by a driver of its own
        for of_table, each in enumerate(bronze):
            value = Decimal(10 * of_table + batch)
            each.append([{"k": "a", "v": value, "t": lakes.at(START + batch * MINUTE)}])
        lakes.run_all(spark, lake, [numbered], close=False)
    rows = {row["v"]: row["__row"] for row in lakes.rows(lake, "gold.visits")}
    # By the number of the event in its table, then by the table.
    assert sorted(rows, key=rows.__getitem__) == [0, 10, 1, 11]
    assert len({*rows.values()}) == 4
    assert clicks.audited(spark, lake, numbered).sound


class VisitsByParts(Processor):
    """`Visits`, a version later: a running total and the values apart."""

    version: ClassVar = 2
    output: ClassVar = Visits.output
    state: ClassVar = {"began": "TIMESTAMP", "total": "DECIMAL(12, 2)", "parts": "ARRAY<DECIMAL(10, 2)>"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> None:
        state["began"] = state["began"] or event["t"]
        state["total"] = (state["total"] or 0) + event["v"]
        state["parts"] = [*(state["parts"] or []), event["v"]]
        timers.set("quiet", event["t"] + QUIET)

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> Iterator[Mapping]:
        parts = state["parts"]
        yield {"began": state["began"], "events": len(parts), "total": state["total"], "seen": parts}
        state.update(began=None, total=None, parts=None)

    def migrate(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        seen = state["seen"]
        total = None if seen is None else str(sum(map(Decimal, seen)))
        return {"began": state["began"], "total": total, "parts": seen}


def test_a_raised_version_goes_on_with_what_the_one_before_has_kept(lake: Lake, spark: SparkSession) -> None:
    later = VISITS.model_copy(update={"steps": (Process(VisitsByParts, by=("k",)),)})
    batches = events_of(5)
    bronze = lakes.Bronze(lake, "bronze.readings", READINGS, "t")

    def run(definition: Pipeline, events: Sequence[Sequence[Event]]) -> None:
        for batch in events:
            bronze.append([{"k": key, "v": value, "t": lakes.at(ms)} for _, _, key, ms, value in batch])
        lakes.run_all(spark, lake, [definition], close=False)

    run(VISITS, batches[:4])
    written = found(lake, "visits")
    run(later, batches[4:])
    with pytest.raises(BackfillRefusedError, match="rows of more than one version of its processor"):
        Target(lake, later)
    bronze.heartbeat(START + 10_000 * MINUTE)
    run(later, [])
    expected, late = by_the_rules(batches)
    assert 0 < len(written) < len(expected)
    assert found(lake, "visits") == in_order(expected)
    assert len(lakes.rows(lake, "gold.visits__late")) == late
    lakes.assert_balanced(lake, later)

    bronze.heartbeat(START + 20_000 * MINUTE)
    said = str(Driver(spark, lake, [VISITS]).run_until_caught_up(close=False)["visits"].error)
    assert "its definition has changed (steps) since epoch 1" in said
    assert found(lake, "visits") == in_order(expected)


class Picky(Processor):
    """Takes no value above one."""

    output: ClassVar = {"v": "DECIMAL(10, 2)"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> list[Mapping]:
        if event["v"] > 1:
            raise ValueError(f"expected at most 1, got {event['v']}")
        return [{"v": event["v"]}]


def test_a_processor_that_fails_halts_its_pipeline_and_says_why(lake: Lake, spark: SparkSession) -> None:
    bronze = lakes.Bronze(lake, "bronze.readings", READINGS, "t")
    bronze.append([{"k": "a", "v": Decimal(2), "t": lakes.at(START)}])
    picky = VISITS.model_copy(update={"steps": (Process(Picky, by=("k",), order="arrival"),)})
    said = str(Driver(spark, lake, [picky]).run_until_caught_up(close=False)["visits"].error)
    assert "batch 0 of epoch 1 cannot be computed (PROCESSOR_FAILED)" in said
    assert "processor Picky: on_event: ValueError: expected at most 1, got 2.00" in said
    assert "No result of it was written" in said
    assert "tidemark resume visits" in said
