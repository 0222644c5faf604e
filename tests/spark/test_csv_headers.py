"""Headers of CSV in which names stand in quotes: held against what Python's own reader makes of the files."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.plan.csv_headers import header_pattern
from spark_jobs.spec import Contract, Files, Ingest, Sink
from tests.support import lakes

COLUMNS = {"id": "INT", 'say"': "STRING", "t": "TIMESTAMP"}


def field(name: str, number: int, delimiter: str) -> str:
    return {"id": str(number), "t": "2026-01-01"}.get(name, f'"{number}"{delimiter} {name}')


def text_of(rows: Sequence[Sequence[str]], delimiter: str, quoting: Any) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(rows)
    return out.getvalue()


def place(row: dict[str, Any]) -> tuple[str, int]:
    return unquote(str(row["_source"]["name"]).rpartition("/")[2]), row["_source"]["position"]


# Patterns with any delimiter: test_spark_and_python_find_the_same_headers
@pytest.mark.parametrize("delimiter", [",", pytest.param("\t", marks=pytest.mark.long)])
def test_names_in_a_header_may_stand_in_quotes(spark: SparkSession, lake: Lake, tmp_path: Path, delimiter: str) -> None:
    more = f"name{delimiter} full"
    files = {
        "plain.csv": ([*COLUMNS], csv.QUOTE_MINIMAL),
        "quoted.csv": ([*COLUMNS], csv.QUOTE_ALL),
        "wider.csv": (["id", more, 'say"', "t"], csv.QUOTE_MINIMAL),
        "wider quoted.csv": (["id", 'say"', "t", more, '"'], csv.QUOTE_ALL),
        # Without its quotes it would be the header that is expected.
        "one less.csv": ([f'id{delimiter}say"', "t"], csv.QUOTE_MINIMAL),
    }
    expected = {}
    for name, (names, quoting) in files.items():
        rows = [[field(each, number, delimiter) for each in names] for number in range(3)]
        (tmp_path / name).write_text(text_of([names, *rows[:2], names, rows[2]], delimiter, quoting))
        for position, line in enumerate(
            csv.DictReader((tmp_path / name).open(newline=""), delimiter=delimiter), start=1
        ):
            others = {each: value for each, value in line.items() if each not in COLUMNS}
            if position != 3 and name != "one less.csv":
                expected[name, position] = (int(line["id"]), line['say"'], others)
    (tmp_path / "over lines.csv").write_text(
        text_of([["id", 'say"', "t\n"], ["1", "", "2026-01-01"]], delimiter, csv.QUOTE_ALL)
    )
    definition = Ingest(
        name="ingest_events",
        source=Files(str(tmp_path), format="csv", delimiter=delimiter),
        columns=COLUMNS,
        event_time="t",
        contract=Contract(new="keep"),
        sink=Sink("bronze.events"),
    )
    IngestQuery(spark, lake, definition).start(until_caught_up=True).awaitTermination()

    rows = lakes.rows(lake, "bronze.events")
    assert {place(row): (row["id"], row['say"'], dict(row["_unknown_fields"] or ())) for row in rows} == expected
    set_aside = lakes.rows(lake, "bronze.events__quarantine")
    other = [*(("one less.csv", line) for line in range(5)), *(("over lines.csv", line) for line in range(3))]
    again = [(name, 3) for name in files if name != "one less.csv"]
    assert sorted(map(place, set_aside)) == sorted([*again, *other])
    assert {row["reason"] for row in set_aside} == {"header"}
    told = {row["detail"] for row in set_aside if place(row)[0] == "one less.csv"}
    assert told == {f'expected id{delimiter}say"{delimiter}t, got "id{delimiter}say"""{delimiter}t'}
    ((_, entry),) = lakes.ledger(lake, definition)
    assert set(entry.unknown_fields) == {more, '"'}


def test_spark_and_python_find_the_same_headers(spark: SparkSession) -> None:
    delimiters = [",", ";", "\t", "|", " ", "^", "-", "x", "]"]
    names = ["a.b", '"', 'é"', " a", "#&~", "\\E", "(x|y)", "$^"]
    asked = []
    for delimiter in delimiters:
        header = [*names, f"in{delimiter}side"]
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
            line = text_of([header], delimiter, quoting).rstrip("\n")
            found = (line, f"\ufeff{line}\r", line[1:], f"{line}{delimiter}", line.replace('"', ""), f"{line}\n")
            pattern = header_pattern([each if delimiter == " " else each.strip(" ") for each in header], delimiter)
            asked += [(pattern, each) for each in found]
    lines = spark.createDataFrame([(number, line) for number, (_, line) in enumerate(asked)], "i INT, line STRING")
    by_pattern = [
        F.when(F.col("i") == number, F.col("line").rlike(pattern)) for number, (pattern, _) in enumerate(asked)
    ]
    found_by_spark = [row[0] for row in lines.orderBy("i").select(F.coalesce(*by_pattern)).collect()]
    assert found_by_spark == [bool(re.search(pattern, line)) for pattern, line in asked]
    assert found_by_spark.count(True) == len(delimiters) * 2 * 2
