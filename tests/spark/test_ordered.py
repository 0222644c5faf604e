"""Steps that take events in order of their time, against plain Python: disordered, late, copied, with null keys."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begun_with
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.state.execute import read_state
from spark_jobs.operations.state.plan import plan_state
from spark_jobs.plan.logical import build
from spark_jobs.recompute.target import BackfillRefusedError
from spark_jobs.spark.state import open_events
from spark_jobs.spec import AsOf, Counting, Join, Pipeline, Running, Sink, Sliding, Table, Watermark, Where
from spark_jobs.spec.steps import Step
from tests.support import clicks, lakes

MINUTE = 60_000
START = 1_700_000_040_000
DELAY, KEEP, SIZE = 3, 2, 5
READINGS = {"k": pa.string(), "v": pa.int64(), "price": pa.decimal128(10, 2), "t": lakes.TIMESTAMP}
STATUSES = {"k": pa.string(), "status": pa.string(), "u": lakes.TIMESTAMP}
FAR = 10_000
VERSIONS = Table("bronze.statuses")
MEASURES = {"n": "count(*)", "total": "sum(price)", "worth": "try_divide(sum(price * v), sum(v))", "most": "max(v)"}


@dataclass(frozen=True)
class Event:
    """An event of either table; its id, number and batch."""

    id: str
    seq: int
    batch: int
    key: str | None
    ms: int
    v: int = 1
    status: str = ""

    @property
    def price(self) -> Decimal:
        return (Decimal(self.v) / 4).quantize(Decimal("0.01"))


def pipeline(name: str, step: Step) -> Pipeline:
    definition = Pipeline(
        name=name,
        source=Table("bronze.readings"),
        event_time="t",
        watermark=Watermark(delay=f"{DELAY} minutes"),
        steps=(Where("v >= 0"), step),
        sink=Sink(f"gold.{name}"),
    )
    return lakes.one_file_a_batch(definition)


PIPELINES = {
    each.name: each
    for each in (
        pipeline("as_of", AsOf(VERSIONS, on=("k",), event_time="u", keep=f"{KEEP} minutes")),
        pipeline("as_of_inner", AsOf(VERSIONS, on=("k",), event_time="u", keep=f"{KEEP} minutes", how="inner")),
        pipeline("latest", Join(VERSIONS, on=("k",), event_time="u", keep=f"{KEEP} minutes", how="full")),
        pipeline("sliding", Sliding(f"{SIZE} minutes", by=("k",), measures=MEASURES)),
        pipeline("counting", Counting(3, by=("k",), measures=MEASURES)),
        pipeline("running", Running(by=("k",), measures=MEASURES)),
    )
}


def events_of(seed: int) -> tuple[list[list[Event]], list[list[Event]]]:
    """Batches of readings and of statuses; keys, ties and nulls, some far behind."""
    chance, tables = random.Random(seed), []
    for side in "rs":
        seq, batches = 0, []
        for batch in range(4):
            events = []
            for _ in range(chance.randint(6, 12)):
                minute = batch * 4 + chance.randint(*((-30, -12) if chance.random() < 0.2 else (-2, 3)))
                key = chance.choice(["a", "b", None, "c"])
                value = chance.randint(-1, 9)
                copied = events and chance.random() < 0.1
                name = events[-1].id if copied else f"{side}{seq}"
                events.append(Event(name, seq, batch, key, START + minute * MINUTE, value, f"s{seq}"))
                seq += 1
            batches.append(events)
        tables.append(batches)
    return tables[0], tables[1]


def bronze_of(lake: Lake, readings: Sequence[Sequence[Event]], statuses: Sequence[Sequence[Event]]) -> None:
    own = lakes.Bronze(lake, "bronze.readings", READINGS, "t")
    theirs = lakes.Bronze(lake, "bronze.statuses", STATUSES, "u")
    for left, right in zip(readings, statuses, strict=True):
        own.append(
            [{"k": e.key, "v": e.v, "price": e.price, "t": lakes.at(e.ms)} for e in left], ids=[e.id for e in left]
        )
        theirs.append([{"k": e.key, "status": e.status, "u": lakes.at(e.ms)} for e in right], ids=[e.id for e in right])
    own.heartbeat(START + FAR * MINUTE)
    theirs.heartbeat(START + FAR * MINUTE)


def on_time(*tables: Sequence[Sequence[Event]]) -> tuple[list[list[Event]], int]:
    """The events of each table that are not late, and how many are: W(N-1) knows what came up to batch N-2."""
    kept: list[list[Event]] = [[] for _ in tables]
    late = 0
    for batch in range(len(tables[0])):
        ends = [max((e.ms for b in table[: max(0, batch - 1)] for e in b), default=None) for table in tables]
        closed = None if any(end is None for end in ends) else min(e for e in ends if e is not None) - DELAY * MINUTE
        for number, table in enumerate(tables):
            for event in table[batch]:
                if number == 0 and event.v < 0:
                    continue
                if closed is not None and event.ms <= closed:
                    late += 1
                else:
                    kept[number].append(event)
    return kept, late


def measures(events: Sequence[Event]) -> tuple[Any, ...]:
    total, weight = sum(e.price for e in events), sum(e.v for e in events)
    worth = sum(e.price * e.v for e in events) / weight if weight else None
    return len(events), total, worth and worth.quantize(Decimal("0.000001"), ROUND_HALF_UP), max(e.v for e in events)


def by_key(events: Sequence[Event]) -> Mapping[str | None, list[Event]]:
    found = defaultdict(list)
    for event in sorted(events, key=lambda e: (e.ms, e.seq)):
        found[event.key].append(event)
    return found


def sliding(readings: Sequence[Event], _: Sequence[Event]) -> list[tuple[Any, ...]]:
    return [
        (event.seq, *measures([e for e in events if event.ms - SIZE * MINUTE < e.ms <= event.ms]))
        for events in by_key(readings).values()
        for event in events
    ]


def running(readings: Sequence[Event], _: Sequence[Event]) -> list[tuple[Any, ...]]:
    return [
        (event.seq, *measures(events[: at + 1]))
        for events in by_key(readings).values()
        for at, event in enumerate(events)
    ]


def counting(readings: Sequence[Event], _: Sequence[Event]) -> list[tuple[Any, ...]]:
    return [
        (events[at + 2].seq, *measures(events[at : at + 3]))
        for events in by_key(readings).values()
        for at in range(0, len(events) - 2, 3)
    ]


def held(event: Event, others: Sequence[Event], *, ties: bool) -> Event | None:
    if event.key is None:
        return None
    earlier = [e for e in others if e.key == event.key and (e.ms < event.ms or (ties and e.ms == event.ms))]
    newest = max(earlier, key=lambda e: (e.ms, e.seq), default=None)
    return newest if newest is not None and newest.ms >= event.ms - KEEP * MINUTE else None


def as_of(readings: Sequence[Event], statuses: Sequence[Event]) -> list[tuple[Any, ...]]:
    found = [(event.seq, held(event, statuses, ties=True)) for event in readings]
    return [(seq, version and version.seq) for seq, version in found]


def as_of_inner(readings: Sequence[Event], statuses: Sequence[Event]) -> list[tuple[Any, ...]]:
    return [row for row in as_of(readings, statuses) if row[1] is not None]


def latest(readings: Sequence[Event], statuses: Sequence[Event]) -> list[tuple[Any, ...]]:
    # At one instant a status is before a reading.
    asked = [(held(event, readings, ties=False), event.seq) for event in statuses]
    return [*as_of(readings, statuses), *((own and own.seq, seq) for own, seq in asked)]


ORACLES: dict[str, Callable[[Sequence[Event], Sequence[Event]], list[tuple[Any, ...]]]] = {
    each.__name__: each for each in (as_of, as_of_inner, latest, sliding, counting, running)
}
PAIRS = ("as_of", "as_of_inner", "latest")
REPAIRED = (*PAIRS, "sliding")


def found(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    columns = ("_ingest_seq", "_other_ingest_seq") if name in PAIRS else ("_ingest_seq", *MEASURES)
    rows = lakes.rows(lake, f"gold.{name}")
    return [tuple(row[column] for column in columns) for row in rows]


def in_order(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, rows))


def but_inner(*names: str) -> list[Any]:
    """An inner join is left out of `make test`: it is [as_of] less the rows without a partner."""
    return [pytest.param(name, marks=pytest.mark.long) if name == "as_of_inner" else name for name in names]


@pytest.fixture(scope="module")
def streamed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Lake, Any, Any]:
    """A lake in which the pipelines have run that are asked for, and the events."""
    lake = Lake(str(tmp_path_factory.mktemp("ordered"))).ensure_exists()
    readings, statuses = events_of(2)
    bronze_of(lake, readings, statuses)
    here = (item for item in request.session.items if item.path == request.path)
    names = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    lakes.run_all(spark, lake, [each for name, each in PIPELINES.items() if name in names], close=False)
    return lake, readings, statuses


@pytest.mark.parametrize("name", but_inner(*PIPELINES))
def test_rows_are_those_of_events_in_order(name: str, streamed: tuple[Lake, Any, Any]) -> None:
    lake, readings, statuses = streamed
    tables = (readings, statuses) if name in PAIRS else (readings,)
    kept, late = on_time(*tables)
    assert late >= 3
    expected = ORACLES[name](kept[0], kept[1] if len(kept) > 1 else ())
    assert in_order(found(lake, name)) == in_order(expected)
    assert len(lakes.rows(lake, f"gold.{name}__late")) == late
    lakes.assert_balanced(lake, PIPELINES[name])


@pytest.mark.parametrize(
    ("name", "columns"),
    [("latest", {"k", "v", "status"}), ("sliding", {"k", "v", "t"}), ("running", {"n", "total"})],
)
def test_state_is_shown_as_rows_with_names(
    name: str, columns: set[str], streamed: tuple[Lake, Any, Any], spark: SparkSession
) -> None:
    asked = plan_state(streamed[0], name, keys=(), open_windows=False, at=3, limit=100)
    waiting, kept = read_state(spark, streamed[0], asked)
    assert (waiting.side, kept.side) == ("waiting", "kept")
    assert {"k", "v", "t"} <= set(waiting.columns)
    assert columns <= set(kept.columns)
    passed = lakes.ledger(streamed[0], PIPELINES[name])[3][1].watermark_ms
    times = [row[waiting.columns.index("t")] for row in waiting.rows]
    assert times
    assert all(time is None or lakes.ms(time) > passed for time in times)
    assert kept.rows
    checkpoint = checkpoint_of(streamed[0], name)
    assert verify(checkpoint, begun_with(checkpoint.epoch)) == []


@pytest.mark.parametrize("name", ["sliding", "counting", "running"])
def test_what_the_ledger_calls_waiting_is_in_state(
    name: str, streamed: tuple[Lake, Any, Any], spark: SparkSession
) -> None:
    lake, operator = streamed[0], build(PIPELINES[name]).operator
    assert operator is not None
    sums = Totals.of(entry for _, entry in lakes.ledger(lake, PIPELINES[name]))
    counted = sums["counted"] if name == "counting" else sums["rows"]
    assert open_events(spark, lake, PIPELINES[name], operator.state.open_in) == sums["on_time"] - counted


@pytest.fixture(scope="module")
def copied(streamed: tuple[Lake, Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The lake again, for repairs; each test changes the tables of its own pipeline only."""
    return clicks.copy_of(streamed[0], tmp_path_factory.mktemp("repaired") / "lake")


# What can be repaired is computed again by the same steps: test_a_repair_gives_the_rows_of_all_events. Groups of
# so many are measured as events up to one: [running]
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name != "running" else name for name in PIPELINES]
)
def test_an_audit_computes_the_rows_of_the_stream_again(
    name: str, streamed: tuple[Lake, Any, Any], spark: SparkSession
) -> None:
    found = clicks.audited(spark, streamed[0], PIPELINES[name])
    assert found.sound, found


# The latest of both sides is what an as-of join looks for, of each side: [as_of]
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in ("as_of_inner", "latest") else name for name in REPAIRED],
)
def test_a_repair_gives_the_rows_of_all_events(
    name: str, streamed: tuple[Lake, Any, Any], copied: Lake, spark: SparkSession
) -> None:
    lake = copied
    assert clicks.run_repair(spark, lake, PIPELINES[name]) is not None
    readings, statuses = ([e for batch in table for e in batch] for table in streamed[1:])
    expected = ORACLES[name]([e for e in readings if e.v >= 0], statuses)
    assert in_order(found(lake, name)) == in_order(expected)
    assert {row["settled_version"] is not None for row in lakes.rows(lake, f"gold.{name}__late")} == {True}
    lakes.assert_balanced(lake, PIPELINES[name])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("running", "late events cannot be counted after all: its state goes on without them"),
        ("counting", "each group begins where the one before it has ended"),
    ],
)
def test_a_repair_that_would_leave_wrong_rows_is_refused(
    name: str, why: str, streamed: tuple[Lake, Any, Any], spark: SparkSession
) -> None:
    before = lakes.rows(streamed[0], f"gold.{name}")
    with pytest.raises(BackfillRefusedError, match=why):
        clicks.run_repair(spark, streamed[0], PIPELINES[name])
    assert lakes.rows(streamed[0], f"gold.{name}") == before
