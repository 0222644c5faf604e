"""Small batches of a pipeline are fetched in the job that computes them: which, and what becomes of their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine import pipeline as engine
from spark_jobs.engine.fetching import FetchingPass, KeptPass
from spark_jobs.engine.passes import KeepingPass
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Aggregate, Pipeline, Session, Sink, Table, Watermark, Where
from tests.spark.test_fetched_ingest import ODD, TYPES
from tests.spark.test_written_ingest import AT, an_ingest
from tests.spark.test_written_ingest import run as run_ingest
from tests.support import lakes

START = 1_700_000_040_000
MINUTE = 60_000
# A result without windows has no such column of its own.
COLUMNS = {**TYPES, "final_after": "TIMESTAMP"}


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each batch was computed."""
    found: list[str] = []

    def watched(kind: Any, way: str) -> None:
        run = kind.run
        monkeypatch.setattr(kind, "run", lambda batch: found.append(way) or run(batch))

    watched(FetchingPass, "fetched")
    watched(KeepingPass, "kept")
    watched(KeptPass, "then fetched")
    return found


def test_values_of_all_types_are_those_of_bronze(
    spark: SparkSession, lake: Lake, tmp_path: Path, ways: list[str]
) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    lines = [json.dumps({**row, "final_after": AT}) for row in ODD]
    source, steps = Table("bronze.sales"), (Where("k <> 'b'"),)
    definition = Pipeline(name="odd", source=source, event_time="t", steps=steps, sink=Sink("silver.odd"))
    for number, some in enumerate((lines[:2], lines[2:])):
        (folder / f"{number}.json").write_text("\n".join(some))
        run_ingest(spark, lake, an_ingest(folder, columns=COLUMNS))
        lakes.run(spark, lake, definition)
    assert ways == ["fetched", "fetched"]
    written, expected = (
        open_table(lake, table).to_pyarrow_table().select([*COLUMNS, "_event_id"]).sort_by("_event_id")
        for table in ("silver.odd", "bronze.sales")
    )
    expected = expected.filter(pa.compute.not_equal(expected["k"], "b"))
    assert expected.num_rows == 3
    assert written.to_pylist() == expected.to_pylist()


VISITS = lakes.one_file_a_batch(
    Pipeline(
        name="visits",
        source=Table("bronze.clicks"),
        event_time="t",
        watermark=Watermark(delay="1 minute"),
        steps=(Aggregate(window=Session("1 minute"), by=("k",), measures={"n": "count(*)"}),),
        sink=Sink("gold.visits"),
    )
)


def clicks(lake: Lake) -> Callable[[int, str], None]:
    """Appends a batch: a click of each key in a minute."""
    bronze = lakes.Bronze(lake, "bronze.clicks", {"k": pa.string(), "t": lakes.TIMESTAMP}, "t")
    return lambda minute, keys: bronze.append([{"k": key, "t": lakes.at(START + minute * MINUTE)} for key in keys])


def test_a_batch_that_failed_or_reads_large_files_is_kept_by_spark(
    spark: SparkSession, lake: Lake, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = clicks(lake)
    batch(0, "ab")

    def fail(point: str, _: int) -> None:
        if point == "materialised":
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        lakes.run(spark, lake, VISITS, failpoint=fail)
    lakes.run(spark, lake, VISITS)
    assert ways[:2] == ["fetched", "kept"]
    # What it does next, it has not failed at.
    assert set(ways[2:]) <= {"fetched"}
    batch(10, "c")
    monkeypatch.setattr(engine, "FEW_BYTES", 100)
    ways.clear()
    lakes.run(spark, lake, VISITS)
    assert ways[0] == "kept"
    lakes.assert_balanced(lake, VISITS)


def test_a_batch_is_fetched_where_its_rows_and_those_of_the_state_are_few(
    spark: SparkSession, lake: Lake, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FEW_ROWS", 8)
    batch = clicks(lake)
    batch(0, "ab")
    batch(0, "cd")
    lakes.run(spark, lake, VISITS)
    assert ways == ["fetched", "fetched"]
    # Four sessions are open, as the ledger tells who starts anew: three events can have seven rows.
    batch(0, "efg")
    lakes.run(spark, lake, VISITS)
    assert ways[2:] == ["kept"]
    batch(10, "z")
    batch(11, "z")
    lakes.run(spark, lake, VISITS)
    # All of them close in the next batch, which might have had more rows; then comes the one without data.
    assert ways[3:] == ["kept", "kept", "then fetched", "fetched"]
    closed = sorted((row["k"], row["n"]) for row in lakes.rows(lake, "gold.visits"))
    assert closed == [(key, 1) for key in "abcdefg"]
    lakes.assert_balanced(lake, VISITS)
