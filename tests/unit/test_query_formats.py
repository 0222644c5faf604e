"""`tidemark sql`: rows for people, and as CSV, JSON and Parquet."""

import csv
import io
import json
import time
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.console import reports
from spark_jobs.lake.tables import query
from spark_jobs.lake.tables.query import QueryError
from spark_jobs.spec import DefinitionError
from tests.support.builders import a_lake, write

AT = datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
ROWS = pa.table(
    {
        "price": pa.array([Decimal("12345678901234567890.10"), None], pa.decimal128(38, 2)),
        "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
        "nested": pa.array(
            [{"a": [1, None], "b": "x"}, None], pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())])
        ),
        "raw": pa.array([b"\x00\xff,", None], pa.binary()),
        "words": pa.array(['a "quoted", line\nand another', ""], pa.string()),
        "nothing": pa.array([None, None], pa.string()),
        "big": pa.array([2**63 - 1, -(2**63)], pa.int64()),
    }
)
ALL = "SELECT * FROM gold.a ORDER BY big DESC;  -- each kind of value"


@pytest.fixture
def lake(tmp_path):
    lake = a_lake(tmp_path / "lake")
    write(lake, "gold.a", ROWS)
    return lake


def asked(lake, *arguments):
    return CliRunner().invoke(app, ["sql", *arguments, "--lake", lake.uri])


def test_parquet_keeps_each_value_and_its_type(lake, tmp_path):
    file = tmp_path / "a.parquet"
    assert asked(lake, ALL, "--out", str(file)).output == f"written: {file}\n"
    found = pq.read_table(file)
    assert found.to_pylist() == ROWS.to_pylist()
    assert found.schema.field("price").type == pa.decimal128(38, 2)
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")


def test_json_has_an_object_on_each_line(lake, tmp_path):
    file = tmp_path / "a.json"
    asked(lake, ALL, "--out", str(file))
    first, second = (json.loads(line, parse_float=Decimal) for line in file.read_text().splitlines())
    assert first["price"] == Decimal("12345678901234567890.10")
    assert datetime.fromisoformat(first["at"]) == AT
    assert first["nested"] == {"a": [1, None], "b": "x"}
    assert (first["big"], second["big"]) == (2**63 - 1, -(2**63))
    assert (second["words"], second["nothing"], second["at"]) == ("", None, None)


def test_csv_goes_to_standard_output_where_no_file_is_named(lake):
    done = asked(lake, ALL, "--format", "csv")
    header, first, second = csv.reader(io.StringIO(done.output))
    assert header == ROWS.column_names
    row = dict(zip(header, first, strict=True))
    assert (row["price"], row["words"]) == ("12345678901234567890.10", 'a "quoted", line\nand another')
    assert datetime.fromisoformat(row["at"]) == AT
    assert second == ["", "", "", "", "", "", str(-(2**63))]
    # An empty text is told apart from none.
    assert ',"",,' in done.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "parquet"), "say --out FILE"),
        (("--out", "rows.txt"), "expected a name that ends with .csv, .json, .ndjson, .parquet"),
        (("--out", "rows.csv", "--format", "table"), "is for people"),
    ],
)
def test_a_format_that_cannot_be_is_refused_before_anything_is_read(lake, arguments, said):
    error = asked(lake, "SELECT 1", *arguments).exception
    assert isinstance(error, DefinitionError)
    assert said in str(error)


def test_a_query_that_fails_leaves_the_file_as_it_was(lake, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("before")
    sql = "SELECT CASE WHEN big < 0 THEN error('no') END FROM gold.a"
    assert isinstance(asked(lake, sql, "--out", str(file)).exception, QueryError)
    assert (file.read_text(), sorted(each.name for each in tmp_path.iterdir())) == ("before", ["a.csv", "lake"])


def test_a_query_that_is_written_reaches_no_other_file(lake, tmp_path):
    for sql in (f"COPY gold.a TO '{tmp_path}/other.csv'", f"SELECT * FROM glob('{tmp_path}/*')"):
        with pytest.raises(QueryError, match="reach nothing but the tables"):
            query.write(lake, sql, tmp_path / "rows", "csv")
    assert [each.name for each in tmp_path.iterdir()] == ["lake"]


def shown(columns, rows, *, width=80, terminal=False):
    console = Console(width=width, file=io.StringIO(), force_terminal=terminal, color_system=None)
    reports.print_rows(console, columns, rows)
    return console.file.getvalue()


def test_a_null_is_told_apart_from_an_empty_text(lake):
    told = shown(("a", "b", "n"), [(None, "", 1), ("x", "\x1b[2J\n", 12345)])
    assert told == "a     b           n\nNULL              1\nx     ␛[2J␊  12,345\n"


def test_a_line_is_never_parted_but_on_a_terminal_that_is_too_narrow():
    row = ("x" * 30, "日本" * 6, 7)
    assert shown(("a", "b", "n"), [row], width=20).splitlines()[1] == f"{'x' * 30}  {'日本' * 6}  7"
    told = shown(("a", "b", "n"), [row], width=20, terminal=True).splitlines()
    assert all(len(line) <= 20 for line in told)
    assert "".join(told[1:]).count("x") == 30
    assert "".join(told[1:]).count("日") == 6


def test_eighteen_thousand_rows_are_there_in_a_moment():
    rows = [(f"sale-{number}", "p-1", number, Decimal("1.10"), AT) for number in range(18_000)]
    began = time.process_time()
    assert shown("abcde", rows).count("\n") == 18_001
    assert time.process_time() - began < 5
