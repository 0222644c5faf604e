"""Batches of an ingest that are written while they are judged: rows, numbers and ledger are those of the files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jobs.engine.halting import BrokenRuleError
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.engine.query import unobserved
from spark_jobs.engine.sources import files
from spark_jobs.engine.sources.written import WritingRead
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spark import set_aside
from spark_jobs.spark.lines import FixedLines
from spark_jobs.spec import Between, Files, Ingest, NotNull, Sink
from tests.support import lakes

AT = "2026-01-01T00:00:00Z"
LINES = 50
SMALL = Between("v", max=40).name


def line(number: int, file: int) -> str:
    """Of each kind one in a few: good, null key, a rule broken, warned of, with unknown fields, no JSON."""
    fields: dict[str, Any] = {"k": f"k{file}-{number}", "v": number, "t": AT}
    if number % 7 == 3:
        fields["k"] = None
    if number % 11 == 5:
        fields["v"] = -number
    if number % 13 == 1:
        fields |= {"zone": "é", "area": [number]}
    return "{broken" if number % 17 == 2 else json.dumps(fields)


def is_good(number: int) -> bool:
    """By what `line` makes, not by what the ingest says."""
    return number % 7 != 3 and number % 11 != 5 and number % 17 != 2


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    return a_landing(tmp_path / "landing")


def a_landing(folder: Path) -> Path:
    """A folder with three files."""
    folder.mkdir()
    for file in range(3):
        # A blank line is no event, and has no number.
        text = "\n".join(line(number, file) for number in range(LINES))
        (folder / f"{file}.json").write_text(f"{text}\n\n")
    return folder


@pytest.fixture(autouse=True)
def every_batch_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WRITTEN_BYTES", 0)


def an_ingest(folder: Path, **fields: Any) -> Ingest:
    rules = (NotNull("k"), Between("v", min=0), Between("v", max=40, on_failure="warn"))
    return Ingest(
        **{
            "name": "ingest_sales",
            "source": Files(str(folder)),
            "columns": {"k": "STRING", "v": "INT", "t": "TIMESTAMP"},
            "event_time": "t",
            "rules": rules,
            "sink": Sink("bronze.sales"),
            **fields,
        }
    )


def run(spark: SparkSession, lake: Lake, definition: Ingest, failpoint: Any = unobserved) -> None:
    query = IngestQuery(spark, lake, definition, failpoint=failpoint)
    try:
        query.start(until_caught_up=True).awaitTermination()
    except StreamingQueryException as error:
        raise (query.error or error) from None


def data_files(lake: Lake) -> set[str]:
    return {file.name for file in Path(lake.table_path("bronze.sales")).glob("*.parquet")}


def named_files(lake: Lake) -> set[str]:
    return {Path(name).name for name in open_table(lake, "bronze.sales").file_uris()}


def assert_all_is_there(lake: Lake, definition: Ingest, first_seq: int = 0) -> None:
    """Each good line once with its number and place, each other one with its reason; the ledger says the same."""
    good = [(file, number) for file in range(3) for number in range(LINES) if is_good(number)]
    rows = sorted(lakes.rows(lake, "bronze.sales"), key=lambda row: row["_ingest_seq"])
    assert [(row["k"], row["v"]) for row in rows] == [(f"k{file}-{number}", number) for file, number in good]
    assert [row["_source"]["position"] for row in rows] == [number for _, number in good]
    assert len({row["_event_id"] for row in rows}) == len(rows)
    assert [row["_ingest_seq"] for row in rows] == [first_seq + file * LINES + number for file, number in good]
    bad = lakes.rows(lake, "bronze.sales__quarantine")
    assert sorted((row["_source"]["position"], row["raw"]) for row in bad) == sorted(
        (number, line(number, file)) for file in range(3) for number in range(LINES) if not is_good(number)
    )
    [(_, entry)] = lakes.ledger(lake, definition)
    assert (entry["read"], entry["on_time"], entry["quarantined"]) == (3 * LINES, len(good), len(bad))
    reasons = Counter(row["reason"] for row in bad)
    assert entry.reasons == {**reasons, f"{WARNING}{SMALL}": sum(number > 40 for _, number in good)}
    assert entry["unknown"] == sum(number % 13 == 1 for _, number in good)
    assert entry.unknown_fields == ("area", "zone")


@pytest.mark.parametrize("room", [set_aside._ROOM, 200], ids=["kept", "too_many_to_keep"])
def test_each_line_is_in_bronze_with_its_number_or_set_aside(
    spark: SparkSession, lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(set_aside, "_ROOM", room)
    definition = an_ingest(landing)
    run(spark, lake, definition)
    assert_all_is_there(lake, definition)
    assert data_files(lake) == named_files(lake)


def test_a_batch_that_halts_the_pipeline_leaves_no_file(spark: SparkSession, lake: Lake, landing: Path) -> None:
    definition = an_ingest(landing, rules=(NotNull("k"), Between("v", max=40, on_failure="fail")))
    with pytest.raises(BrokenRuleError, match="rows of batch 0 break"):
        run(spark, lake, definition)
    assert data_files(lake) == set()
    halt = halts.standing(lake, "ingest_sales")
    assert halt is not None
    # -45 and its like are below.
    above = [n for n in range(41, LINES) if n % 7 != 3 and n % 11 != 5 and n % 17 != 2]
    assert halt.broken == {SMALL: 3 * len(above)}
    assert set(halt.samples) <= {f"v is {number}" for number in above}


def test_lines_that_vanish_between_count_and_read_are_noticed(
    spark: SparkSession, lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, whole = WritingRead.finish, (landing / "1.json").read_bytes()

    def after_somebody_has_cut_a_file(self: WritingRead) -> None:
        (landing / "1.json").write_bytes(whole.replace(line(10, 1).encode(), b" " * len(line(10, 1).encode())))
        finish(self)

    with monkeypatch.context() as patched:
        patched.setattr(WritingRead, "finish", after_somebody_has_cut_a_file)
        with pytest.raises(
            LedgerError, match=r"counted with 150 lines and read with 149.*Nothing of this batch is in bronze"
        ):
            run(spark, lake, an_ingest(landing))
    assert data_files(lake) == set()
    assert lakes.rows(lake, "bronze.sales__quarantine") == []
    (landing / "1.json").write_bytes(whole)
    definition = an_ingest(landing)
    run(spark, lake, definition)
    assert_all_is_there(lake, definition)


@pytest.mark.parametrize(
    ("of", "step"), [(FixedLines, "counted"), (WritingRead, "finish")], ids=["before_the_count", "before_the_read"]
)
def test_a_file_that_vanishes_while_its_batch_runs_is_set_aside(
    spark: SparkSession, lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch, of: type, step: str
) -> None:
    go_on = getattr(of, step)

    def after_a_file_is_gone(self: Any) -> Any:
        (landing / "1.json").unlink(missing_ok=True)
        return go_on(self)

    monkeypatch.setattr(of, step, after_a_file_is_gone)
    run(spark, lake, an_ingest(landing))
    bad = [row["raw"] for row in lakes.rows(lake, "bronze.sales__quarantine") if row["reason"] == "unreadable file"]
    assert [Path(path).name for path in bad] == ["1.json"]
    assert len(lakes.rows(lake, "bronze.sales")) == 2 * sum(map(is_good, range(LINES)))


def test_rows_get_other_numbers_where_a_replay_takes_theirs(spark: SparkSession, lake: Lake, landing: Path) -> None:
    numbered: list[set[str]] = []

    def overtaken(point: str, batch_id: int) -> None:
        if point == "numbered" and not numbered:
            numbered.append(data_files(lake))
            # As if somebody had taken these numbers after the rows were written.
            query._next_seq += 1000

    definition = an_ingest(landing)
    query = IngestQuery(spark, lake, definition, failpoint=overtaken)
    query.start(until_caught_up=True).awaitTermination()
    assert_all_is_there(lake, definition, first_seq=1000)
    assert numbered
    assert numbered[0].isdisjoint(data_files(lake))
    assert data_files(lake) == named_files(lake)


def test_a_compressed_file_that_ends_too_soon_is_set_aside(spark: SparkSession, lake: Lake, landing: Path) -> None:
    whole = (landing / "1.json").read_bytes()
    (landing / "1.json").unlink()
    (landing / "1.json.gz").write_bytes(gzip.compress(whole)[:-20])
    run(spark, lake, an_ingest(landing))
    bad = [row["raw"] for row in lakes.rows(lake, "bronze.sales__quarantine") if row["reason"] == "unreadable file"]
    assert [Path(path).name for path in bad] == ["1.json.gz"]
    assert len(lakes.rows(lake, "bronze.sales")) == 2 * sum(map(is_good, range(LINES)))


@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_lines_of_a_compressed_file_have_numbers_and_places_too(
    spark: SparkSession, lake: Lake, landing: Path, codec: str
) -> None:
    whole = (landing / "1.json").read_bytes()
    (landing / "1.json").unlink()
    with pa.CompressedOutputStream(str(landing / f"1.json.{codec}"), {"gz": "gzip", "zst": "zstd"}[codec]) as file:
        file.write(whole)
    run(spark, lake, an_ingest(landing))
    rows = lakes.rows(lake, "bronze.sales")
    good = {(f"k{file}-{number}", number) for file in range(3) for number in range(LINES) if is_good(number)}
    assert {(row["k"], row["_source"]["position"]) for row in rows} == good
    assert len({row["_ingest_seq"] for row in rows}) == len(rows) == len(good)
