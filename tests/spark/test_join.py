"""Two streams joined by key and time: against plain Python, with late events, null keys and bad rows on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.engine import pipeline as engine
from spark_jobs.lake import Lake
from spark_jobs.spark.state import rows_in_state
from spark_jobs.spec import Join, Pipeline, Sink, Table, Watermark, Where
from tests.support import lakes, model

pytestmark = pytest.mark.usefixtures("divided")

MINUTE = 60_000
START = 1_700_000_040_000
DELAY, WITHIN, BEFORE = 3, 10, 2
LEFT = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
RIGHT = {"k": pa.string(), "paid": pa.int64(), "u": lakes.TIMESTAMP}
FAR = 10_000


@dataclass(frozen=True)
class Event:
    key: str | None
    minute: float | None
    value: int = 1

    @property
    def at_ms(self) -> int:
        return START + round((self.minute or 0) * MINUTE)

    @property
    def at(self) -> object:
        return None if self.minute is None else lakes.at(self.at_ms)


Batch = tuple[Sequence[Event], Sequence[Event]]


@dataclass
class Outcome:
    """Ids of events, by the rules alone: `l3` is the fourth event of the left side."""

    matches: set[tuple[str, str]]
    alone: dict[str, set[str]]
    late: dict[str, set[str]]
    fates: Counter[str]


def by_the_rules(batches: Sequence[Batch]) -> Outcome:
    numbers = {"l": 0, "r": 0}
    modelled: list[list[model.Event]] = []
    for batch in batches:
        modelled.append([])
        for source, (side, events) in enumerate(zip("lr", batch, strict=True)):
            for event in events:
                time_ms = None if event.minute is None else event.at_ms
                passes = side == "r" or event.value >= 0
                modelled[-1].append(
                    model.Event(f"{side}{numbers[side]}", event.key, time_ms, passes_where=passes, source=source)
                )
                numbers[side] += 1
    judged = model.joined(
        modelled,
        delays_ms=(DELAY * MINUTE, DELAY * MINUTE),
        within_ms=WITHIN * MINUTE,
        before_ms=BEFORE * MINUTE,
        no_data_batches=False,
    )
    matches = {(left, right) for left, right in judged.rows() if left is not None and right is not None}
    matched = {name for match in matches for name in match}
    alone = {side: {n for n in judged.of("on_time") - matched if n.startswith(side)} for side in "lr"}
    late = {side: {name for name in judged.of("late") if name.startswith(side)} for side in "lr"}
    return Outcome(matches, alone, late, Counter(judged.verdicts.values()))


def pipeline(how: str, *after: Where) -> Pipeline:
    join = Join(
        Table("bronze.payments"),
        on=("k",),
        event_time="u",
        within=f"{WITHIN} minutes",
        before=f"{BEFORE} minutes",
        how=how,
    )
    definition = Pipeline(
        name="paid",
        source=Table("bronze.orders"),
        event_time="t",
        watermark=Watermark(delay=f"{DELAY} minutes"),
        steps=(Where("v >= 0"), join, *after),
        sink=Sink("gold.paid"),
    )
    return lakes.one_file_a_batch(definition)


def bronze_of(lake: Lake, batches: Sequence[Batch]) -> None:
    orders = lakes.Bronze(lake, "bronze.orders", LEFT, "t")
    payments = lakes.Bronze(lake, "bronze.payments", RIGHT, "u")
    placed = {"l": 0, "r": 0}
    for left, right in batches:
        names = {
            side: [f"{side}{placed[side] + i}" for i in range(len(own))]
            for side, own in zip("lr", (left, right), strict=True)
        }
        placed = {side: placed[side] + len(names[side]) for side in "lr"}
        orders.append([{"k": e.key, "v": e.value, "t": e.at} for e in left], ids=names["l"])
        payments.append([{"k": e.key, "paid": e.value, "u": e.at} for e in right], ids=names["r"])
    orders.heartbeat(START + FAR * MINUTE)
    payments.heartbeat(START + FAR * MINUTE)


def assert_ends_as_the_rules_say(lake: Lake, definition: Pipeline, how: str, expected: Outcome) -> None:
    rows = lakes.rows(lake, "gold.paid")
    found = Counter((row["_side"], row["_event_id"], row["_other_event_id"]) for row in rows)
    wanted = {("both", *pair) for pair in expected.matches}
    wanted |= {("left", one, None) for one in expected.alone["l"] if how in ("left", "full")}
    wanted |= {("right", None, other) for other in expected.alone["r"] if how in ("right", "full")}
    assert found == Counter(wanted)
    late = {(row["_side"], row["_event_id"]) for row in lakes.rows(lake, "gold.paid__late")}
    assert late == {("left", name) for name in expected.late["l"]} | {("right", name) for name in expected.late["r"]}
    ledger = lakes.ledger(lake, definition)
    terms = ("on_time", "late", "filtered", "timeless")
    assert Counter({name: sum(row[name] for _, row in ledger) for name in terms}) == expected.fates
    assert sum(row["left_on_time"] for _, row in ledger) == len(
        expected.alone["l"] | {one for one, _ in expected.matches}
    )
    lakes.assert_balanced(lake, definition)


CASE: Sequence[Batch] = (
    ([Event("a", 1), Event("b", 2), Event(None, 2), Event("f", 1, -1)], [Event("a", 4), Event("x", 3), Event(None, 2)]),
    ([Event("c", 30), Event("n", None)], [Event("c", 31), Event("c", 28)]),
    ([Event("d", 40)], [Event("d", 50), Event("d", 51)]),
    ([Event("e", 2), Event("g", 52)], [Event("a", 5), Event("g", 50), Event("g", 49.9)]),
)


@pytest.mark.parametrize(
    ("how", "while_computed"),
    [
        ("full", True),
        # A full join has what each of the others has, and more: [full-True]
        pytest.param("inner", False, marks=pytest.mark.long),
        pytest.param("left", False, marks=pytest.mark.long),
        pytest.param("right", False, marks=pytest.mark.long),
        pytest.param("full", False, marks=pytest.mark.long),
    ],
)
def test_every_event_of_both_sides_is_matched_alone_or_late(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, how: str, while_computed: bool
) -> None:
    if while_computed:
        # However few rows a batch has.
        monkeypatch.setattr(engine, "LEAST_ROWS_A_FILE", 0)
    expected = by_the_rules(CASE)
    # Null keys match nothing, minute 50 is within ten minutes of 40 and 51 is not, `e` and the second payment of `a`
    # come behind the watermark.
    assert expected.matches == {("l0", "r0"), ("l4", "r3"), ("l4", "r4"), ("l6", "r5"), ("l8", "r8")}
    assert (expected.late["l"], expected.late["r"]) == ({"l7"}, {"r7"})
    bronze_of(lake, CASE)
    definition = pipeline(how)
    lakes.run(spark, lake, definition)
    assert_ends_as_the_rules_say(lake, definition, how, expected)


EVENTS = st.builds(
    Event,
    key=st.sampled_from(["a", "b", "c", None]),
    minute=st.one_of(st.none(), st.integers(0, 160).map(lambda quarter: quarter / 4)),
    value=st.sampled_from([1, 1, 1, 1, -1]),
)
SIDES = st.lists(EVENTS, min_size=1, max_size=6)


# Each verdict: test_every_event_of_both_sides_is_matched_alone_or_late. Random streams:
# tests/spark/test_properties.py::test_of_several_tables_the_one_furthest_behind_decides_what_is_late
@pytest.mark.long
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(batches=st.lists(st.tuples(SIDES, SIDES), min_size=2, max_size=5), how=st.sampled_from(["inner", "full"]))
def test_every_event_of_random_streams_ends_where_the_rules_say(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, batches: list[Batch], how: str
) -> None:
    # The dullest streams are always tried first, and hold nothing.
    assume(len({event.minute for sides in batches for side in sides for event in side}) > 6)
    lake = Lake(str(tmp_path_factory.mktemp("lake"))).ensure_exists()
    bronze_of(lake, batches)
    definition = pipeline(how)
    lakes.run(spark, lake, definition)
    assert_ends_as_the_rules_say(lake, definition, how, by_the_rules(batches))


@pytest.mark.parametrize(
    "point",
    [
        # tests/spark/test_deduplicate.py::test_a_batch_that_is_cut_off_ends_as_if_it_had_not_been[late_committed] and
        # tests/spark/test_failures.py::test_a_pipeline_that_fails_goes_on_as_if_it_had_not
        pytest.param("result_committed", marks=pytest.mark.long),
        pytest.param("materialised", marks=pytest.mark.long),
        pytest.param("late_committed", marks=pytest.mark.long),
    ],
)
def test_a_batch_that_is_cut_off_ends_as_if_it_had_not_been(spark: SparkSession, lake: Lake, point: str) -> None:
    bronze_of(lake, CASE)
    definition = pipeline("full")

    def cut(reached: str, batch_id: int) -> None:
        if (reached, batch_id) == (point, 3):
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        lakes.run(spark, lake, definition, failpoint=cut)
    lakes.run(spark, lake, definition)
    assert_ends_as_the_rules_say(lake, definition, "full", by_the_rules(CASE))


def test_what_a_filter_behind_the_join_takes_out_is_counted(spark: SparkSession, lake: Lake) -> None:
    bronze_of(lake, CASE)
    definition = pipeline("full", Where("_side = 'both'"))
    lakes.run(spark, lake, definition)
    expected = by_the_rules(CASE)
    assert {row["_side"] for row in lakes.rows(lake, "gold.paid")} == {"both"}
    withheld = sum(row["withheld"] for _, row in lakes.ledger(lake, definition))
    assert withheld == len(expected.alone["l"]) + len(expected.alone["r"])
    lakes.assert_balanced(lake, definition)


def test_a_copy_of_an_event_is_an_event_and_nothing_is_open_in_the_end(spark: SparkSession, lake: Lake) -> None:
    orders, payments = lakes.Bronze(lake, "bronze.orders", LEFT, "t"), lakes.Bronze(lake, "bronze.payments", RIGHT, "u")
    order, payment = {"k": "a", "v": 1, "t": lakes.at(START)}, {"k": "a", "paid": 1, "u": lakes.at(START)}
    orders.append([order, order, {**order, "k": "b"}], ids=["o", "o", "b"])
    payments.append([payment, payment], ids=["p", "p"])
    for bronze in (orders, payments):
        bronze.heartbeat(START + FAR * MINUTE)
    definition = pipeline("full")
    lakes.run(spark, lake, definition)
    assert Counter(row["_side"] for row in lakes.rows(lake, "gold.paid")) == {"both": 4, "left": 1}
    told = [text for text in lakes.told(lake, definition) if "open" in text]
    assert [text.rsplit(", ", 1)[1] for text in told] == ["left open 0", "right open 0"]


def test_what_waits_in_state_is_counted_by_side(spark: SparkSession, lake: Lake) -> None:
    orders, payments = lakes.Bronze(lake, "bronze.orders", LEFT, "t"), lakes.Bronze(lake, "bronze.payments", RIGHT, "u")
    orders.append([{"k": key, "v": 1, "t": lakes.at(START)} for key in "abc"])
    payments.append([{"k": "a", "paid": 1, "u": lakes.at(START + MINUTE)}])
    definition = pipeline("full")
    lakes.run(spark, lake, definition)
    counts = [rows_in_state(spark, lake, definition, side) for side in ("left", "right")]
    assert counts == [3, 1]
    terms = lakes.ledger(lake, definition)[-1][1].terms
    assert {name: terms[name] for name in terms if "state" in name} == {
        "state_rows": 4,
        "left_state_rows": 3,
        "right_state_rows": 1,
    }


def test_a_column_that_both_sides_have_is_refused(spark: SparkSession, lake: Lake) -> None:
    lakes.Bronze(lake, "bronze.orders", LEFT, "t").append([{"k": "a", "v": 1, "t": lakes.at(START)}])
    doubled = {**RIGHT, "v": pa.int64()}
    lakes.Bronze(lake, "bronze.payments", doubled, "u").append([{"k": "a", "v": 1, "u": lakes.at(START)}])
    with pytest.raises(SchemaMismatchError, match=r"both sides of the Join have \['v'\]"):
        lakes.run(spark, lake, pipeline("inner"))
