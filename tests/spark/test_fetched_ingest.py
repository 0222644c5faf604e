"""Small batches of JSON are fetched in the job that judges them: the tables are those of rows that Spark has kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.heartbeats import Heartbeats
from spark_jobs.engine.sources import files
from spark_jobs.engine.sources.fetched import FetchedBatch
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Contract
from tests.spark import test_written_ingest as written
from tests.spark.test_written_ingest import an_ingest, assert_all_is_there, run
from tests.support import lakes

ODD: tuple[Mapping[str, Any], ...] = (
    {"k": "a", "v": 1, "t": written.AT, "d": "1.50", "of": {"n": 1, "tags": ["x", None]}, "any": {"b": [1, 2.50]}},
    {"k": "é", "v": 2, "t": written.AT, "d": 0.25, "by": {"x": 1}, "any": "text", "new": {"deep": 1.10}},
    {"k": "b", "v": 3, "t": "2026-01-01T01:02:03.000004+02:00", "any": None, "of": None, "other": "1"},
    {"k": "c", "v": 4, "t": written.AT},
    {"k": "d", "v": "three", "t": written.AT},
)

TYPES = {
    "k": "STRING",
    "v": "INT",
    "t": "TIMESTAMP",
    "d": "DECIMAL(10, 2)",
    "by": "MAP<STRING, INT>",
    "of": "STRUCT<n: INT, tags: ARRAY<STRING>>",
    "any": "VARIANT",
}
"""Columns of `ODD`."""


def both_ways(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, definition: Any
) -> tuple[dict[str, list[tuple[Any, ...]]], ...]:
    """The tables of an ingest whose batches are fetched, and of one whose batches Spark keeps."""
    found = []
    for most in (files.ONE_TASK_BYTES, 0):
        monkeypatch.setattr(files, "ONE_TASK_BYTES", most)
        lake = Lake(str(tmp_path / f"lake-{most}")).ensure_exists()
        run(spark, lake, definition)
        tables = ("bronze.sales", "bronze.sales__quarantine")
        found.append(
            {table: lakes.comparable(lakes.rows(lake, table), without=("_ingest_time", "any")) for table in tables}
        )
        found[-1]["any"] = sorted(map(str, of_variants(lake)))
        [(_, entry)] = lakes.ledger(lake, definition)
        # A heartbeat has nulls in all columns but its time.
        Heartbeats(spark, lake).beat("bronze.sales", {"t": 1_800_000_000_000})
        found[-1]["ledger"] = [(entry.terms, entry.reasons, entry.unknown_fields, entry.nulls)]
    return tuple(found)


def of_variants(lake: Lake) -> list[Any]:
    rows: pa.Table = open_table(lake, "bronze.sales").to_pyarrow_table()
    return rows["any"].to_pylist() if "any" in rows.column_names else []


def test_each_line_is_in_bronze_with_its_number_or_set_aside(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = FetchedBatch.good
    asked: list[int] = []
    monkeypatch.setattr(FetchedBatch, "good", lambda batch, *given: asked.append(1) or good(batch, *given))
    definition = an_ingest(written.a_landing(tmp_path / "landing"))
    run(spark, lake, definition)
    assert asked, "its batch was fetched"
    assert_all_is_there(lake, definition)


@pytest.mark.parametrize("event_id", [None, "k"])
def test_values_of_all_types_are_those_of_rows_that_spark_has_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event_id: str | None
) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.json").write_text("\n\n".join([*map(json.dumps, ODD), f'{{"k": "n{number}"']))
    (folder / "2.json").write_bytes(b'{"k": "\xff"}\n')
    (folder / "3.json").write_text("")
    definition = an_ingest(
        folder,
        columns=TYPES,
        contract=Contract(new="keep"),
        event_id=event_id,
    )
    fetched, kept = both_ways(spark, tmp_path, monkeypatch, definition)
    assert fetched == kept
    assert [len(kept[table]) for table in ("bronze.sales", "bronze.sales__quarantine")] == [8, 5]


def test_a_batch_without_a_row_is_a_batch(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing/blank.json").write_text("\n \n")
    definition = an_ingest(tmp_path / "landing")
    run(spark, lake, definition)
    assert [(entry["read"], entry["rows"]) for _, entry in lakes.ledger(lake, definition)] == [(0, 0)]
