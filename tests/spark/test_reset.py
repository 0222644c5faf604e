"""Beginning anew: a reset pipeline computes its tables again, and nothing of its old life is counted."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import open_epoch
from spark_jobs.lake.errors import CheckpointError, LedgerError
from spark_jobs.lake.reset import reset
from spark_jobs.spec import Aggregate, Definition, Files, Ingest, Pipeline, Sink, Table
from tests import lakes


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


def test_an_input_that_is_read_again_after_a_reset_is_closed_again(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.json").write_text('{"k": "a", "v": 1, "t": "2026-01-01T00:00:00Z"}\n')
    ingest = an_ingest(tmp_path / "landing")
    for _ in range(2):
        assert Driver(spark, lake, [ingest]).run_until_caught_up(close=True)[ingest.name].error is None
        assert sorted(row["_heartbeat"] for row in lakes.rows(lake, "bronze.sales")) == [False, True]
        reset(lake, ingest, empty_tables=True)


def test_a_first_start_that_dies_before_it_plans_forgets_no_reset(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.json").write_text('{"k": "a", "v": 1, "t": "2026-01-01T00:00:00Z"}\n')
    ingest = an_ingest(tmp_path / "landing")
    run(spark, lake, ingest, totals())
    for definition in (ingest, totals()):
        reset(lake, definition, empty_tables=True)
    epoch = open_epoch(lake, totals())
    lake.store.put(f"{epoch.folder}/metadata", b'{"id":"11111111-2222-3333-4444-555555555555"}')

    assert run(spark, lake, ingest, totals()) == {"ingest_sales": None, "totals": None}
    assert [row["total"] for row in lakes.rows(lake, "gold.totals")] == [1]


def test_after_a_reset_with_empty_tables_everything_is_computed_once(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.json").write_text('{"k": "a", "v": 1, "t": "2026-01-01T00:00:00Z"}\n' * 3)
    ingest = an_ingest(landing)
    assert run(spark, lake, ingest, totals()) == {"ingest_sales": None, "totals": None}

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
    assert [(row["k"], row["total"]) for row in lakes.rows(lake, "gold.totals")] == [("a", 4)]
    lakes.assert_balanced(lake, changed)

    # A driver of the old life that still runs: what it commits now is refused.
    stamp = zombie.stamp("result", 99, 0)
    with pytest.raises(LedgerError, match="skipped as known"):
        zombie.writer("result", "gold.totals").append(spark.createDataFrame([], "k STRING"), stamp)
