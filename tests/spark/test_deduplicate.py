"""The first event of each key: against a model in plain Python, with late events, duplicates and bad rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spark.state import rows_in_state
from spark_jobs.spec import Aggregate, Deduplicate, Hopping, Pipeline, Sink, Table, Tumbling, Watermark, Where
from tests.support import lakes, model
from tests.support.clicks import audited, run_backfill, run_repair

pytestmark = pytest.mark.usefixtures("divided")

MINUTE = 60_000
START = 1_700_000_040_000
DELAY, WITHIN = 2, 10
COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}


@dataclass(frozen=True)
class Event:
    key: str | None
    minute: float | None
    value: int = 1

    @property
    def at_ms(self) -> int:
        return START + round((self.minute or 0) * MINUTE)

    def row(self) -> dict[str, object]:
        return {"k": self.key, "v": self.value, "t": None if self.minute is None else lakes.at(self.at_ms)}


@dataclass
class Outcome:
    """What became of the events, by the rules alone."""

    first: list[Event]
    fates: Counter[str]


def by_the_rules(batches: Sequence[Sequence[Event]]) -> Outcome:
    named = {f"{number}.{place}": event for number, batch in enumerate(batches) for place, event in enumerate(batch)}
    modelled: list[list[model.Event]] = [[] for _ in batches]
    for name, event in named.items():
        time_ms = None if event.minute is None else event.at_ms
        modelled[int(name.split(".")[0])].append(model.Event(name, event.key, time_ms, passes_where=event.value >= 0))
    judged = model.first_events(modelled, delay_ms=DELAY * MINUTE, within_ms=WITHIN * MINUTE, no_data_batches="at_end")
    return Outcome([named[str(name)] for (name,) in judged.rows()], Counter(judged.verdicts.values()))


def pipeline(*after: Aggregate, mode: str = "append", delay: str = f"{DELAY} minutes") -> Pipeline:
    definition = Pipeline(
        name="firsts",
        source=Table("bronze.clicks"),
        event_time="t",
        watermark=Watermark(delay=delay),
        steps=(Where("v >= 0"), Deduplicate("k", within=f"{WITHIN} minutes"), *after),
        sink=Sink("silver.firsts", mode=mode),
    )
    return lakes.one_file_a_batch(definition)


def bronze_of(lake: Lake, batches: Sequence[Sequence[Event]]) -> None:
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    for batch in batches:
        bronze.append([event.row() for event in batch])


def fates(lake: Lake, definition: Pipeline) -> Counter[str]:
    terms = ("on_time", "late", "duplicate", "filtered", "timeless")
    return Counter({name: sum(row[name] for _, row in lakes.ledger(lake, definition)) for name in terms})


def assert_ends_as_the_rules_say(spark: SparkSession, lake: Lake, batches: Sequence[Sequence[Event]]) -> None:
    bronze_of(lake, batches)
    definition = pipeline()
    lakes.run(spark, lake, definition)
    expected = by_the_rules(batches)
    assert +fates(lake, definition) == +expected.fates
    found = Counter((row["k"], lakes.ms(row["t"])) for row in lakes.rows(lake, "silver.firsts"))
    # Of several first events in one batch Spark takes any one.
    assert Counter(key for key, _ in found.elements()) == Counter(event.key for event in expected.first)
    assert len(lakes.rows(lake, "silver.firsts__late")) == expected.fates["late"]
    lakes.assert_balanced(lake, definition)


def test_a_second_event_of_a_key_is_removed_until_the_key_is_forgotten(spark: SparkSession, lake: Lake) -> None:
    batches = [
        [Event("a", 1), Event("b", 1)],
        [Event("a", 5), Event("b", -3, value=-1)],
        [Event("a", 10.9), Event("c", 14)],
        # By now the watermark stands at minute 8.9: `a` at minute 1 is still remembered, `b` comes too late.
        [Event("a", 12), Event("b", 2), Event("d", 20)],
        [Event("d", 21)],
        # Now at 18: `a` was forgotten, so this one is a first event again.
        [Event("a", 19), Event(None, None)],
    ]
    assert by_the_rules(batches).fates == {"on_time": 5, "duplicate": 4, "late": 1, "filtered": 1, "timeless": 1}
    assert_ends_as_the_rules_say(spark, lake, batches)
    late = lakes.rows(lake, "silver.firsts__late")
    assert [(row["k"], lakes.ms(row["t"]) - START, row["late_by_ms"] > 0) for row in late] == [("b", 2 * MINUTE, True)]


EVENTS = st.builds(
    Event,
    key=st.sampled_from(["a", "b", "c", None]),
    minute=st.one_of(st.none(), st.integers(0, 80).map(lambda quarter: quarter / 4)),
    value=st.sampled_from([1, 1, 1, 1, -1]),
)


# Each verdict: test_a_second_event_of_a_key_is_removed_until_the_key_is_forgotten. Random streams:
# tests/spark/test_properties.py::test_of_several_tables_the_one_furthest_behind_decides_what_is_late
@pytest.mark.long
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(batches=st.lists(st.lists(EVENTS, min_size=1, max_size=8), min_size=2, max_size=6))
def test_every_event_of_a_random_stream_ends_where_the_rules_say(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, batches: list[list[Event]]
) -> None:
    # The dullest streams are always tried first, and hold nothing.
    assume(len({(event.key, event.minute) for batch in batches for event in batch}) > 6)
    lake = Lake(str(tmp_path_factory.mktemp("lake"))).ensure_exists()
    assert_ends_as_the_rules_say(spark, lake, batches)


@pytest.mark.parametrize(
    ("window", "mode"),
    [
        pytest.param(Tumbling("5 minutes"), "update", id="tumbling"),
        # What was removed is in no window, however many an event has: [tumbling]
        pytest.param(Hopping("10 minutes", "5 minutes"), "append", id="hopping", marks=pytest.mark.long),
    ],
)
def test_before_windows_each_key_is_counted_once(
    spark: SparkSession, lake: Lake, window: Tumbling | Hopping, mode: str
) -> None:
    batches = [[Event("a", 1), Event("b", 2)], [Event("a", 1), Event("c", 30)], [Event("c", 30)], [Event("a", 2)]]
    bronze_of(lake, batches)
    counted = Aggregate(window=window, measures={"clicks": "count(*)"})
    definition = pipeline(counted, mode=mode)
    lakes.run(spark, lake, definition)
    assert +fates(lake, definition) == {"on_time": 3, "duplicate": 2, "late": 1}
    rows = {lakes.ms(row["window_start"]) - START: row["clicks"] for row in lakes.rows(lake, "silver.firsts")}
    ends = [start for start in rows if start < 20 * MINUTE]
    assert sum(rows[start] for start in ends) == 2 * (2 if isinstance(window, Hopping) else 1)
    lakes.assert_balanced(lake, definition)


def test_batches_and_their_watermarks_tell_what_was_a_duplicate(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline(delay="1 hour")
    # Where the watermark lags, a key removes what lies further from its first event than `within`, on either side.
    streamed = [("a", 50), ("b", 240), ("z", 600)]
    bronze_of(
        lake,
        [
            [Event("a", 50)],
            [Event("a", 0), Event("a", 60)],
            [Event("a", 75), Event("b", 240)],
            [Event("b", 241)],
            # The watermark stands at 180: `b`, until 250, is remembered. Two of the late ones are near `a`.
            [Event("b", 400), Event("a", 20), Event("a", 55), Event("a", 60)],
            [Event("z", 600)],
        ],
    )
    lakes.run(spark, lake, definition)

    def first() -> list[tuple[object, float]]:
        return sorted((row["k"], (lakes.ms(row["t"]) - START) / MINUTE) for row in lakes.rows(lake, "silver.firsts"))

    assert first() == streamed
    assert run_repair(spark, lake, definition) is not None
    assert first() == [("a", 20), *streamed]
    lakes.assert_balanced(lake, definition)
    day = {"begin": lakes.at(START - 60 * MINUTE), "end": lakes.at(START + 700 * MINUTE)}
    # What reads a part of the day knows what was remembered then.
    around = {"begin": lakes.at(START + 395 * MINUTE), "end": lakes.at(START + 405 * MINUTE)}
    run_backfill(spark, lake, definition, force=True, **around)
    assert first() == [("a", 20), *streamed]
    # Rows that are gone are missing, and come back; as streamed, what was late goes.
    open_table(lake, "silver.firsts").delete("k = 'a' AND v = 1")
    open_table(lake, "silver.firsts").update({"v": "v + 7"}, predicate="k = 'b'")
    found = audited(spark, lake, definition)
    said = "\n".join(f"{problem.row} {problem.what}" for problem in found.problems)
    assert found.differing == 3, said
    assert said.count("missing; it should have") == 2
    assert "_event_id=e0" in said
    assert "v is 8, should be 1" in said
    run_backfill(spark, lake, definition, mode="as-streamed", force=True, **day)
    assert first() == streamed


def test_the_keys_that_are_remembered_are_counted_in_the_state(spark: SparkSession, lake: Lake) -> None:
    bronze_of(lake, [[Event("a", 1), Event("b", 2), Event("a", 2)]])
    definition = pipeline()
    lakes.run(spark, lake, definition)
    assert rows_in_state(spark, lake, definition) == lakes.ledger(lake, definition)[-1][1]["state_rows"] == 2


def test_a_running_total_counts_each_key_once_while_it_is_remembered(spark: SparkSession, lake: Lake) -> None:
    bronze_of(lake, [[Event("a", 1), Event("b", 2)], [Event("a", 3)], [Event("a", 2)]])
    definition = pipeline(Aggregate(measures={"clicks": "count(*)"}), mode="update")
    lakes.run(spark, lake, definition)
    assert [row["clicks"] for row in lakes.rows(lake, "silver.firsts")] == [2]
    lakes.assert_balanced(lake, definition)


# At random points real drivers die:
# tests/control/test_supervised.py::test_killed_drivers_and_a_killed_supervisor_have_changed_no_table
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("materialised", marks=pytest.mark.long),
        "late_committed",
        pytest.param("result_committed", marks=pytest.mark.long),
    ],
)
def test_a_batch_that_is_cut_off_ends_as_if_it_had_not_been(
    spark: SparkSession, lake: Lake, tmp_path: Path, point: str
) -> None:
    batches = [[Event("a", 1)], [Event("b", 30)], [Event("b", 31)], [Event("a", 2), Event("c", 32), Event("c", 33)]]
    bronze_of(lake, batches)
    definition = pipeline()

    def cut(reached: str, batch_id: int) -> None:
        if (reached, batch_id) == (point, 3):
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        lakes.run(spark, lake, definition, failpoint=cut)
    lakes.run(spark, lake, definition)
    assert +fates(lake, definition) == +by_the_rules(batches).fates
    assert Counter(row["k"] for row in lakes.rows(lake, "silver.firsts")) == {"a": 1, "b": 1, "c": 1}
    assert [row["k"] for row in lakes.rows(lake, "silver.firsts__late")] == ["a"]
    lakes.assert_balanced(lake, definition)
