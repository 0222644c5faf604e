"""Results computed again in batch: against the table that the stream wrote, and against DuckDB over all events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.batch import backfill, repair
from spark_jobs.batch.planning import plan_backfill
from spark_jobs.lake import Lake
from spark_jobs.lake.tables import open_table
from spark_jobs.spec import (
    Aggregate,
    Hopping,
    Late,
    Pipeline,
    Select,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
    Where,
)
from tests import lakes

START = 1_767_225_600_000  # 2026-01-01
MINUTE = 60_000
COLUMNS = {"k": pa.string(), "v": pa.int64(), "d": pa.float64(), "t": lakes.TIMESTAMP}
MEASURES = {"n": "count(*)", "total": "sum(w)", "mean": "avg(d)"}
BEGIN, END = datetime(2025, 12, 31, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC)

TUMBLING, HOPPING = Tumbling("10 minutes"), Hopping("15 minutes", "10 minutes")


def pipeline(
    window: Tumbling | Hopping = TUMBLING, *, mode: str = "append", top: bool = False, **more: Any
) -> Pipeline:
    steps = [Where("v >= 0"), Select({"w": "v * 2"}), Aggregate(window=window, by=("k",), measures=MEASURES)]
    if top:
        steps.append(TopN(2, order_by="total DESC, k"))
    late = {"late": Late.UPDATE, "grace": "2 minutes"} if mode == "update" else {}
    return lakes.one_file_a_batch(
        Pipeline(
            name="activity",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(**{"delay": "3 minutes", **late, **more}),
            steps=tuple(steps),
            sink=Sink("gold.activity", mode=mode),
        )
    )


def events(seed: int, batches: int = 12, size: int = 25) -> list[list[dict[str, Any]]]:
    """Batches of disordered events over two hours, a third of them late by up to an hour."""
    chance, made = random.Random(seed), []
    for batch in range(batches):
        now = batch * 10
        made.append(
            [
                {
                    "k": chance.choice(["a", "b", "c", None]),
                    "v": chance.choice([-1, 1, 2, 3, 50]),
                    "d": chance.uniform(0, 1),
                    "t": lakes.at(
                        START + round((now + chance.uniform(0, 10) - chance.choice([0, 0, 0, 20, 60])) * MINUTE)
                    ),
                }
                for _ in range(size)
            ]
        )
    return made


def feed(lake: Lake, batches: Sequence[Sequence[dict[str, Any]]]) -> lakes.Bronze:
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    for batch in batches:
        bronze.append(batch)
    return bronze


def by_duckdb(lake: Lake, window: Tumbling | Hopping, *, closed_ms: int, top: bool = False) -> list[tuple[Any, ...]]:
    """All closed windows over all events of bronze."""
    size, every = (window.size // timedelta(milliseconds=1), window.every // timedelta(milliseconds=1))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("clicks", open_table(lake, "bronze.clicks").to_pyarrow_dataset())
        ranked = "QUALIFY row_number() OVER (PARTITION BY s ORDER BY total DESC, k NULLS FIRST) <= 2" if top else ""
        return connection.execute(
            f"""
            WITH e AS (SELECT k, 2 * v AS w, d, epoch_ms(t) AS ms FROM clicks WHERE NOT _heartbeat AND v >= 0),
            pairs AS (
                SELECT *, unnest(range(ms // {every} * {every} - {size // every * every}, ms + 1, {every})) AS s
                FROM e
            )
            SELECT s, k, count(*), sum(w) AS total, avg(d) FROM pairs
            WHERE s <= ms AND ms < s + {size} AND s + {size} <= {closed_ms} GROUP BY s, k {ranked} ORDER BY ALL
            """
        ).fetchall()


def table(lake: Lake, name: str = "gold.activity") -> list[tuple[Any, ...]]:
    found = [
        (lakes.ms(row["window_start"]), row["k"], row["n"], row["total"], row["mean"]) for row in lakes.rows(lake, name)
    ]
    return sorted(found, key=lambda row: (row[0], row[1] is None, row[1]))


def assert_same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    def ordered(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return row[0], row[1] is None, row[1]

    found, expected = sorted(found, key=ordered), sorted(expected, key=ordered)
    assert [row[:4] for row in found] == [row[:4] for row in expected]
    assert [row[4] for row in found] == pytest.approx([row[4] for row in expected], rel=1e-9)


def closed_ms(lake: Lake, definition: Pipeline) -> int:
    return lakes.ledger(lake, definition)[-1][1].watermark_ms


def run_backfill(spark: SparkSession, lake: Lake, definition: Pipeline, **options: Any) -> list[backfill.Done]:
    target, plan = plan_backfill(lake, definition, options.pop("begin", BEGIN), options.pop("end", END), **options)
    return backfill.execute(spark, target, plan)


def run_repair(spark: SparkSession, lake: Lake, definition: Pipeline) -> backfill.Done | None:
    target, plan = repair.plan_repair(lake, definition)
    return None if plan.nothing_to_do else repair.execute(spark, target, plan)


def settled(lake: Lake) -> set[bool]:
    return {row["settled_version"] is not None for row in lakes.rows(lake, "gold.activity__late")}


KINDS = {
    "tumbling": pipeline(),
    "hopping": pipeline(HOPPING),
    "top": pipeline(top=True),
    "update": pipeline(mode="update"),
    "top, updated": pipeline(HOPPING, mode="update", top=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_and_a_backfill_count_every_event_and_as_streamed_gives_the_streams_rows_back(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    definition = KINDS[kind]
    window, top = definition.stateful_steps[0].window, definition.top_n is not None
    feed(lake, events(7))
    lakes.run(spark, lake, definition)
    closed = closed_ms(lake, definition)
    streamed = [row for row in table(lake) if row[0] + window.size // timedelta(milliseconds=1) <= closed]
    opened = [row for row in table(lake) if row not in streamed]
    expected = by_duckdb(lake, window, closed_ms=closed, top=top)
    assert streamed != expected, "late events matter"
    assert settled(lake) == {False}

    # Nothing but late events distinguishes the stream from the batch.
    assert [done.changed.rows for done in run_backfill(spark, lake, definition, mode="as-streamed", force=True)] == [0]

    done = run_repair(spark, lake, definition)
    assert done is not None
    assert done.changed.rows
    assert_same(table(lake), expected + opened)
    assert settled(lake) == {True}
    lakes.assert_balanced(lake, definition)
    assert run_repair(spark, lake, definition) is None

    (undone,) = run_backfill(spark, lake, definition, mode="as-streamed")
    assert undone.unsettled == done.settled
    assert_same(table(lake), streamed + opened)
    assert settled(lake) == {False}
    lakes.assert_balanced(lake, definition)

    (again,) = run_backfill(spark, lake, definition)
    assert again.settled == done.settled
    assert_same(table(lake), expected + opened)
    assert run_backfill(spark, lake, definition) == []
    lakes.assert_balanced(lake, definition)
