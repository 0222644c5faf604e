"""One rule, one verdict: by the stream, by the check with DuckDB, and by the check with Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.tables.quality import Check
from spark_jobs.lake.tables.query import run
from spark_jobs.plan.quarantine import header_told
from spark_jobs.quality import frames
from spark_jobs.quality.checking import check
from spark_jobs.spec import (
    Between,
    Files,
    Ingest,
    Matches,
    NotNull,
    OneOf,
    Pipeline,
    Satisfies,
    Select,
    Sink,
    Table,
    Unique,
)
from spark_jobs.spec.personal import MASK
from spark_jobs.transforms.again import read_again
from tests.support import lakes

ROWS = (
    {"id": "a-1", "f": 0.1, "d": 0.5, "m": "0.10", "n": 1, "k": 9007199254740993},
    {"id": "A-1", "f": 0.5, "d": "NaN", "m": "0.11", "n": -1, "k": 1},
    {"id": "a-12\n", "f": None, "d": None, "m": None, "n": None, "k": None},
    {"id": "now", "f": 7, "d": "Infinity", "m": "99999999.99", "n": 2147483647, "k": -1},
    {"id": None, "f": "NaN", "d": -0.0, "m": "-0.01", "n": 0, "k": 0},
    {"id": "ä\\'b", "f": -1, "d": 1e300, "m": "1", "n": 3, "k": 2},
    {"id": "x\r\ny", "f": 0, "d": 0.1, "m": "0.1", "n": 4, "k": 3},
)
# Rule -> how many of the rows break it, by hand.
RULES = {
    NotNull("id"): 1,
    NotNull("d"): 1,
    Between("f", max=0.1): 4,
    Between("f", min=0.1): 2,
    Between("d", max=0.1): 4,
    Between("d", min=0.1): 1,
    Between("m", min=0.1, max=0.1): 4,
    Between("k", max=9007199254740992): 1,
    OneOf("id", ("a-1", "now", "ä\\'b")): 3,
    Matches("id", r"[a-z]-\d"): 5,
    Matches("id", r".\W{2}."): 4,
    Matches("id", "x.{2}y|[^a-z]+.*"): 3,
    Satisfies("a number", "CAST(id AS INT) > 0"): 0,
    Satisfies("in words", "coalesce(n % 2 = 1, false) OR id LIKE 'a%'"): 2,
    Satisfies("quotient", "k / n > 0"): 2,
    # What DuckDB is not proven to judge alike, Spark judges, whatever the size.
    Satisfies("by spark", "crc32(id) > 0"): 0,
}

BY_SPARK = {"a number", "quotient", "by spark"}

# For these DuckDB computes another value than Spark, without an error.
OTHERWISE = (
    "dayofweek(at) BETWEEN 2 AND 6",
    "dayname(at) NOT IN ('Sat', 'Sun')",
    "monthname(at) = 'January'",
    "weekday(at) < 5",
    r"code LIKE 'A\\_%'",
    "substring(code, 0, 2) = 'A1'",
    "round(price, 2) = total",
    "CAST(score AS INT) <= 4",
    "CAST(price AS STRING) <> '1.0'",
    "CAST(code AS BOOLEAN)",
    "size(tags) > 0",
    "format_string('%d', n) <> '1'",
    "timestampdiff(MONTH, TIMESTAMP '2026-01-31 00:00:00', at) < 2",
    "upper(code) <> 'SS'",
    "lower(code) <> 'i'",
)


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed")


def counts(found: Check) -> dict[str, int | None]:
    return {each.expectation: each.unexpected_count for each in found.results}


def test_a_rule_has_one_verdict_wherever_it_is_asked(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tuple(rule.model_copy(update={"on_failure": "warn"}) for rule in RULES)
    definition = Ingest(
        name="ingest_odd",
        source=Files(str(tmp_path / "in")),
        columns={
            "id": "STRING",
            "f": "FLOAT",
            "d": "DOUBLE",
            "m": "DECIMAL(10, 2)",
            "n": "INT",
            "k": "BIGINT",
            "at": "TIMESTAMP",
        },
        event_time="at",
        rules=rules,
        expectations=(Unique("n"),),
        sink=Sink("bronze.odd"),
        personal=("id",),
    )
    (tmp_path / "in").mkdir()
    lines = (json.dumps({**row, "at": "2026-01-01T00:00:00Z"}) for row in ROWS)
    (tmp_path / "in/1.json").write_text("\n".join(lines) + "\n")
    query = IngestQuery(spark, lake, definition)
    query.start(until_caught_up=True).awaitTermination()
    assert query.error is None
    epoch = current_epoch(lake, definition.name)
    assert epoch is not None
    ((_, entry),) = ledger_rows(lake, "bronze.odd", definition.name, epoch.number)

    expected = {rule.name: count for rule, count in RULES.items()}
    by_stream = {rule.name: entry.reasons.get(f"warn: {rule.name}", 0) for rule in rules}
    with_spark = check(lake, definition, lambda: spark, most_rows=0)
    fitting = definition.model_copy(update={"rules": tuple(rule for rule in rules if rule.name not in BY_SPARK)})
    without_spark = check(lake, fitting, no_spark)
    monkeypatch.setattr(frames, "IN_MEMORY_BYTES", 0)
    in_a_table = check(lake, fitting, no_spark)
    fallen_back = check(lake, definition, lambda: spark)
    assert by_stream == expected
    assert counts(with_spark) == counts(fallen_back) == {**expected, "not_null(at)": 0, "unique(n)": 0}
    assert in_a_table.results == without_spark.results
    assert counts(without_spark) == {name: count for name, count in counts(with_spark).items() if name not in BY_SPARK}
    assert (with_spark.read_by, without_spark.read_by, fallen_back.read_by) == ("spark", "duckdb", "spark")
    samples = [dict(sample) for each in (*with_spark.results, *without_spark.results) for sample in each.samples]
    assert {sample["id"] for sample in samples if "id" in sample} == {MASK}


def test_a_check_agrees_with_the_stream_where_duckdb_would_not(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    rules = tuple(Satisfies(f"rule {number}", sql, on_failure="warn") for number, sql in enumerate(OTHERWISE))
    columns = {"code": "STRING", "price": "DOUBLE", "total": "DECIMAL(10, 2)", "score": "DOUBLE", "n": "INT",
               "tags": "ARRAY<STRING>", "at": "TIMESTAMP"}  # fmt: skip
    definition = Ingest(
        name="ingest_odd",
        source=Files(str(tmp_path / "in")),
        columns=columns,
        event_time="at",
        rules=rules,
        sink=Sink("bronze.odd"),
    )
    lines = [
        {
            "code": code,
            "price": price,
            "total": total,
            "score": score,
            "n": n,
            "tags": tags,
            "at": f"2026-0{n + 1}-0{day}",
        }
        for code, price, total, score, n, tags, day in (
            ("A1", 1.0, "1.00", 4.6, 0, [], 3),
            ("A_1", 2.675, "2.68", 4.4, 1, None, 4),
            ("ß", 0.125, "0.13", -4.5, 2, ["x"], 5),
            ("İ", 1e21, "7.00", 5.0, 0, ["x"], 1),
            ("t", 0.1, "0.10", None, 1, ["x"], 7),
        )
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    query = IngestQuery(spark, lake, definition)
    query.start(until_caught_up=True).awaitTermination()
    epoch = current_epoch(lake, definition.name)
    assert epoch is not None
    ((_, entry),) = ledger_rows(lake, "bronze.odd", definition.name, epoch.number)
    found = check(lake, definition, lambda: spark)
    by_stream = {rule.name: entry.reasons.get(f"warn: {rule.name}", 0) for rule in rules}
    assert counts(found) == {**by_stream, "not_null(at)": 0}
    assert sum(count > 0 for count in by_stream.values()) > len(OTHERWISE) / 2, "most rules are broken by some row"


def test_a_changed_rule_keeps_the_checkpoint_and_masks_what_it_sets_aside(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    before = Ingest(
        name="ingest_changed",
        source=Files(str(tmp_path / "in")),
        columns={"name": "STRING", "at": "TIMESTAMP"},
        event_time="at",
        sink=Sink("bronze.changed"),
    )
    after = before.model_copy(update={"rules": (Matches("name", "[a-z]+"),), "personal": ("name",)})
    (tmp_path / "in").mkdir()
    for number, definition in enumerate((before, after)):
        (tmp_path / f"in/{number}.json").write_text('{"name": "Ada", "at": "2026-01-01T00:00:00Z"}\n')
        query = IngestQuery(spark, lake, definition)
        query.start(until_caught_up=True).awaitTermination()
        assert query.error is None
    assert run(lake, "SELECT name FROM bronze.changed")[1] == [("Ada",)]
    assert run(lake, "SELECT detail FROM bronze.changed__quarantine")[1] == [(f"name is {MASK}",)]


def test_a_file_without_its_header_is_not_quoted_but_replayed_by_digest(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    definition = Ingest(
        name="ingest_headless",
        source=Files(str(tmp_path / "in"), format="csv"),
        columns={"id": "STRING", "email": "STRING", "at": "TIMESTAMP"},
        event_time="at",
        sink=Sink("bronze.headless"),
        personal=("email",),
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.csv").write_text("3,carol@example.org,2026-01-01T00:00:00Z\n")
    query = IngestQuery(spark, lake, definition)
    query.start(until_caught_up=True).awaitTermination()
    assert query.error is None
    ((reason, detail),) = run(lake, "SELECT reason, detail FROM bronze.headless__quarantine")[1]
    assert (reason, "carol" in str(detail)) == ("header", False)
    assert str(detail).startswith("expected id,email,at, got 3 fields (line ")
    other = definition.model_copy(update={"columns": {"at": "TIMESTAMP", "id": "STRING", "email": "STRING"}})
    rows = spark.createDataFrame(
        [("2026-01-01T00:00:00Z,3,x", "header", f"expected id, got {header_told('at,id,email', ',', quoted=False)}")],
        "raw STRING, reason STRING, detail STRING",
    ).selectExpr(
        "*", "struct('a' AS name, 1 AS partition, 1L AS position) AS _source", "now() AS _ingest_time", "0L AS __index"
    )
    assert [row["__passes"] for row in read_again(rows, other).collect()] == [True]
    assert [row["__passes"] for row in read_again(rows, definition).collect()] == [False]


def test_a_value_that_cannot_be_cast_is_in_no_error_of_a_stream(spark: SparkSession, lake: Lake) -> None:
    """Spark's ANSI mode quotes it, also through what a driver says of its pipelines and keeps of them."""
    bronze = lakes.Bronze(lake, "bronze.people", {"email": pa.string(), "t": lakes.TIMESTAMP}, "t")
    bronze.append([{"email": "carol@example.org", "t": lakes.at(1_700_000_000_000)}])
    definition = Pipeline(
        name="cast_people",
        source=Table("bronze.people", select={"email": "email", "t": "t"}),
        steps=(Select({"n": "CAST(email AS INT)"}),),
        sink=Sink("gold.people"),
        personal=("email",),
    )
    outcomes = Driver(spark, lake, [definition]).run_until_caught_up(close=False)
    told = str(outcomes["cast_people"].error)
    assert "carol" not in told
    assert "CAST_INVALID_INPUT" in told
