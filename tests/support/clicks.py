"""A disordered stream of clicks, pipelines over it, and what DuckDB says of its windows."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.audit.execute import recount
from spark_jobs.operations.audit.plan import Audit, look, plan_recount
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.repair import execute as repair
from spark_jobs.recompute.revising import RevisionOutcome
from spark_jobs.spec import (
    Aggregate,
    Hopping,
    Late,
    Pipeline,
    Select,
    Session,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
    Where,
)
from tests.support import lakes

START = 1_767_225_600_000  # 2026-01-01
MINUTE = 60_000
COLUMNS = {"k": pa.string(), "v": pa.int64(), "d": pa.float64(), "t": lakes.TIMESTAMP}
MEASURES = {"n": "count(*)", "total": "sum(w)", "mean": "avg(d)"}
BEGIN, END = datetime(2025, 12, 31, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC)

TUMBLING, HOPPING = Tumbling("10 minutes"), Hopping("15 minutes", "10 minutes")


def pipeline(
    window: Tumbling | Hopping | Session = TUMBLING, *, mode: str = "append", top: bool = False, **more: Any
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


def events(seed: int, batches: int = 12, size: int = 25, minutes: int = 10) -> list[list[dict[str, Any]]]:
    """Batches of so many minutes of disordered events, a third of them late by up to an hour."""
    chance, made = random.Random(seed), []
    for batch in range(batches):
        now = batch * minutes
        made.append(
            [
                {
                    "k": chance.choice(["a", "b", "c", None]),
                    "v": chance.choice([-1, 1, 2, 3, 50]),
                    "d": chance.uniform(0, 1),
                    "t": lakes.at(
                        START + round((now + chance.uniform(0, minutes) - chance.choice([0, 0, 0, 20, 60])) * MINUTE)
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


def run_backfill(spark: SparkSession, lake: Lake, definition: Pipeline, **options: Any) -> list[RevisionOutcome]:
    target, plan = plan_backfill(lake, definition, options.pop("begin", BEGIN), options.pop("end", END), **options)
    return backfill.execute(spark, target, plan)


def audited(spark: SparkSession, lake: Lake, definition: Pipeline) -> Audit:
    """All closed rows, recounted."""
    found = look(lake, definition)
    planned = plan_recount(lake, definition, None, found)
    return planned if isinstance(planned, Audit) else recount(spark, *planned, found)


def backfill_in_parts(
    spark: SparkSession, lake: Lake, definition: Pipeline, cuts: Iterable[float], chance: random.Random
) -> None:
    """All of the range, cut after so many minutes, in whatever order."""
    parts = list(pairwise([BEGIN, *(lakes.at(START + round(minutes * MINUTE)) for minutes in sorted(cuts)), END]))
    chance.shuffle(parts)
    for begin, end in parts:
        run_backfill(spark, lake, definition, begin=begin, end=end)


def run_repair(spark: SparkSession, lake: Lake, definition: Pipeline) -> RevisionOutcome | None:
    target, plan = repair.plan_repair(lake, definition)
    return None if plan.nothing_to_do else repair.execute(spark, target, plan)


def repaired_ids(lake: Lake, table: str = "gold.activity") -> set[str]:
    return {row["_event_id"] for row in lakes.rows(lake, f"{table}__late") if row["settled_version"] is not None}


def are_repaired(lake: Lake) -> set[bool]:
    return {row["settled_version"] is not None for row in lakes.rows(lake, "gold.activity__late")}


KINDS = {
    "tumbling": pipeline(),
    "hopping": pipeline(HOPPING),
    "top": pipeline(top=True),
    "update": pipeline(mode="update"),
    "top, updated": pipeline(mode="update", top=True),
}


RANKING = KINDS["top, updated"]
TABLES = ("gold.activity", "gold.activity__groups")


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Without sums of doubles, whose last digits go by the order in which they were added."""
    return {name: lakes.comparable(lakes.rows(lake, name), without=("mean",)) for name in TABLES}


def copy_of(lake: Lake, folder: Path) -> Lake:
    shutil.copytree(lake.uri, folder)
    return Lake(str(folder)).ensure_exists()


def merged(batches: Iterable[list[dict[str, Any]]], *sizes: int) -> list[list[dict[str, Any]]]:
    """The same events in fewer batches, the first made of so many of these, and so on.

    Only from the third one on an event can be late: each is judged by what was known before the one before it.
    """
    left = iter(batches)
    return [list(chain.from_iterable(islice(left, size))) for size in sizes]


def with_duplicates(seed: int) -> list[list[dict[str, Any]]]:
    """Events with keys of their own; some come again, within half an hour of event time and some batches later."""
    chance = random.Random(seed)
    batches: list[list[dict[str, Any]]] = [[] for _ in range(9)]
    for number in range(120):
        first = chance.randrange(5)
        at = first * 20 + chance.uniform(0, 20) - chance.choice([0, 0, 0, 40])
        for copy in range(chance.choice([1, 1, 2, 3])):
            event = {"k": f"k{number}", "v": copy, "d": 0.0}
            event["t"] = lakes.at(START + round((at + copy * chance.uniform(0, 15)) * MINUTE))
            batches[first + copy * chance.randrange(2)].append(event)
    for last in (7, 8):
        batches[last].append({"k": f"end{last}", "v": 0, "d": 0.0, "t": lakes.at(START + last * 35 * MINUTE)})
    return batches
