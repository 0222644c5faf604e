"""Results that are written while they are computed: nothing is seen of them before their commit, all of it after."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from spark_jobs.engine import pipeline as engine
from spark_jobs.engine import reading
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.offsets import LogSpan
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import LedgerError, RepeatedTasksError
from spark_jobs.lake.tables.appends import append_rows
from spark_jobs.lake.tables.opening import history, open_table
from spark_jobs.spark.data_files import DataFiles
from spark_jobs.spark.observed_rows import ObservedRows
from spark_jobs.spec import Deduplicate, Pipeline, Sink, Table, Watermark, Where
from tests.support import lakes

START = 1_700_000_040_000
MINUTE = 60_000
COLUMNS = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
# The copy of b is a duplicate; the last batch brings two late events, one that the filter removes and one it withholds.
BATCHES = (
    [("a", 1, 1), ("b", 1, 2), ("c", 1, 30)],
    [("b", 1, 3), ("d", 1, 31)],
    [("a", 2, 2), ("e", 3, 3), ("f", -1, 32), ("g", 100, 33), ("h", 1, 34)],
)
LAST = 2

DEFINITION = lakes.one_file_a_batch(
    Pipeline(
        name="firsts",
        source=Table("bronze.clicks"),
        event_time="t",
        watermark=Watermark(delay="2 minutes"),
        steps=(Where("v >= 0"), Deduplicate("k", within="10 minutes"), Where("v < 100")),
        sink=Sink("silver.firsts"),
    )
)


@pytest.fixture
def filled(lake: Lake) -> Lake:
    bronze = lakes.Bronze(lake, "bronze.clicks", COLUMNS, "t")
    for batch in BATCHES:
        bronze.append([{"k": k, "v": v, "t": lakes.at(START + minute * MINUTE)} for k, v, minute in batch])
    return lake


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """However few rows a batch has, they are written while they are computed; how many files each time."""
    monkeypatch.setattr(engine, "LEAST_ROWS_A_FILE", 0)
    found: list[int] = []
    write = DataFiles.write

    def watched(self: DataFiles, *args: Any) -> list[dict[str, Any]]:
        files = write(self, *args)
        found.append(len(files))
        return files

    monkeypatch.setattr(DataFiles, "write", watched)
    return found


def assert_ends_well(lake: Lake) -> None:
    """As the events above say, each row and each file once."""
    assert sorted(row["k"] for row in lakes.rows(lake, "silver.firsts")) == ["a", "b", "c", "d", "h"]
    late = lakes.rows(lake, "silver.firsts__late")
    assert sorted((row["k"], row["v"]) for row in late) == [("a", 2), ("e", 3)]
    terms = ("read", "on_time", "late", "duplicate", "filtered", "withheld", "rows")
    counted = {name: sum(row[name] for _, row in lakes.ledger(lake, DEFINITION)) for name in terms}
    assert counted == {
        "read": 10,
        "on_time": 6,
        "late": 2,
        "duplicate": 1,
        "filtered": 1,
        "withheld": 1,
        "rows": 5,
    }
    lakes.assert_balanced(lake, DEFINITION)
    assert unnamed_files(lake) == set()


def unnamed_files(lake: Lake) -> set[str]:
    """Data files of the result that hold rows and that no commit names."""
    folder = Path(lake.table_path("silver.firsts"))
    held = {path.name for path in folder.glob("*.parquet") if pq.read_metadata(path).num_rows}
    return held - {unquote(Path(path).name) for path in open_table(lake, "silver.firsts").file_uris()}


def recorded(lake: Lake) -> list[Any]:
    """What the commits say: rows and digest of each batch in each table, and the terms of the ledger."""
    tables = ("silver.firsts", "silver.firsts__late")
    found = [decode(commit) for table in tables for commit in history(open_table(lake, table))]
    stamps = [(stamp.role, stamp.batch_id, stamp.rows, stamp.content) for stamp in found if stamp is not None]
    return [*sorted(stamps), *((number, row.terms) for number, row in lakes.ledger(lake, DEFINITION))]


def test_all_ways_to_compute_a_batch_give_the_same_rows_and_ledger(
    spark: SparkSession, filled: Lake, tmp_path: Path, writes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"fetched": engine.FEW_ROWS, "kept and fetched": engine.FEW_ROWS, "kept": 0}
    for way in ways:
        shutil.copytree(filled.uri, tmp_path / way)
    lakes.run(spark, filled, DEFINITION)
    assert len(writes) == len(BATCHES)
    assert_ends_well(filled)
    monkeypatch.setattr(engine, "LEAST_ROWS_A_FILE", 50_000)
    for way, few in ways.items():
        monkeypatch.setattr(engine, "FEW_ROWS", few)
        if way != "fetched":
            monkeypatch.setattr(engine.PipelineQuery, "_gives_few", lambda *_: False)
        other = Lake(str(tmp_path / way))
        lakes.run(spark, other, DEFINITION)
        assert len(writes) == len(BATCHES), "the other runs have written no files so"
        assert_ends_well(other)
        assert recorded(other) == recorded(filled)


# Tasks that ran twice: tests/spark/test_failures.py::test_a_batch_with_repeated_tasks_writes_nothing_and_runs_again
@pytest.mark.parametrize("check", ["equation", pytest.param("repeated", marks=pytest.mark.long)])
def test_a_batch_that_fails_a_check_leaves_nothing_and_runs_again(
    spark: SparkSession, filled: Lake, writes: list[int], monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    failing = {"repeated": (ObservedRows, "repeated_tasks", 1), "equation": (reading, "read_by_batch", _one_row_more)}
    with monkeypatch.context() as patched:
        patched.setattr(*failing[check])
        with pytest.raises((RepeatedTasksError, LedgerError), match="Nothing of"):
            lakes.run(spark, filled, DEFINITION)
    assert sum(writes), "files had been written"
    assert lakes.rows(filled, "silver.firsts") == []
    assert unnamed_files(filled) == set()
    lakes.run(spark, filled, DEFINITION)
    assert_ends_well(filled)


def _one_row_more(*args: Any) -> Any:
    return LogSpan(sum(map(len, BATCHES)) + 1)


@pytest.mark.parametrize(
    "point",
    [
        "result_committed",
        # Before it less is done: tests/spark/test_failures.py::test_a_pipeline_that_fails_goes_on_as_if_it_had_not
        pytest.param("materialised", marks=pytest.mark.long),
        pytest.param("late_committed", marks=pytest.mark.long),
    ],
)
def test_a_batch_that_is_cut_off_is_written_once(
    spark: SparkSession, filled: Lake, writes: list[int], point: str
) -> None:
    def cut(reached: str, batch_id: int) -> None:
        if (reached, batch_id) == (point, LAST):
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        lakes.run(spark, filled, DEFINITION, failpoint=cut)
    written = len(writes)
    lakes.run(spark, filled, DEFINITION)
    # What the table has already is computed again, for Spark's state, but not written again.
    assert len(writes) - written == (point != "result_committed")
    assert_ends_well(filled)
    commits = [row for number, row in lakes.ledger(filled, DEFINITION) if number == LAST]
    assert len(commits) == 1


def test_columns_that_a_table_gets_meanwhile_are_written(spark: SparkSession, lake: Lake) -> None:
    append_rows(lake, "silver.firsts", pa.table({"k": ["a"]}))
    files = DataFiles(lake, "silver.firsts")
    named = files.write(spark.createDataFrame([("b",)], "k STRING"))
    table = DeltaTable(lake.table_uri("silver.firsts"))
    table.alter.add_columns([Field("v", PrimitiveType("long"), nullable=True)])
    again = files.write(spark.createDataFrame([("c", 7)], "k STRING, v BIGINT"))
    folder = Path(lake.table_path("silver.firsts"))
    held = [pq.read_table(folder / unquote(add["path"])).to_pylist() for add in (*named, *again)]
    assert held == [[{"k": "b"}], [{"k": "c", "v": 7}]]
    assert lakes.rows(lake, "silver.firsts") == [{"k": "a", "v": None}]
