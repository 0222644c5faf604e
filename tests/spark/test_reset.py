"""Beginning again: a reset pipeline computes its tables again, and nothing of its old life is counted."""

from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.commits.changes import Append
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints.epochs import current_epoch, open_epoch
from spark_jobs.lake.checkpoints.offsets import SourceEmptiedError
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.errors import CheckpointError, LedgerError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.recompute.target import BackfillRefusedError
from spark_jobs.spec import Aggregate, Definition, Files, Ingest, Pipeline, Sink, Table
from tests.support import lakes
from tests.support.clicks import (
    BEGIN,
    END,
    TUMBLING,
    assert_same,
    by_duckdb,
    closed_ms,
    copy_of,
    events,
    feed,
    merged,
    pipeline,
    table,
)


def an_ingest(folder: Path) -> Ingest:
    return Ingest(
        name="ingest_sales",
        source=Files(str(folder)),
        columns={"k": "STRING", "v": "INT", "t": "TIMESTAMP"},
        event_time="t",
        max_future=timedelta(days=36500),
        sink=Sink("bronze.sales"),
    )


def totals(measure: str = "sum(v)") -> Pipeline:
    return Pipeline(
        name="totals",
        source=Table("bronze.sales"),
        steps=(Aggregate(by=("k",), measures={"total": measure}),),
        sink=Sink("gold.totals", mode="update"),
    )


def run(spark: SparkSession, lake: Lake, *definitions: Definition) -> dict[str, BaseException | None]:
    outcomes = Driver(spark, lake, definitions).run_until_caught_up(close=False)
    return {name: outcome.error for name, outcome in outcomes.items()}


@pytest.fixture(scope="module")
def once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Ingest]:
    """A lake in which an ingest has read four rows, and totals are computed of them; copied, never changed."""
    folder = tmp_path_factory.mktemp("once")
    (folder / "landing").mkdir()
    (folder / "landing" / "1.json").write_text('{"k": "a", "v": 1, "t": "2026-01-01T00:00:00Z"}\n' * 4)
    lake, ingest = Lake(str(folder / "lake")).ensure_exists(), an_ingest(folder / "landing")
    assert run(spark, lake, ingest, totals()) == {"ingest_sales": None, "totals": None}
    return lake, ingest


@pytest.fixture
def copied(once: tuple[Lake, Ingest], tmp_path: Path) -> tuple[Lake, Ingest]:
    return copy_of(once[0], tmp_path / "copy"), once[1]


def test_an_input_that_is_read_again_after_a_reset_is_closed_again(
    spark: SparkSession, copied: tuple[Lake, Ingest]
) -> None:
    lake, ingest = copied
    for _ in range(2):
        assert Driver(spark, lake, [ingest]).run_until_caught_up(close=True)[ingest.name].error is None
        assert sorted(row["_heartbeat"] for row in lakes.rows(lake, "bronze.sales")) == [*[False] * 4, True]
        reset(lake, ingest, empty_tables=True)


def test_a_first_start_that_dies_before_it_plans_forgets_no_reset(
    spark: SparkSession, copied: tuple[Lake, Ingest]
) -> None:
    lake, ingest = copied
    for definition in (ingest, totals()):
        reset(lake, definition, empty_tables=True)
    epoch = open_epoch(lake, totals())
    lake.store.put(f"{epoch.folder}/metadata", b'{"id":"11111111-2222-3333-4444-555555555555"}')

    assert run(spark, lake, ingest, totals()) == {"ingest_sales": None, "totals": None}
    assert [row["total"] for row in lakes.rows(lake, "gold.totals")] == [4]


def test_after_a_reset_with_empty_tables_everything_is_computed_once(
    spark: SparkSession, copied: tuple[Lake, Ingest]
) -> None:
    lake, ingest = copied
    # Another formula, another type.
    changed = totals("CAST(max(v) + count(*) AS DECIMAL(20, 2))")
    refused = run(spark, lake, changed)["totals"]
    assert isinstance(refused, CheckpointError)
    assert "tidemark reset totals" in str(refused)

    zombie = PipelineQuery(spark, lake, totals())
    zombie.start(until_caught_up=True).awaitTermination()
    reset(lake, ingest, empty_tables=True)
    reset(lake, changed, empty_tables=True)
    assert lakes.rows(lake, "gold.totals") == []

    assert run(spark, lake, ingest, changed) == {"ingest_sales": None, "totals": None}
    assert [(row["k"], row["total"]) for row in lakes.rows(lake, "gold.totals")] == [("a", 5)]
    lakes.assert_balanced(lake, changed)

    # A driver of the old life that still runs: what it commits now is refused.
    stamp = zombie.stamp("result", 99, 0)
    with pytest.raises(LedgerError, match="skipped as known"):
        zombie.writer("result", "gold.totals").commit(Append(spark.createDataFrame([], "k STRING"), 0, 0), stamp)


# Events that were overwritten are as gone as those deleted:
# tests/spark/test_backfill_plans.py::test_bronze_that_was_overwritten_has_lost_events_too
@pytest.mark.parametrize("overwritten", [False, pytest.param(True, marks=pytest.mark.long)])
def test_after_a_reset_only_events_count_that_bronze_still_has(
    spark: SparkSession, lake: Lake, overwritten: bool
) -> None:
    # Two batches, in which nothing can be late: the result is that of all events.
    definition, batches = pipeline(), merged(events(7, 4, minutes=20), 2, 2)
    feed(lake, batches)
    lakes.run(spark, lake, definition)
    bronze = open_table(lake, "bronze.clicks")
    if overwritten:
        rows = bronze.to_pyarrow_table()
        write_deltalake(bronze, rows.filter(pc.not_equal(rows["k"], "a")), mode="overwrite")
    else:
        bronze.delete("k = 'a'")
    with pytest.raises(BackfillRefusedError, match="tidemark reset activity --empty-tables"):
        plan_backfill(lake, definition, BEGIN, END)

    reset(lake, definition, empty_tables=True)
    lakes.run(spark, lake, definition)
    lakes.assert_balanced(lake, definition)
    assert_same(table(lake), by_duckdb(lake, TUMBLING, closed_ms=closed_ms(lake, definition)))
    assert "a" not in {row["k"] for row in lakes.rows(lake, "gold.activity")}
    plan_backfill(lake, definition, BEGIN, END)


def planned_only(spark: SparkSession, lake: Lake, definition: Pipeline) -> None:
    """A start that dies when Spark has planned the first batch and nothing of it is written."""

    def killed(point: str, batch_id: int) -> None:
        raise KeyError(point)

    with pytest.raises(KeyError):
        lakes.run(spark, lake, definition, failpoint=killed)


def test_a_first_batch_that_was_only_planned_begins_where_it_was_planned(
    spark: SparkSession, copied: tuple[Lake, Ingest]
) -> None:
    lake, ingest = copied
    reset(lake, ingest, empty_tables=True)
    run(spark, lake, ingest)
    reset(lake, totals(), empty_tables=True)
    for _ in range(2):
        planned_only(spark, lake, totals())

    assert run(spark, lake, totals()) == {"totals": None}
    assert [row["total"] for row in lakes.rows(lake, "gold.totals")] == [4]
    lakes.assert_balanced(lake, totals())


def test_a_reader_stops_where_a_reset_has_emptied_its_source(spark: SparkSession, copied: tuple[Lake, Ingest]) -> None:
    lake, ingest = copied
    reset(lake, ingest, empty_tables=True)

    for _ in range(2):
        stopped = run(spark, lake, ingest, totals())["totals"]
        assert isinstance(stopped, SourceEmptiedError)
        assert "bronze.sales was emptied by a reset at" in str(stopped)
        assert "tidemark reset totals --empty-tables" in str(stopped)
        assert [row["total"] for row in lakes.rows(lake, "gold.totals")] == [4]

    reset(lake, totals(), empty_tables=True)
    assert run(spark, lake, totals()) == {"totals": None}
    assert [row["total"] for row in lakes.rows(lake, "gold.totals")] == [4]
    lakes.assert_balanced(lake, totals())


def test_what_a_reader_read_is_held_against_the_log_of_its_source(once: tuple[Lake, Ingest]) -> None:
    lake, _ = once
    epoch, rows = current_epoch(lake, "totals"), lakes.ledger(lake, totals())
    told = [text for _, text in audit.checks(lake, totals(), epoch.number, rows) if text.startswith("source:")]
    assert told == [
        "source: bronze.sales holds 4 rows between the first and the last offset, 4 were read (4 events, 0 heartbeats)"
    ]
    # A batch that has read what another one of them should have: each balances in itself.
    batch_id, row = rows[0]
    lost = row.with_terms(read=3, on_time=3)
    wrong = [text for holds, text in audit.checks(lake, totals(), epoch.number, [(batch_id, lost)]) if not holds]
    assert any("holds 4 rows between the first and the last offset, 3 were read" in text for text in wrong)
    assert any("batch 0: read 3 rows, its source has 4 between its offsets" in text for text in wrong)
