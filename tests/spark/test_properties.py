"""Random streams through the engine, held against the pure-Python model of the late rules."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_jobs.engine import pipeline as engine
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.fetching import FetchingPass
from spark_jobs.lake import Lake
from spark_jobs.spec import (
    Aggregate,
    Enrich,
    Hopping,
    Late,
    Pipeline,
    Session,
    Sink,
    Table,
    Tumbling,
    Union,
    Watermark,
    Where,
    Window,
)
from tests.support import lakes, model

pytestmark = pytest.mark.usefixtures("divided")

START = 1_767_225_600_000  # 2026-01-01
COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
NO_KEY = ""
"""In the model, for null."""
CATEGORIES = {"a": "tea", "b": "milk", "c": "tea"}
"""What is looked up; of other keys, and of null, nothing is known."""


@dataclass(frozen=True)
class Shape:
    """A window with its rules, apart from what it runs on."""

    window: Window
    delay_ms: int
    grace_ms: int = 0
    late: Late = Late.SIDE_OUTPUT
    mode: str = "append"
    filters: bool = False
    tables: tuple[str, ...] = ("bronze.events",)
    missing: str | None = None
    """What becomes of events whose category is not known; None: events are grouped by their own key."""

    def pipeline(self, name: str) -> Pipeline:
        """The definition; it removes values that are not positive, or nothing, and may look categories up."""
        looked_up = {"on": ("k",), "columns": {"category": "category"}, "missing": self.missing}
        watermark = Watermark(delay=f"{self.delay_ms} ms", grace=f"{self.grace_ms} ms", late=self.late)
        steps = (
            *([Where("v > 0")] if self.filters else []),
            *([Enrich("silver.categories", **looked_up)] if self.missing else []),
            Aggregate(window=self.window, by=(self.key,), measures={"n": "count(*)", "total": "sum(v)"}),
        )
        return lakes.one_file_a_batch(
            Pipeline(
                name=name,
                source=self._source,
                event_time="t",
                watermark=watermark,
                steps=steps,
                sink=Sink(f"gold.{name}", mode=self.mode),
            )
        )

    @property
    def key(self) -> str:
        """The column by which events are grouped."""
        return "category" if self.missing else "k"

    @property
    def _source(self) -> Table | Union:
        if len(self.tables) == 1:
            return Table(self.tables[0])
        return Union(*(Table(name, select={"k": "k", "v": "v", "t": "t"}) for name in self.tables))

    def expected(self, batches: Sequence[model.Batch]) -> model.Outcome:
        """What the rules say."""
        judged = [[self.judged(row) for row in batch] for batch in batches]
        # Until it has caught up, Spark always has data for the next batch: only the last is followed by one without.
        return model.run(
            judged,
            in_model(self.window),
            delay_ms=self.delay_ms,
            grace_ms=self.grace_ms,
            mode="update" if self.mode == "update" else "append",
            no_data_batches="at_end",
            sources=len(self.tables),
        )

    def judged(self, row: model.Event | model.Heartbeat) -> model.Event | model.Heartbeat:
        """The row as it meets the windows, for which the model knows one way only of being removed before."""
        if isinstance(row, model.Heartbeat):
            return row
        key = CATEGORIES.get(row.key, NO_KEY) if self.missing else row.key
        return row._replace(key=key, passes_where=self.removed(row) is None)

    def removed(self, event: model.Event) -> str | None:
        """Why an event meets no window; the filter comes first."""
        if self.filters and event.value <= 0:
            return "filtered"
        gone = {"drop": "unmatched", "quarantine": "quarantined"}.get(self.missing or "")
        return gone if event.key not in CATEGORIES else None


def in_model(window: Window) -> model.Window:
    """The same window in the words of the model."""
    if isinstance(window, Session):
        return model.Session(_ms(window.gap))
    return model.Hopping(_ms(window.size), _ms(window.every), _ms(window.offset))


def _ms(duration: object) -> int:
    return round(duration.total_seconds() * 1000)


milliseconds = st.sampled_from((0, 1, 500, 1000, 4000, 9999))


@st.composite
def grid_windows(draw: st.DrawFn) -> Window:
    """Tumbling ones, and hopping ones whose size is no multiple of the hop."""
    every = draw(st.sampled_from((1000, 3000, 5000, 7001)))
    offset = f"{draw(st.integers(0, every - 1))} ms"
    size = every + draw(st.sampled_from((0, 1, 999, every, 2 * every + 500)))
    return (
        Tumbling(f"{size} ms", offset=offset) if size == every else Hopping(f"{size} ms", f"{every} ms", offset=offset)
    )


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Shape]:
    """One of each kind, to be run beside each other on one stream."""
    grace = draw(st.sampled_from((1, 1000, 5000)))
    return {
        "final": Shape(
            draw(grid_windows()),
            draw(milliseconds),
            grace_ms=draw(st.sampled_from((0, 2000))),
            late=draw(st.sampled_from((Late.SIDE_OUTPUT, Late.DROP))),
            filters=draw(st.booleans()),
        ),
        "early": Shape(draw(grid_windows()), draw(milliseconds), grace_ms=grace, late=Late.UPDATE, mode="update"),
        "visits": Shape(Session(f"{draw(st.sampled_from((1, 1000, 2500)))} ms"), draw(milliseconds)),
    }


@st.composite
def streams(
    draw: st.DrawFn,
    start_ms: int = START,
    source: int = 0,
    batches_at_least: int = 4,
    batches_at_most: int = 7,
    keys: Sequence[str] = ("a", "b"),
) -> list[model.Batch]:
    """Batches whose events lie around a front that moves on; a heartbeat is a batch of its own."""
    batches: list[model.Batch] = []
    front_ms = start_ms
    number = 0
    for _ in range(draw(st.integers(batches_at_least, batches_at_most))):
        front_ms += draw(st.sampled_from((0, 1000, 4000, 12_000)))
        if draw(st.integers(0, 9)) == 9:
            batches.append([model.Heartbeat(front_ms, source)])
            continue
        events = []
        for _ in range(draw(st.integers(3, 9))):
            back = draw(st.one_of(st.integers(-2, 30).map(lambda halves: halves * 500), st.integers(0, 9000)))
            key = draw(st.sampled_from(keys))
            value = draw(st.integers(-1, 5))
            events.append(model.Event(f"{source}-{number}", key, front_ms - back, value, source=source))
            number += 1
        batches.append(events)
    return batches


def is_lively(batches: Iterable[model.Batch]) -> bool:
    """Whether it is another stream than the dullest possible one, which is always tried first."""
    return len({event.event_time_ms for batch in batches for event in batch}) > 4


def write(lake: Lake, batches: Iterable[model.Batch], table: str = "bronze.events") -> None:
    """One bronze file for each batch."""
    bronze = lakes.Bronze(lake, table, COLUMNS, "t")
    for batch in batches:
        if isinstance(batch[0], model.Heartbeat):
            bronze.heartbeat(batch[0].event_time_ms)
        else:
            bronze.append(
                [{"k": event.key or None, "v": event.value, "t": lakes.at(event.event_time_ms)} for event in batch],
                ids=[event.event_id for event in batch],
            )


def fill_categories(lake: Lake) -> None:
    """What is looked up."""
    # A row without a key matches no event, not even one without a key.
    known: dict[str | None, str] = {**CATEGORIES, None: "nothing"}
    looked_up = pa.table({"k": [*known], "category": [*known.values()]})
    write_deltalake(lake.table_uri("silver.categories"), looked_up)


def run(spark: SparkSession, lake: Lake, pipelines: Sequence[Pipeline]) -> None:
    """Runs all of them in one driver."""
    outcomes = Driver(spark, lake, pipelines).run_until_caught_up(close=False)
    for outcome in outcomes.values():
        if outcome.error is not None:
            raise outcome.error


VERDICTS = ("on_time", "partly_late", "late", "filtered", "unmatched", "quarantined")


def assert_as_the_model_says(
    lake: Lake, pipeline: Pipeline, shape: Shape, batches: Sequence[model.Batch]
) -> model.Outcome:
    """Compares everything that the engine tells with everything that the model tells."""
    expected = shape.expected(batches)
    padded = [*batches, *([] for _ in expected.batches[len(batches) :])]
    found = lakes.ledger(lake, pipeline)
    assert [batch_id for batch_id, _ in found] == [batch.batch_id for batch in expected.batches]
    for (_, row), batch, events in zip(found, expected.batches, padded, strict=True):
        told = Counter(verdict for verdict in batch.verdicts.values() if verdict != "filtered")
        told.update(gone for event in events if isinstance(event, model.Event) and (gone := shape.removed(event)))
        assert row.watermark_ms == batch.watermark_ms
        assert row.late_watermark_ms == (batch.late_watermark_ms or 0)
        assert row["read"] == len(batch.verdicts)
        assert row["heartbeats"] == sum(isinstance(event, model.Heartbeat) for event in events)
        assert {verdict: row[verdict] for verdict in VERDICTS} == {verdict: told[verdict] for verdict in VERDICTS}
        judged = [shape.judged(e) for e in events if isinstance(e, model.Event) and e.event_id in batch.verdicts]
        assert row["pairs"] == model.pairs(judged, in_model(shape.window))
        assert row["pairs_late"] == len(batch.late_pairs)
        if shape.mode == "append":
            assert row["pairs_result"] == sum(closed.count for closed in batch.closed)
        if shape.window.kind != "hopping":
            assert row["within_grace"] == batch.within_grace
    assert found[-1][1]["state_rows"] == len(expected.open)
    _assert_tables(lake, pipeline, shape, batches, expected)
    lakes.assert_balanced(lake, pipeline)
    return expected


def _assert_tables(
    lake: Lake, pipeline: Pipeline, shape: Shape, batches: Sequence[model.Batch], expected: model.Outcome
) -> None:
    rows = lakes.rows(lake, pipeline.sink.table)
    results = [
        model.Row(
            row[shape.key] or NO_KEY,
            lakes.ms(row["window_start"]),
            lakes.ms(row["window_end"]),
            row["n"],
            row["total"],
        )
        for row in rows
    ]
    assert [row["__events"] for row in rows] == [row["n"] for row in rows]
    if shape.mode == "append":
        assert sorted(results) == sorted(expected.closed)
    else:
        newest = {(row.key, row.window_start_ms): row for row in expected.emitted}
        revisions = Counter((row.key, row.window_start_ms) for row in expected.emitted)
        assert sorted(results) == sorted(newest.values())
        assert {(row[shape.key] or NO_KEY, lakes.ms(row["window_start"])): row["revision"] for row in rows} == revisions
    events = {event.event_id: event for batch in batches for event in batch if isinstance(event, model.Event)}
    if shape.missing == "quarantine":
        set_aside = {each.event_id: each for each in events.values() if shape.removed(each) == "quarantined"}
        assert _events_of(lake, f"{pipeline.sink.table}__quarantine") == _as_written(set_aside.values())
    if shape.late is Late.DROP:
        return
    kept = []
    for row in lakes.rows(lake, f"{pipeline.sink.table}__late"):
        event, batch = events[row["_event_id"]], expected.batches[row["_batch_id"]]
        assert (row["k"] or NO_KEY, row["v"], lakes.ms(row["t"])) == (event.key, event.value, event.event_time_ms)
        assert row["partly_late"] == (batch.verdicts[event.event_id] == "partly_late")
        assert lakes.ms(row["engine_watermark"]) == batch.late_watermark_ms
        assert lakes.ms(row["watermark"]) == (batch.late_watermark_ms or 0) + shape.grace_ms
        for missed in row["missed_windows"]:
            start, end = lakes.ms(missed["window_start"]), lakes.ms(missed["window_end"])
            assert missed["late_by_ms"] == (batch.late_watermark_ms or 0) - end
            kept.append(model.LatePair(batch.batch_id, event.event_id, start, end))
        assert row["late_by_ms"] == max(missed["late_by_ms"] for missed in row["missed_windows"])
    assert sorted(kept) == sorted(expected.late_pairs)


def _events_of(lake: Lake, table: str) -> list[tuple[object, ...]]:
    return sorted(
        (row["_event_id"], row["k"] or NO_KEY, row["v"], lakes.ms(row["t"])) for row in lakes.rows(lake, table)
    )


def _as_written(events: Iterable[model.Event]) -> list[tuple[object, ...]]:
    return sorted((event.event_id, event.key, event.value, event.event_time_ms) for event in events)


# Whatever the random streams hold, this one has each kind of verdict.
EVERY_KIND: tuple[list[model.Batch], dict[str, Shape]] = (
    [
        [model.Event("e0", "a", START + 20_000), model.Event("e1", "a", START + 19_000, 0)],
        [model.Event("e2", "b", START + 21_000)],
        [model.Event("e3", "a", START + 18_000), model.Event("e4", "b", START + 1_000)],
        [model.Heartbeat(START + 60_000)],
    ],
    {
        "final": Shape(Hopping("10 seconds", "5 seconds"), 0, filters=True),
        "early": Shape(Tumbling("5 seconds"), 0, grace_ms=5_000, late=Late.UPDATE, mode="update"),
        "visits": Shape(Session("1 second"), 0),
    },
)


def assert_all_as_the_model_says(
    spark: SparkSession, lake: Lake, batches: list[model.Batch], chosen: dict[str, Shape]
) -> Counter[str]:
    """Runs all of them on one stream; how often each kind of end was reached."""
    reached: Counter[str] = Counter()
    write(lake, batches)
    pipelines = {name: shape.pipeline(name) for name, shape in chosen.items()}
    run(spark, lake, list(pipelines.values()))
    for name, shape in chosen.items():
        outcome = assert_as_the_model_says(lake, pipelines[name], shape, batches)
        reached.update(f"{name} {verdict}" for verdict in outcome.verdicts.values())
        reached[f"{name} within grace"] += sum(batch.within_grace for batch in outcome.batches)
        reached["heartbeats"] += sum(isinstance(batch[0], model.Heartbeat) for batch in batches)
    return reached


def test_every_kind_of_event_ends_where_the_rules_say(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    run = FetchingPass.run
    monkeypatch.setattr(FetchingPass, "run", lambda batch: fetched.append(1) or run(batch))
    reached = assert_all_as_the_model_says(spark, lake, *EVERY_KIND)
    assert fetched, "small batches are fetched"
    kinds = ("final late", "early late", "visits late", "final partly_late", "early within grace", "final filtered")
    assert [kind for kind in (*kinds, "heartbeats") if not reached[kind]] == []


# Each verdict: test_every_kind_of_event_ends_where_the_rules_say. Random streams:
# test_of_several_tables_the_one_furthest_behind_decides_what_is_late
@pytest.mark.long
def test_every_event_of_a_random_stream_ends_where_the_rules_say(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # The same examples each time, and no shrinking: an example runs for seconds, a failure names its stream anyway.
    @settings(
        max_examples=3,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(streams(), shapes())
    def holds(batches: list[model.Batch], chosen: dict[str, Shape]) -> None:
        assume(is_lively(batches))
        assert_all_as_the_model_says(spark, Lake(str(tmp_path_factory.mktemp("lake"))), batches, chosen)

    holds()


@st.composite
def shapes_with_lookups(draw: st.DrawFn) -> dict[str, Shape]:
    """One of each way to deal with a missing category, to be run beside each other on one stream."""
    return {
        "null": Shape(draw(grid_windows()), draw(milliseconds), missing="null", filters=draw(st.booleans())),
        "drop": Shape(
            draw(grid_windows()), draw(milliseconds), late=Late.UPDATE, grace_ms=1000, mode="update", missing="drop"
        ),
        "quarantine": Shape(Session("1 second"), draw(milliseconds), missing="quarantine", filters=draw(st.booleans())),
    }


# Here late events and removed ones lie beside each other: what has no category is never late.
EVERY_KIND_LOOKED_UP: tuple[list[model.Batch], dict[str, Shape]] = (
    [
        [model.Event("e0", "a", START + 20_000), model.Event("e1", "x", START + 19_000, 0)],
        [model.Event("e2", "b", START + 21_000), model.Event("e3", NO_KEY, START + 21_000)],
        [
            model.Event("e4", "c", START + 18_000),
            model.Event("e5", "b", START + 1_000),
            model.Event("e6", "x", START + 1_000),
            model.Event("e7", NO_KEY, START + 1_000),
            model.Event("e8", "a", START + 1_000, 0),
        ],
        [model.Heartbeat(START + 60_000)],
    ],
    {
        "null": Shape(Hopping("10 seconds", "5 seconds"), 0, missing="null", filters=True),
        "drop": Shape(Tumbling("5 seconds"), 0, missing="drop", late=Late.UPDATE, grace_ms=1000, mode="update"),
        "quarantine": Shape(Session("1 second"), 0, missing="quarantine", filters=True),
    },
)


def test_every_kind_of_event_ends_there_where_spark_keeps_the_rows(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is kept is written in turns as it is, and fetched first.
    turns, fetched = cycle((False, True)), engine.PipelineQuery._fetched
    monkeypatch.setattr(engine.PipelineQuery, "_gives_few", lambda *_: False)
    monkeypatch.setattr(engine.PipelineQuery, "_fetched", lambda *its: fetched(*its) if next(turns) else its[1])
    fill_categories(lake)
    reached = assert_all_as_the_model_says(spark, lake, *EVERY_KIND_LOOKED_UP)
    ends = ("null partly_late", "null filtered", "drop late", "quarantine late", "quarantine filtered")
    assert [end for end in ends if not reached[end]] == []


# Without lookups: test_every_kind_of_event_ends_where_the_rules_say. What becomes of events without a key:
# tests/spark/test_enrich.py::test_before_windows_late_events_and_missing_keys_add_up
@pytest.mark.long
def test_every_event_of_a_random_lookup_stream_ends_where_the_rules_say(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reached: Counter[str] = Counter()

    @settings(
        max_examples=3,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(streams(keys=(*CATEGORIES, "x", NO_KEY)), shapes_with_lookups())
    @example(*EVERY_KIND_LOOKED_UP)
    def holds(batches: list[model.Batch], chosen: dict[str, Shape]) -> None:
        lake = Lake(str(tmp_path_factory.mktemp("lake")))
        write(lake, batches)
        fill_categories(lake)
        pipelines = {name: shape.pipeline(name) for name, shape in chosen.items()}
        run(spark, lake, list(pipelines.values()))
        for name, shape in chosen.items():
            outcome = assert_as_the_model_says(lake, pipelines[name], shape, batches)
            kept = (f"{name} {verdict}" for verdict in outcome.verdicts.values() if verdict != "filtered")
            events = (event for batch in batches for event in batch if isinstance(event, model.Event))
            reached.update([*kept, *(f"{name} {shape.removed(event)}" for event in events)])

    holds()
    ends = {"null": ("partly_late", "filtered"), "drop": ("unmatched",), "quarantine": ("quarantined", "filtered")}
    kinds = [f"{name} {end}" for name, own in ends.items() for end in ("on_time", "late", *own)]
    assert [kind for kind in kinds if not reached[kind]] == []


def test_of_several_tables_the_one_furthest_behind_decides_what_is_late(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables, reached = ("bronze.events", "bronze.others"), Counter[str]()
    five = {"batches_at_least": 5, "batches_at_most": 5}

    @settings(
        max_examples=1,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(streams(**five), streams(START - 6000, source=1, **five), grid_windows())
    def holds(left: list[model.Batch], right: list[model.Batch], window: Window) -> None:
        assume(is_lively(left) and is_lively(right))
        lake = Lake(str(tmp_path_factory.mktemp("lake")))
        write(lake, left, tables[0])
        write(lake, right, tables[1])
        batches = [[*ours, *theirs] for ours, theirs in zip(left, right, strict=True)]
        chosen = {
            "grid": Shape(window, 1000, tables=tables),
            "visits": Shape(Session("1 second"), 500, filters=True, tables=tables),
        }
        pipelines = {name: shape.pipeline(name) for name, shape in chosen.items()}
        run(spark, lake, list(pipelines.values()))
        for name, shape in chosen.items():
            outcome = assert_as_the_model_says(lake, pipelines[name], shape, batches)
            reached.update(outcome.verdicts.values())

    holds()
    assert [kind for kind in ("late", "on_time", "filtered") if not reached[kind]] == []


def test_events_of_windows_that_ended_by_1970_are_late_in_the_first_batch(spark: SparkSession, lake: Lake) -> None:
    shape = Shape(Tumbling("2 seconds"), delay_ms=1000)
    write(
        lake,
        [
            [model.Event("old", "a", -20_000), model.Event("edge", "a", -2_000), model.Event("young", "a", 1_000)],
            [model.Event("older", "a", -1), model.Event("younger", "a", 500), model.Event("newest", "a", 12_000)],
        ],
    )
    pipeline = shape.pipeline("early")
    run(spark, lake, [pipeline])

    # The engine stops where its split and Spark's own count of dropped groups disagree.
    assert {row["_event_id"] for row in lakes.rows(lake, "gold.early__late")} == {"old", "edge", "older"}
    assert [(lakes.ms(row["window_start"]), row["n"]) for row in lakes.rows(lake, "gold.early")] == [(0, 2)]
    lakes.assert_balanced(lake, pipeline)
