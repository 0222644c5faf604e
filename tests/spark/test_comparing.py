"""What an audit, a repair and a backfill may call different: sums near zero, ties, maps, rows of other programs."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.audit.text import audit_text
from spark_jobs.spark.values import among, close, same
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Join,
    Pipeline,
    Select,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
    Where,
)
from tests.support import lakes
from tests.support.clicks import MINUTE, START, audited, run_backfill, run_repair

MAP = "map('b', 2, 'a', 1)"


def test_values_are_compared_part_by_part(spark: SparkSession) -> None:
    other_order, other_value = "map('a', 1, 'b', 2)", "map('a', 1, 'b', 3)"
    alike = [
        (same, MAP, other_order, True),
        (same, MAP, other_value, False),
        (same, MAP, f"IF(false, {MAP}, NULL)", False),
        (same, f"array({MAP})", f"array({other_order})", True),
        (same, f"named_struct('m', {MAP}, 'n', 1)", f"named_struct('m', {other_value}, 'n', 1)", False),
        (same, "parse_json('{\"a\": 1}')", "parse_json('{ \"a\":1 }')", True),
        (close, "1D", "1D + 1e-11D", True),
        (close, "1D", "1D + 1e-7D", False),
        (close, "double('NaN')", "double('NaN')", True),
        (close, "double('NaN')", "5D", False),
        (close, "array(1D, 2D)", "array(1D, 2D + 1e-11D)", True),
        (close, "array(1D, 2D)", "array(1D)", False),
        (close, "IF(false, array(1D), NULL)", "array(1D)", False),
        (close, "array()", "array()", True),
        (close, "named_struct('a', 'x', 'd', 1D)", "named_struct('a', 'x', 'd', 1D + 1e-11D)", True),
        (close, "named_struct('a', 'x', 'd', 1D)", "named_struct('a', 'y', 'd', 1D)", False),
        (close, "map('a', 1D)", "map('a', 1D + 1e-11D)", True),
        (close, "map('a', array(1D))", "map('b', array(1D))", False),
    ]
    first, last = "named_struct('d', 4D, 's', 'a')", "named_struct('d', 6D, 's', 'b')"
    several = [
        ("5D", "array(0D, 4D, 6D)", True),
        ("7D", "array(0D, 4D, 6D)", False),
        ("'b'", "array('a', 'b')", True),
        ("'c'", "array('a', 'b')", False),
        ("named_struct('d', 5D, 's', 'b')", f"array({first}, {last})", True),
        ("named_struct('d', 5D, 's', 'c')", f"array({first}, {last})", False),
        ("array(5D)", "array(array(4D), array(6D))", True),
        ("map('a', 5D)", "array(map('a', 4D), map('a', 6D))", True),
        ("IF(false, 5D, NULL)", "array(4D, 6D)", False),
    ]

    def kind(sql: str) -> DataType:
        return spark.range(1).select(F.expr(sql)).schema[0].dataType

    asked = [F.expr(how(one, other, kind(one))) for how, one, other, _ in alike]
    asked += [F.expr(among(one, values, kind(one))) for one, values, _ in several]
    found = spark.range(1).select(*(each.alias(f"c{number}") for number, each in enumerate(asked))).collect()[0]
    expected = [*(wanted for *_, wanted in alike), *(wanted for *_, wanted in several)]
    told = [*(f"{one} {other}" for _, one, other, _ in alike), *(f"{one} {values}" for one, values, _ in several)]
    assert [text for text, got, wanted in zip(told, found, expected, strict=True) if got is not wanted] == []


MEASURES = {
    "n": "count(*)",
    "total": "sum(d)",
    "mean": "named_struct('of_d', avg(d), 'n', count(*))",
    "both": "array(avg(d), round(sum(d), 2))",
    "spread": "stddev(d)",
    "beside": "percentile_cont(0.5) WITHIN GROUP (ORDER BY d) + avg(d)",
    "last": "max_by(v, g)",
    "pair": "named_struct('a', max_by(v, g), 'none', max_by(v, g) FILTER (WHERE v < 0))",
    "first": "min_by(named_struct('v', v, 'd', d), g)",
    "middle": "percentile_approx(d, 0.5)",
}


FEW = ("n", "total", "mean", "spread", "last", "middle")
"""Sums, what is computed from them, choices, and what has no value of its own."""


def balances(measures: Collection[str]) -> Pipeline:
    """Groups at the edge of a choice, and ranked by what is nothing but rounding."""
    return lakes.one_file_a_batch(
        Pipeline(
            name="balances",
            source=Table("bronze.payments"),
            event_time="t",
            watermark=Watermark(delay="1 minute"),
            steps=(
                Aggregate(
                    window=Tumbling("10 minutes"), by=("k",), measures={name: MEASURES[name] for name in measures}
                ),
                Select({"sign": "signum(total)", "of_each": "total / n"}),
                Where("total >= 0"),
                TopN(5, order_by="of_each DESC"),
            ),
            sink=Sink("gold.balances"),
        )
    )


def payments(lake: Lake) -> None:
    """Accounts of which nearly all come to zero, each with its events in three batches; all tie in `g`."""
    chance = random.Random(5)
    columns = {"k": pa.string(), "v": pa.int64(), "d": pa.float64(), "g": pa.int64(), "t": lakes.TIMESTAMP}
    bronze = lakes.Bronze(lake, "bronze.payments", columns, "t")
    batches: list[list[dict[str, Any]]] = [[], [], []]
    for account in range(40):
        amounts = [chance.uniform(0.1, 1e5) for _ in range(4)]
        amounts += [-amount for amount in amounts]
        chance.shuffle(amounts)
        for number, amount in enumerate(amounts):
            at = lakes.at(START + (account % 2) * 10 * MINUTE + number)
            batches[number % 3].append({"k": f"a{account}", "v": number, "d": amount, "g": 1, "t": at})
    for batch in batches:
        bronze.append(batch)
    for minutes in (100, 101):
        bronze.heartbeat(START + minutes * MINUTE)


@pytest.mark.parametrize(
    "measures",
    [
        pytest.param(FEW, id="one of a kind"),
        # What they may be is asked of each by tests/unit/test_comparing.py, how values of a struct are compared by
        # test_values_are_compared_part_by_part.
        pytest.param(tuple(MEASURES), id="all", marks=pytest.mark.long),
    ],
)
def test_what_another_order_of_addition_gives_is_right(
    spark: SparkSession, lake: Lake, measures: Collection[str]
) -> None:
    payments(lake)
    definition = balances(measures)
    lakes.run(spark, lake, definition)
    assert 5 <= len(lakes.rows(lake, "gold.balances")) <= 10

    # What no order gives is wrong, and nothing else is; what another program has done is put right by what the audit
    # says to run.
    chosen = min(lakes.rows(lake, "gold.balances"), key=lambda row: (row["window_start"], row["rank"]))
    where = f"window_start = '{chosen['window_start']:%Y-%m-%dT%H:%M:%SZ}' AND k = '{chosen['k']}'"
    open_table(lake, "gold.balances").update({"total": "total + 0.01"}, predicate=where)
    lost = max(lakes.rows(lake, "gold.balances"), key=lambda row: (row["window_start"], row["rank"]))
    gone = f"window_start = '{lost['window_start']:%Y-%m-%dT%H:%M:%SZ}' AND k = '{lost['k']}'"
    open_table(lake, "gold.balances").delete(gone)
    found = audited(spark, lake, definition.model_copy(update={"personal": ("K", "total")}))
    assert found.differing == 2, audit_text(found)
    assert "2026-01-01" in str(found.recounted)
    assert [each.partition(":")[0] for each in found.not_compared] == ["middle"]
    # Values of personal columns are in no message; which row is which: tests/spark/test_audit.py.
    begin = f"window_start={chosen['window_start']:%Y-%m-%d %H:%M:%S}"
    assert [begin in each.row and each.row.endswith(", k=‹masked›") for each in found.problems] == [True, True]
    told = "\n".join(each.what for each in found.problems)
    assert "total is ‹masked›, should be ‹masked›" in told
    assert "rank is 2, should be 1" in told
    assert sum("changed by another program" in said for holds, said in found.checks if not holds) == 2
    (done,) = run_backfill(spark, lake, definition, force=True)
    assert (done.changed.inserted, done.changed.updated, done.changed.deleted) == (0, 2, 0)
    lakes.assert_balanced(lake, definition)
    found = audited(spark, lake, definition)
    assert found.sound, audit_text(found)
    assert run_repair(spark, lake, definition) is None


EVENT = {"k": pa.string(), "v": pa.int64(), "m": pa.map_(pa.string(), pa.string()), "t": lakes.TIMESTAMP}
OTHER = {"k": pa.string(), "paid": pa.map_(pa.string(), pa.int64()), "u": lakes.TIMESTAMP}


def with_maps(step: str) -> Pipeline:
    steps = {
        "stateless": (Where("v >= 0"),),
        "deduplicate": (Deduplicate("k", within="10 minutes"),),
        "join": (Join(Table("bronze.paid"), on=("k",), event_time="u", within="10 minutes", how="left"),),
    }
    return lakes.one_file_a_batch(
        Pipeline(
            name="maps",
            source=Table("bronze.orders"),
            event_time="t",
            watermark=None if step == "stateless" else Watermark(delay="1 minute"),
            steps=steps[step],
            sink=Sink("gold.maps"),
        )
    )


# Rows of the other steps are compared by the same SQL, which test_values_are_compared_part_by_part asks; that late
# events of a join come in: tests/spark/test_backfill_steps.py::test_late_events_of_both_sides_of_a_join_are_repaired
@pytest.mark.parametrize(
    "step", ["stateless", *(pytest.param(name, marks=pytest.mark.long) for name in ("deduplicate", "join"))]
)
def test_maps_are_compared_and_unread_events_are_left_to_the_stream(spark: SparkSession, lake: Lake, step: str) -> None:
    orders, paid = lakes.Bronze(lake, "bronze.orders", EVENT, "t"), lakes.Bronze(lake, "bronze.paid", OTHER, "u")

    def add(*minutes: int) -> None:
        at = [lakes.at(START + minute * MINUTE) for minute in minutes]
        tags = [("b", "1"), ("a", "2")]
        orders.append([{"k": f"k{m}", "v": m, "m": tags, "t": t} for m, t in zip(minutes, at, strict=True)])
        paid.append([{"k": f"k{m}", "paid": [("x", m)], "u": t} for m, t in zip(minutes, at, strict=True)])

    for minutes in ((1, 2, 3), (60,), (61, 4), (120,)):
        add(*minutes)
    definition = with_maps(step)
    lakes.run(spark, lake, definition)
    written = lakes.comparable({"k": row["k"], "m": dict(row["m"])} for row in lakes.rows(lake, "gold.maps"))
    assert all(dict(row["m"]) == {"a": "2", "b": "1"} for row in lakes.rows(lake, "gold.maps"))
    # A row with a map that is gone is named.
    open_table(lake, "gold.maps").delete("k = 'k2'")
    found = audited(spark, lake, definition)
    assert len(found.problems) == 1, audit_text(found)
    assert "missing; it should have" in found.problems[0].what
    # It is put right. An event that the stream has not read a batch leaves to the stream, and the ledger balances
    # meanwhile.
    add(5, 6)
    run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    again = lakes.comparable({"k": row["k"], "m": dict(row["m"])} for row in lakes.rows(lake, "gold.maps"))
    assert again == written
    lakes.assert_balanced(lake, definition)
    lakes.run(spark, lake, definition)
    if step != "stateless":
        repaired = run_repair(spark, lake, definition)
        assert repaired is not None
        assert repaired.repaired
    assert {"k4", "k5", "k6"} <= {row["k"] for row in lakes.rows(lake, "gold.maps")}
    lakes.assert_balanced(lake, definition)
