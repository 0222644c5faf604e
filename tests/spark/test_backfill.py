"""Results computed again in batch: against the table that the stream wrote, and against DuckDB over all events."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_jobs.batch import audit, backfill, planning, repair
from spark_jobs.batch.planning import BackfillRefusedError, NotComparableError, plan_backfill, rows_to_compare
from spark_jobs.batch.ranges import RangeError
from spark_jobs.batch.recompute import Recompute
from spark_jobs.cli import app
from spark_jobs.commits.changes import Revise
from spark_jobs.commits.large import LargeCommits
from spark_jobs.commits.small import SmallCommits
from spark_jobs.console import batch as console_batch
from spark_jobs.console.batch import backfill_text
from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake, settling
from spark_jobs.lake.errors import ConflictError
from spark_jobs.lake.files import MissingFilesError
from spark_jobs.lake.retention import cut_log
from spark_jobs.lake.tables import open_table
from spark_jobs.spec import (
    Aggregate,
    Deduplicate,
    Enrich,
    Hopping,
    Join,
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
from tests import lakes

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


def run_backfill(spark: SparkSession, lake: Lake, definition: Pipeline, **options: Any) -> list[backfill.Done]:
    target, plan = plan_backfill(lake, definition, options.pop("begin", BEGIN), options.pop("end", END), **options)
    return backfill.execute(spark, target, plan)


def backfill_in_parts(
    spark: SparkSession, lake: Lake, definition: Pipeline, cuts: Iterable[float], chance: random.Random
) -> None:
    """All of the range, cut after so many minutes, in whatever order."""
    parts = list(pairwise([BEGIN, *(lakes.at(START + round(minutes * MINUTE)) for minutes in sorted(cuts)), END]))
    chance.shuffle(parts)
    for begin, end in parts:
        run_backfill(spark, lake, definition, begin=begin, end=end)


def run_repair(spark: SparkSession, lake: Lake, definition: Pipeline) -> backfill.Done | None:
    target, plan = repair.plan_repair(lake, definition)
    return None if plan.nothing_to_do else repair.execute(spark, target, plan)


def settled_ids(lake: Lake, table: str = "gold.activity") -> set[str]:
    return {row["_event_id"] for row in lakes.rows(lake, f"{table}__late") if row["settled_version"] is not None}


def settled(lake: Lake) -> set[bool]:
    return {row["settled_version"] is not None for row in lakes.rows(lake, "gold.activity__late")}


KINDS = {
    "tumbling": pipeline(),
    "hopping": pipeline(HOPPING),
    "top": pipeline(top=True),
    "update": pipeline(mode="update"),
    "top, updated": pipeline(HOPPING, mode="update", top=True),
}


@pytest.mark.long  # Of the shop's pipelines, tests/spark/test_shop_pipelines.py asks the same.
@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_and_a_backfill_count_every_event_and_as_streamed_gives_the_streams_rows_back(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    definition = KINDS[kind]
    window, top = definition.stateful_steps[0].window, definition.top_n is not None
    feed(lake, events(7, 6, minutes=20))
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


@pytest.fixture(scope="module")
def streamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with a live ranking over hopping windows; copied, never changed."""
    lake = Lake(str(tmp_path_factory.mktemp("streamed"))).ensure_exists()
    feed(lake, events(11, 6, minutes=20))
    lakes.run(spark, lake, KINDS["top, updated"])
    return lake


def copy_of(lake: Lake, folder: Path) -> Lake:
    shutil.copytree(lake.uri, folder)
    return Lake(str(folder)).ensure_exists()


@pytest.fixture
def copy(streamed: Lake, tmp_path: Path) -> Lake:
    return copy_of(streamed, tmp_path / "copy")


RANKING = KINDS["top, updated"]
TABLES = ("gold.activity", "gold.activity__groups")


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Without sums of doubles, whose last digits go by the order in which they were added."""
    return {name: lakes.comparable(lakes.rows(lake, name), without=("mean",)) for name in TABLES}


def test_any_split_of_a_range_gives_the_same_tables(spark: SparkSession, streamed: Lake, tmp_path: Path) -> None:
    chance, found = random.Random(3), []
    for number, cuts in enumerate((0, 1, 4)):
        shutil.copytree(streamed.uri, tmp_path / str(number))
        lake = Lake(str(tmp_path / str(number))).ensure_exists()
        edges = [START - 60 * MINUTE, *sorted(START + chance.randrange(90 * MINUTE) for _ in range(cuts)), None]
        for begin, end in pairwise(edges):
            run_backfill(spark, lake, RANKING, begin=lakes.at(begin), end=END if end is None else lakes.at(end))
        found.append(contents(lake))
        # An event whose windows lie on both sides of an edge is left for the repair, which finds nothing to change.
        if (done := run_repair(spark, lake, RANKING)) is not None:
            assert done.changed.rows == 0
        assert settled(lake) == {True}
        lakes.assert_balanced(lake, RANKING)
    assert found[0] == found[1]
    assert found[0] != contents(streamed)


@pytest.mark.parametrize(
    "point", [pytest.param("before the result", marks=pytest.mark.long), "before the late events are settled"]
)
def test_a_repair_that_is_cut_off_is_finished_by_the_next(
    spark: SparkSession, streamed: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    lakes_of = {}
    for name in ("calm", "cut"):
        shutil.copytree(streamed.uri, tmp_path / name)
        lakes_of[name] = Lake(str(tmp_path / name)).ensure_exists()
    run_repair(spark, lakes_of["calm"], RANKING)

    def cut(*_: Any, **__: Any) -> None:
        raise RuntimeError("cut off")

    if point == "before the result":
        monkeypatch.setattr(Recompute, "results", cut)
    else:
        monkeypatch.setattr(planning, "settle", cut)
    with pytest.raises(RuntimeError, match="cut off"):
        run_repair(spark, lakes_of["cut"], RANKING)
    monkeypatch.undo()
    assert settled(lakes_of["cut"]) == {False}
    assert run_repair(spark, lakes_of["cut"], RANKING) is not None
    assert contents(lakes_of["cut"]) == contents(lakes_of["calm"])
    assert settled(lakes_of["cut"]) == {True}
    lakes.assert_balanced(lakes_of["cut"], RANKING)


@pytest.mark.parametrize("point", [pytest.param("before the groups", marks=pytest.mark.long), "before the result"])
def test_an_as_streamed_backfill_that_is_cut_off_is_finished_by_the_next(
    spark: SparkSession, copy: Lake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def values() -> dict[str, list[tuple[Any, ...]]]:
        columns = ("mean", "revision", "revised_at")
        return {name: lakes.comparable(lakes.rows(copy, name), without=columns) for name in TABLES}

    streamed = values()
    run_repair(spark, copy, RANKING)
    corrected = values()

    def cut(*_: Any, **__: Any) -> None:
        raise RuntimeError("cut off")

    place = (backfill, "revise_tables") if point == "before the groups" else (Recompute, "results")
    monkeypatch.setattr(*place, cut)
    with pytest.raises(RuntimeError, match="cut off"):
        run_backfill(spark, copy, RANKING, mode="as-streamed")
    monkeypatch.undo()
    # A repair may be the next as well: whatever is not in the results for certain must be open to it.
    assert settled(copy) == {False}

    assert run_backfill(spark, copy, RANKING, mode="as-streamed") != []
    assert values() == streamed
    lakes.assert_balanced(copy, RANKING)
    run_repair(spark, copy, RANKING)
    assert values() == corrected
    assert settled(copy) == {True}


def test_where_another_writer_is_always_faster_both_are_named(
    spark: SparkSession, copy: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(copy)
    target, plan = plan_backfill(copy, RANKING, BEGIN, END)

    def refused(*_: Any, **__: Any) -> None:
        raise CommitFailedError("Transaction failed: a concurrent transaction deleted data this operation read")

    with monkeypatch.context() as patched:
        patched.setattr(SmallCommits, "commit", refused)
        with pytest.raises(ConflictError, match=rf"{plan.run}.*the stream of `activity`, batch 5 .*same command again"):
            backfill.execute(spark, target, plan)
    assert contents(copy) == before
    assert settled(copy) == {False}

    with monkeypatch.context() as patched:
        patched.setattr(settling, "_update", refused)
        with pytest.raises(ConflictError, match=r"gold\.activity__late.*the stream of `activity`.*not marked yet"):
            backfill.execute(spark, target, plan)
    assert contents(copy) != before
    assert run_backfill(spark, copy, RANKING) != []
    assert settled(copy) == {True}
    lakes.assert_balanced(copy, RANKING)


def test_rows_that_another_program_changed_are_replaced_only_if_asked(spark: SparkSession, copy: Lake) -> None:
    before = contents(copy)
    oldest = min(lakes.rows(copy, "gold.activity__groups"), key=lambda row: row["window_end"])
    open_table(copy, "gold.activity__groups").delete(f"total = {oldest['total']} AND n = {oldest['n']}")
    assert contents(copy) != before
    with pytest.raises(
        BackfillRefusedError, match=r"another program has changed gold\.activity__groups .*DELETE.*--force"
    ):
        plan_backfill(copy, RANKING, BEGIN, END)
    # Only late events distinguish the two, and none of them is counted here.
    run_backfill(spark, copy, RANKING, mode="as-streamed", force=True)
    assert contents(copy) == before


def test_results_of_events_that_bronze_has_lost_stay(copy: Lake) -> None:
    open_table(copy, "bronze.clicks").delete("v = 50")
    with pytest.raises(BackfillRefusedError, match=r"rows of its source bronze\.clicks were taken away in version 6"):
        plan_backfill(copy, RANKING, BEGIN, END)


def test_bronze_that_was_overwritten_has_lost_events_too(copy: Lake) -> None:
    bronze = open_table(copy, "bronze.clicks")
    write_deltalake(bronze, bronze.to_pyarrow_table().slice(10), mode="overwrite")
    with pytest.raises(BackfillRefusedError, match=r"rows of its source bronze\.clicks .* version 6 \(WRITE\)"):
        plan_backfill(copy, RANKING, BEGIN, END)


def test_a_result_that_was_replaced_is_no_result_of_the_stream(spark: SparkSession, copy: Lake) -> None:
    path = f"delta.`{copy.table_path('gold.activity')}`"
    spark.sql(f"CREATE OR REPLACE TABLE {path} USING delta AS SELECT * FROM {path} WHERE n > 1")
    with pytest.raises(BackfillRefusedError, match=r"has changed gold\.activity .*REPLACE TABLE.*--force"):
        plan_backfill(copy, RANKING, BEGIN, END)
    _, plan = plan_backfill(copy, RANKING, BEGIN, END, force=True)
    assert "conflict gold.activity" in backfill_text(plan)


def test_what_others_commit_to_a_result_does_not_hide_its_batches(copy: Lake) -> None:
    for number in range(20):
        open_table(copy, "gold.activity").alter.set_table_properties({"delta.logRetentionDuration": f"{number} days"})
    assert plan_backfill(copy, RANKING, BEGIN, END)[1].nothing_to_do is None


def test_a_day_that_is_open_has_nothing_to_do_where_nobody_asked_for_it_by_its_date(copy: Lake) -> None:
    _, plan = plan_backfill(copy, RANKING, datetime(2026, 1, 1, 3, tzinfo=UTC), END, allow_empty=True)
    assert plan.nothing_to_do == "no result of the range is closed yet"
    assert "are still open in the stream: the stream writes them itself" in backfill_text(plan)


def test_the_command_shows_its_plan_and_finds_nothing_to_do_without_spark(
    streamed: Lake, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = copy_of(streamed, tmp_path / "copy")

    def told(*options: str) -> str:
        asked = [lakes.a_file(tmp_path, RANKING), f"--from={BEGIN:%Y-%m-%d}", f"--to={END.isoformat()}"]
        done = CliRunner().invoke(app, ["backfill", *asked, "--lake", lake.uri, *options], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.output

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    before, unsettled = contents(lake), len(lakes.rows(lake, "gold.activity__late"))
    with monkeypatch.context() as patched:
        patched.setattr(console_batch, "session", refused)
        plan = told("--dry-run")
    rows = lakes.rows(lake, "gold.activity")
    windows = {(row["window_start"], row["window_end"]) for row in rows}
    events_read = len(lakes.rows(lake, "bronze.clicks"))
    assert f"reads    bronze.clicks, version 5: at most {events_read} rows" in plan
    assert f"late     {unsettled} late events in the range, {unsettled} not counted in a result yet" in plan
    closed = [each for each in windows if lakes.ms(each[1]) <= closed_ms(lake, RANKING)]
    counted = len([row for row in rows if (row["window_start"], row["window_end"]) in closed])
    assert f"replaces among {counted} rows of {len(closed)} windows in gold.activity those that differ" in plan
    assert contents(lake) == before

    run_repair(spark, lake, RANKING)
    monkeypatch.setattr(console_batch, "session", refused)
    assert "Nothing to do. To compute it all the same: --force." in told()


def test_bronze_of_which_data_files_are_gone_is_refused(copy: Lake) -> None:
    before = contents(copy)
    lost = Path(open_table(copy, "bronze.clicks").file_uris()[0].removeprefix("file://"))
    lost.unlink()
    with pytest.raises(MissingFilesError, match=rf"table bronze\.clicks, version 5: 1 data file is gone: {lost.name}"):
        plan_backfill(copy, RANKING, BEGIN, END)
    assert contents(copy) == before


def test_a_source_that_is_gone_is_named_and_results_stay(copy: Lake) -> None:
    before = contents(copy)
    bronze = Path(copy.table_path("bronze.clicks"))
    bronze.rename(bronze.with_name("moved"))
    with pytest.raises(BackfillRefusedError, match=r"bronze\.clicks, which it reads, .* Put the table back"):
        plan_backfill(copy, RANKING, BEGIN, END)
    assert contents(copy) == before


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (END, BEGIN, "it is reversed"),
        (BEGIN, BEGIN, "it is empty"),
        (datetime(2999, 1, 1, tzinfo=UTC), datetime(2999, 1, 2, tzinfo=UTC), "it lies in the future"),
        (datetime(1999, 1, 1, tzinfo=UTC), datetime(1999, 1, 2, tzinfo=UTC), r"bronze\.clicks has no event from"),
        (datetime(2026, 1, 1, 3, tzinfo=UTC), END, "results from 2026-01-01 03:00:00 on are still open"),
    ],
)
def test_a_range_of_which_nothing_can_be_computed_is_refused(
    copy: Lake, begin: datetime, end: datetime, said: str
) -> None:
    before = contents(copy)
    with pytest.raises(RangeError, match=said):
        plan_backfill(copy, RANKING, begin, end)
    assert contents(copy) == before


def test_a_range_without_events_between_others_has_nothing_to_do(copy: Lake) -> None:
    first = datetime(1999, 1, 1, tzinfo=UTC)
    lakes.Bronze(copy, "bronze.clicks", COLUMNS, "t", 10_000).append([{"k": "a", "v": 1, "d": 0.5, "t": first}])
    _, plan = plan_backfill(copy, RANKING, first + timedelta(days=1), first + timedelta(days=2))
    assert plan.nothing_to_do
    assert [read.rows for read in plan.reads] == [0]
    with pytest.raises(RangeError, match=r"bronze\.clicks has no event from"):
        plan_backfill(copy, RANKING, first - timedelta(days=2), first - timedelta(days=1))
    _, plan = plan_backfill(copy, RANKING, first - timedelta(days=2), first - timedelta(days=1), allow_empty=True)
    assert plan.nothing_to_do


def test_a_range_that_reaches_into_what_is_open_is_cut_or_refused(copy: Lake) -> None:
    open_ms = closed_ms(copy, RANKING) - 15 * MINUTE
    first_open = lakes.at(open_ms // (10 * MINUTE) * 10 * MINUTE + 10 * MINUTE)
    _, plan = plan_backfill(copy, RANKING, BEGIN, END)
    assert lakes.at(plan.slices[-1].end_us // 1000) == first_open
    assert len(plan.notices) == 1
    target, whole = plan_backfill(copy, RANKING, BEGIN, END, force=True)
    starts = [row["window_start"] for row in lakes.rows(copy, "gold.activity") if row["window_start"] < first_open]
    assert rows_to_compare(target, whole) == (len(starts), len(set(starts)))
    with pytest.raises(RangeError, match="still open in the stream"):
        plan_backfill(copy, RANKING, BEGIN, END, strict=True)
    assert plan_backfill(copy, RANKING, BEGIN, first_open, strict=True)[1].notices == ()


def test_a_stream_goes_on_over_repaired_results_and_the_next_repair_counts_what_came_since(
    spark: SparkSession, lake: Lake
) -> None:
    definition, batches = KINDS["hopping"], events(5, 8, minutes=20)
    bronze = feed(lake, batches[:5])
    lakes.run(spark, lake, definition)
    first = run_repair(spark, lake, definition)
    for batch in batches[5:]:
        bronze.append(batch)
    lakes.run(spark, lake, definition)
    lakes.assert_balanced(lake, definition)
    second = run_repair(spark, lake, definition)
    assert first is not None
    assert second is not None
    assert first.settled + second.settled == len(lakes.rows(lake, "gold.activity__late"))
    assert_same(table(lake), by_duckdb(lake, HOPPING, closed_ms=closed_ms(lake, definition)))
    lakes.assert_balanced(lake, definition)


def test_rows_of_single_events_come_back_and_the_stream_goes_on(spark: SparkSession, lake: Lake) -> None:
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="valid",
            source=Table("bronze.clicks"),
            event_time="t",
            steps=(Where("v >= 0"), Select({"w": "v * 2"})),
            sink=Sink("gold.valid"),
        )
    )
    batches = events(2, batches=3)
    bronze = feed(lake, batches[:2])
    lakes.run(spark, lake, definition)
    before = lakes.comparable(lakes.rows(lake, "gold.valid"))
    open_table(lake, "gold.valid").delete("v = 50")
    # What the stream has not read yet it will write itself.
    bronze.append(batches[2])
    (done,) = run_backfill(spark, lake, definition, force=True)
    assert (done.changed.updated, done.changed.deleted) == (0, 0)
    assert lakes.comparable(lakes.rows(lake, "gold.valid")) == before
    lakes.run(spark, lake, definition)
    kept = sorted(row["v"] for batch in batches for row in batch if row["v"] >= 0)
    assert sorted(row["v"] for row in lakes.rows(lake, "gold.valid")) == kept


PAID = {"k": pa.string(), "p": pa.int64(), "u": lakes.TIMESTAMP}


def both_sides(seed: int, batches: int = 7, size: int = 20) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Batches of two disordered streams, a fifth of each late by up to an hour."""
    chance, made = random.Random(seed), []

    def moment(batch: int) -> datetime:
        minutes = batch * 20 + chance.uniform(0, 20) - chance.choice([0, 0, 0, 0, 40])
        return lakes.at(START + round(minutes * MINUTE))

    for batch in range(batches):
        keys = [*"abcdefgh", None]
        left = [{"k": chance.choice(keys), "v": 1, "d": 0.5, "t": moment(batch)} for _ in range(size)]
        right = [{"k": chance.choice(keys), "p": 1, "u": moment(batch)} for _ in range(size)]
        made.append((left, right))
    return made


WITHIN, BEFORE = 10, 4


def joined(how: str) -> Pipeline:
    bounds = {"within": f"{WITHIN} minutes", "before": f"{BEFORE} minutes"}
    return lakes.one_file_a_batch(
        Pipeline(
            name="paid",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay="3 minutes"),
            steps=(Join(Table("bronze.paid"), on=("k",), event_time="u", how=how, **bounds),),
            sink=Sink("gold.paid"),
        )
    )


@pytest.fixture(scope="module")
def streamed_join(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Lake, Pipeline]:
    """A lake with a join of this kind; copied, never changed."""
    lake, definition = Lake(str(tmp_path_factory.mktemp("join"))).ensure_exists(), joined(request.param)
    clicks = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    paid = lakes.Bronze(lake, "bronze.paid", PAID, "u")
    for left, right in both_sides(4):
        clicks.append(left, ids=[f"l{clicks._next + i}" for i in range(len(left))])
        paid.append(right, ids=[f"r{paid._next + i}" for i in range(len(right))])
    lakes.run(spark, lake, definition)
    return lake, definition


def unchangeable_ms(lake: Lake, definition: Pipeline) -> int:
    """Before it lie the rows that nothing can change any more, and that no event can which is open itself."""
    return closed_ms(lake, definition) - 2 * WITHIN * MINUTE


def pairs_by_duckdb(lake: Lake, definition: Pipeline) -> list[str]:
    """The pairs of all events of both sides."""
    (step,) = definition.stateful_steps
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in ("clicks", "paid"):
            connection.register(name, open_table(lake, f"bronze.{name}").to_pyarrow_dataset())
        found = connection.execute(
            f"""
            SELECT c._event_id, p._event_id
            FROM clicks c {"INNER" if step.how == "inner" else "FULL OUTER"} JOIN paid p ON c.k = p.k
            AND u >= t - INTERVAL {BEFORE} MINUTE AND u <= t + INTERVAL {WITHIN} MINUTE
            WHERE epoch_ms(coalesce(t, u)) < {unchangeable_ms(lake, definition)}
            """
        ).fetchall()
    return sorted(map(repr, found))


def pairs(lake: Lake, definition: Pipeline) -> list[str]:
    rows = [(row["_event_id"], row["_other_event_id"], row["t"] or row["u"]) for row in lakes.rows(lake, "gold.paid")]
    return sorted(repr(row[:2]) for row in rows if lakes.ms(row[2]) < unchangeable_ms(lake, definition))


@pytest.mark.long
@pytest.mark.parametrize("streamed_join", ["inner", "full"], indirect=True)
def test_a_join_with_late_events_of_both_sides_is_repaired_and_given_back(
    spark: SparkSession, streamed_join: tuple[Lake, Pipeline], tmp_path: Path
) -> None:
    lake, definition = copy_of(streamed_join[0], tmp_path / "copy"), streamed_join[1]
    expected = pairs_by_duckdb(lake, definition)

    def found() -> list[str]:
        return pairs(lake, definition)

    streamed = found()
    assert streamed != expected
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0

    done = run_repair(spark, lake, definition)
    assert done is not None
    assert found() == expected
    lakes.assert_balanced(lake, definition)
    (undone,) = run_backfill(spark, lake, definition, mode="as-streamed")
    assert undone.unsettled == done.settled
    assert found() == streamed
    backfill_in_parts(spark, lake, definition, (31, 74), random.Random(5))
    assert found() == expected
    lakes.assert_balanced(lake, definition)


@pytest.mark.long
@pytest.mark.parametrize("streamed_join", ["full"], indirect=True)
def test_any_split_of_a_range_gives_the_same_pairs(
    spark: SparkSession, streamed_join: tuple[Lake, Pipeline], tmp_path: Path
) -> None:
    streamed, definition = streamed_join
    chance, found, settled_late = random.Random(5), [], []
    for number, cuts in enumerate((0, 3)):
        lake = copy_of(streamed, tmp_path / str(number))
        backfill_in_parts(spark, lake, definition, (chance.uniform(-20, 110) for _ in range(cuts)), chance)
        assert pairs(lake, definition) == pairs_by_duckdb(lake, definition)
        lakes.assert_balanced(lake, definition)
        found.append(lakes.comparable(lakes.rows(lake, "gold.paid")))
        # An event whose pairs lie on both sides of a cut is settled by neither part: a repair finds nothing to change.
        run_repair(spark, lake, definition)
        assert lakes.comparable(lakes.rows(lake, "gold.paid")) == found[-1]
        settled_late.append(settled_ids(lake, "gold.paid"))
    assert found[0] == found[1]
    assert settled_late[0] == settled_late[1]
    assert found[0] != lakes.comparable(lakes.rows(streamed, "gold.paid"))


@pytest.mark.parametrize(
    "large", [pytest.param(False, id="few rows"), pytest.param(True, id="many rows", marks=pytest.mark.long)]
)
def test_of_two_runs_over_the_same_rows_each_changes_what_the_other_has_left(
    spark: SparkSession, lake: Lake, large: bool
) -> None:
    definition = pipeline()
    feed(lake, events(7, 6, minutes=20))
    lakes.run(spark, lake, definition)
    target, plan = plan_backfill(lake, definition, BEGIN, END)
    backend = LargeCommits if large else SmallCommits
    commit, done = backend.commit, []

    def after_the_repair(*arguments: Any) -> None:
        """Both have found what differs when the first one commits."""
        if not done:
            done.append(None)
            done[0] = run_repair(spark, lake, definition)
        commit(*arguments)

    with patch.object(Revise, "few", not large), patch.object(backend, "commit", after_the_repair):
        (second,) = backfill.execute(spark, target, plan)
    assert done[0].changed.rows > 0
    assert second.changed.rows == 0
    closed = closed_ms(lake, definition)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed))
    assert settled(lake) == {True}
    lakes.assert_balanced(lake, definition)


def test_a_backfill_keeps_what_another_run_has_counted_since_it_was_planned(spark: SparkSession, lake: Lake) -> None:
    definition = pipeline()
    bronze = feed(lake, events(7, 6, minutes=20))
    lakes.run(spark, lake, definition)
    target, plan = plan_backfill(lake, definition, BEGIN, END)
    # An event comes late and is repaired; the plan knows an older version of bronze.
    bronze.append([{"k": "a", "v": 1000, "d": 1.0, "t": lakes.at(START + 11 * MINUTE)}])
    lakes.run(spark, lake, definition)
    assert run_repair(spark, lake, definition) is not None
    backfill.execute(spark, target, plan)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed_ms(lake, definition)))
    assert settled(lake) == {True}
    lakes.assert_balanced(lake, definition)


def test_a_backfill_that_is_interrupted_goes_on_with_the_slices_that_are_left(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = pipeline()
    feed(lake, events(7, 6, minutes=20))
    lakes.run(spark, lake, definition)
    _, whole = plan_backfill(lake, definition, BEGIN, END)
    monkeypatch.setattr(planning, "_BYTES_A_SLICE", sum(read.bytes for read in whole.reads) // 12)
    target, plan = plan_backfill(lake, definition, lakes.at(START), lakes.at(START + 120 * MINUTE))
    assert len(plan.slices) > 5

    def stop(part: planning.Slice, done: backfill.Done | None) -> None:
        if done is not None and part.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backfill.execute(spark, target, plan, tell=stop)
    lakes.assert_balanced(lake, definition)
    _, rest = plan_backfill(lake, definition, lakes.at(START), lakes.at(START + 120 * MINUTE))
    left = [part.number for part in rest.slices if not part.nothing_to_do]
    assert left
    # An event with windows in two slices is left to the next run over both.
    assert len([number for number in left if number < 4]) <= 1

    run_backfill(spark, lake, definition)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed_ms(lake, definition)))
    lakes.assert_balanced(lake, definition)


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


@pytest.mark.long
def test_late_events_come_in_where_no_event_of_their_key_has(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="unique",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay="3 minutes"),
            steps=(Deduplicate("k", within="1 hour"),),
            sink=Sink("gold.activity"),
        )
    )
    feed(lake, with_duplicates(5))
    lakes.run(spark, lake, definition)
    closed = closed_ms(lake, definition) - 60 * MINUTE

    def found(here: Lake) -> list[tuple[Any, ...]]:
        return sorted((r["k"], r["_event_id"], r["v"]) for r in lakes.rows(here, "gold.activity"))

    streamed = found(lake)
    every_key = {(f"k{number}") for number in range(120)}
    assert {row[0] for row in streamed if row[0] in every_key} < every_key
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0

    copied = Lake(str(tmp_path / "copy"))
    shutil.copytree(lake.uri, copied.uri)
    done = run_repair(spark, lake, definition)
    assert done is not None
    keys = [row[0] for row in found(lake) if row[0] in every_key]
    assert sorted(keys) == sorted(every_key)
    # What the stream let through is still there, and of the late ones the first that came.
    late = {r["_event_id"]: r for r in lakes.rows(lake, "gold.activity__late")}
    added = set(found(lake)) - set(streamed)
    assert set(streamed) < set(found(lake))
    for key, event_id, _ in added:
        assert event_id == min((i for i, r in late.items() if r["k"] == key), key=lambda i: late[i]["_ingest_seq"])
    assert {r["settled_version"] is None for r in late.values() if lakes.ms(r["t"]) < closed} == {False}
    lakes.assert_balanced(lake, definition)

    for begin, end in pairwise([BEGIN, lakes.at(START), lakes.at(START + 30 * MINUTE), END]):
        run_backfill(spark, copied, definition, begin=begin, end=end)
    assert found(copied) == found(lake)
    lakes.assert_balanced(copied, definition)

    # A row that is gone is let through again; then the stream's own rows.
    open_table(lake, "gold.activity").delete("k = 'k7'")
    (again,) = run_backfill(spark, lake, definition, force=True)
    assert again.changed.inserted == 1
    assert sorted(row[0] for row in found(lake) if row[0] in every_key) == sorted(every_key)
    assert run_repair(spark, copied, definition) is not None
    (undone,) = run_backfill(spark, copied, definition, mode="as-streamed")
    assert undone.unsettled == done.settled
    assert found(copied) == streamed
    lakes.assert_balanced(copied, definition)


def sessions_by_python(batches: Sequence[Sequence[dict[str, Any]]], gap_ms: int) -> list[tuple[Any, ...]]:
    """The sessions of all events: those that touch are one."""
    found = []
    for key in {event["k"] for batch in batches for event in batch}:
        mine = sorted(
            (lakes.ms(event["t"]), 2 * event["v"])
            for batch in batches
            for event in batch
            if event["k"] == key and event["v"] >= 0
        )
        begin, values = mine[0][0], [mine[0][1]]
        for (before, _), (at, value) in pairwise(mine):
            if at > before + gap_ms:
                found.append((begin, before + gap_ms, key, len(values), sum(values)))
                begin, values = at, []
            values.append(value)
        found.append((begin, mine[-1][0] + gap_ms, key, len(values), sum(values)))
    return sorted(found, key=repr)


GAP = 2
SESSIONS = pipeline(Session(f"{GAP} minutes"))


@pytest.fixture(scope="module")
def streamed_sessions(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Lake, list[list[dict[str, Any]]]]:
    """A lake with the sessions of these events, and the events; copied, never changed."""
    lake = Lake(str(tmp_path_factory.mktemp("sessions"))).ensure_exists()
    batches = events(request.param, 7, size=16, minutes=20)
    feed(lake, batches)
    lakes.run(spark, lake, SESSIONS)
    return lake, batches


def sessions(lake: Lake) -> list[tuple[Any, ...]]:
    rows = lakes.rows(lake, "gold.activity")
    bounds = ("window_start", "window_end")
    return sorted(((*(lakes.ms(r[b]) for b in bounds), r["k"], r["n"], r["total"]) for r in rows), key=repr)


def first_open_ms(lake: Lake, batches: Sequence[Sequence[dict[str, Any]]]) -> int:
    """Where the first session begins that the stream may hold open."""
    closed = closed_ms(lake, SESSIONS)
    return min(row[0] for row in sessions_by_python(batches, GAP * MINUTE) if row[1] > closed)


@pytest.mark.long
@pytest.mark.parametrize("streamed_sessions", [3, 8], indirect=True)
def test_late_events_draw_sessions_together(
    spark: SparkSession, streamed_sessions: tuple[Lake, list[list[dict[str, Any]]]], tmp_path: Path
) -> None:
    lake, batches = copy_of(streamed_sessions[0], tmp_path / "lake"), streamed_sessions[1]
    definition, found = SESSIONS, sessions
    closed = closed_ms(lake, definition)
    expected = [row for row in sessions_by_python(batches, GAP * MINUTE) if row[1] <= closed]
    late = lakes.rows(lake, "gold.activity__late")
    assert found(lake) != expected
    # What would be joined to a session that the stream holds open waits until it is closed.
    last_open = first_open_ms(lake, batches)
    waiting = {row["_event_id"] for row in late if lakes.ms(row["t"]) >= last_open}

    # The stream closes a session, and begins another one that touches it: only its batches tell.
    streamed = found(lake)
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0

    copied = copy_of(lake, tmp_path / "copy")
    done = run_repair(spark, lake, definition)
    assert done is not None
    assert done.settled >= len(late) - len(waiting)
    assert [row for row in found(lake) if row[1] < last_open] == [row for row in expected if row[1] < last_open]
    lakes.assert_balanced(lake, definition)

    # Backfills of its parts, in any order, give what the repair gives.
    backfill_in_parts(spark, copied, definition, (7, 31, 55, 81), random.Random(len(late)))
    assert found(copied) == found(lake)
    lakes.assert_balanced(copied, definition)
    assert settled_ids(copied) == settled_ids(lake)

    (undone,) = run_backfill(spark, lake, definition, mode="as-streamed")
    assert undone.unsettled == done.settled
    assert found(lake) == streamed
    lakes.assert_balanced(lake, definition)


@pytest.mark.long
@pytest.mark.parametrize("streamed_sessions", [3], indirect=True)
def test_any_split_of_a_range_gives_the_same_sessions(
    spark: SparkSession, streamed_sessions: tuple[Lake, list[list[dict[str, Any]]]], tmp_path: Path
) -> None:
    streamed, batches = streamed_sessions
    open_ms = first_open_ms(streamed, batches)
    expected = [row for row in sessions_by_python(batches, GAP * MINUTE) if row[1] < open_ms]
    chance, found, settled_late = random.Random(2), [], []
    for number, cuts in enumerate((0, 3)):
        lake = copy_of(streamed, tmp_path / str(number))
        backfill_in_parts(spark, lake, SESSIONS, (chance.uniform(-20, 120) for _ in range(cuts)), chance)
        assert [row for row in sessions(lake) if row[1] < open_ms] == expected
        lakes.assert_balanced(lake, SESSIONS)
        found.append(lakes.comparable(lakes.rows(lake, "gold.activity"), without=("mean",)))
        settled_late.append(settled_ids(lake))
    assert found[0] == found[1]
    assert settled_late[0] == settled_late[1]
    assert found[0] != lakes.comparable(lakes.rows(streamed, "gold.activity"), without=("mean",))


CATEGORIES = ({"a": "tea", "b": "tea"}, {"a": "milk", "b": "tea", "c": "milk"}, {"b": "milk", "c": "tea"})


def categories(lake: Lake, version: int) -> None:
    rows = CATEGORIES[version]
    table = pa.table({"k": list(rows), "category": list(rows.values())})
    write_deltalake(lake.table_uri("silver.categories"), table, mode="overwrite")


@pytest.mark.parametrize("missing", ["null", pytest.param("drop", marks=pytest.mark.long)])
def test_events_are_looked_up_in_the_versions_that_the_stream_has_taken(
    spark: SparkSession, lake: Lake, missing: str
) -> None:
    definition = lakes.one_file_a_batch(
        Pipeline(
            name="activity",
            source=Table("bronze.clicks"),
            event_time="t",
            watermark=Watermark(delay="3 minutes"),
            steps=(
                Enrich("silver.categories", on=("k",), columns={"category": "category"}, missing=missing),
                Aggregate(window=TUMBLING, by=("category",), measures={"n": "count(*)", "total": "sum(v)"}),
            ),
            sink=Sink("gold.activity"),
        )
    )
    batches = events(7, 6, minutes=20)
    feed(lake, batches)
    categories(lake, 0)
    # From the batch after: a version is taken before a batch is read.
    changes = {1: 1, 3: 2}

    def change(point: str, batch_id: int) -> None:
        if point == "result_committed" and batch_id in changes:
            categories(lake, changes.pop(batch_id))

    driver = Driver(spark, lake, (definition,), reached=change)
    assert driver.run_until_caught_up(close=False)["activity"].error is None
    assert not changes

    def found() -> list[tuple[Any, ...]]:
        rows = lakes.rows(lake, "gold.activity")
        return sorted((lakes.ms(r["window_start"]), str(r["category"]), r["n"], r["total"]) for r in rows)

    closed = closed_ms(lake, definition)
    expected: dict[tuple[int, str], list[int]] = {}
    for number, batch in enumerate(batches):
        known = CATEGORIES[0 if number <= 1 else 1 if number <= 3 else 2]
        for event in batch:
            start = lakes.ms(event["t"]) // (10 * MINUTE) * (10 * MINUTE)
            category = known.get(event["k"])
            if start + 10 * MINUTE <= closed and (category or missing == "null"):
                expected.setdefault((start, str(category)), []).append(event["v"])
    all_events = sorted((*key, len(values), sum(values)) for key, values in expected.items())

    streamed = found()
    assert streamed != all_events
    (same,) = run_backfill(spark, lake, definition, mode="as-streamed", force=True)
    assert same.changed.rows == 0
    assert run_repair(spark, lake, definition) is not None
    assert found() == all_events
    lakes.assert_balanced(lake, definition)
    run_backfill(spark, lake, definition, mode="as-streamed")
    assert found() == streamed
    # A table that has changed since is of no matter.
    categories(lake, 0)
    run_backfill(spark, lake, definition)
    assert found() == all_events
    lakes.assert_balanced(lake, definition)
    # Of the versions only those are needed in which the events of the range were looked up.
    (oldest,) = open_table(lake, "silver.categories", version=0).file_uris()
    Path(oldest.removeprefix("file://")).unlink()
    (same,) = run_backfill(spark, lake, definition, begin=lakes.at(START + 100 * MINUTE), force=True)
    assert same.changed.rows == 0
    assert found() == all_events

    def recounted() -> audit.Audit:
        looked = audit.look(lake, definition)
        planned = audit.plan_recount(lake, definition, None, looked)
        assert not isinstance(planned, audit.Audit)
        return audit.recount(spark, *planned, looked)

    with pytest.raises(MissingFilesError, match=r"table silver\.categories, version 0: 1 data file is gone"):
        run_backfill(spark, lake, definition, force=True)
    assert recounted().refused
    # What maintenance has removed is nobody's fault.
    cut_log(lake, "silver.categories", 1)
    with pytest.raises(NotComparableError, match=r"version 0 of silver\.categories.* is not kept any more.*--from"):
        run_backfill(spark, lake, definition, force=True)
    assert found() == all_events
    told = recounted()
    assert told.sound
    assert "version 0 of silver.categories" in str(told.left_out)
