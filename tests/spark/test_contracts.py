"""Sources whose columns change under a running ingest, and what readers of its bronze table make of it."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.engine.halting import BrokenRuleError
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.spec import (
    Aggregate,
    Contract,
    Files,
    Ingest,
    NotNull,
    Pipeline,
    Select,
    Sink,
    Table,
    Tumbling,
    Watermark,
)
from spark_jobs.spec.personal import MASK
from tests.support import lakes

T = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {"k": "STRING", "v": "INT", "tags": "ARRAY<STRING>", "t": "TIMESTAMP"}


def an_ingest(folder: Path, **changes: Any) -> Ingest:
    parts: dict[str, Any] = {
        "name": "ingest_events",
        "source": Files(str(folder)),
        "columns": COLUMNS,
        "event_time": "t",
        "sink": Sink("bronze.events"),
    }
    return Ingest(**(parts | changes))


TOTALS = Pipeline(
    name="totals",
    source=Table("bronze.events", select={"t": "t", "k": "k", "v": "v"}),
    event_time="t",
    watermark=Watermark(delay="1 minute"),
    steps=(Aggregate(window=Tumbling("1 hour"), by=("k",), measures={"v": "sum(v)", "n": "count(*)"}),),
    sink=Sink("gold.totals", mode="update"),
    column_descriptions={"v": "Sum of v."},
)
AS_THEY_ARE = Pipeline(
    name="as_they_are",
    source=Table("bronze.events", select={"k": "k", "v": "v"}),
    steps=(Select(columns={"twice": "v * 2"}),),
    sink=Sink("silver.events"),
)


def arrive(folder: Path, number: int, *rows: dict[str, Any] | str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{number}.json"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def row(k: str, v: Any, **more: Any) -> dict[str, Any]:
    return {"k": k, "v": v, "tags": [], "t": T.isoformat(), **more}


def run(spark: SparkSession, lake: Lake, *definitions: Ingest | Pipeline) -> None:
    """Until all is read; raises what stopped the first that stopped."""
    for outcome in Driver(spark, lake, definitions).run_until_caught_up(close=False).values():
        if outcome.error is not None:
            raise outcome.error


def test_fields_that_are_new_missing_or_of_another_type(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    lacking = {"k": "d", "t": T.isoformat()}
    arrive(
        tmp_path / "in",
        1,
        row("a", 1),
        row("b", 2, discount=5, nested={"x": [1, 2]}),
        row("c", "12"),
        row("c", 2**40, tags="no list"),
        {**lacking, "v": None, "tags": None},
        lacking,
        "[1]",
    )
    ingest = an_ingest(tmp_path / "in", contract=Contract(new="keep", missing="quarantine"))
    run(spark, lake, ingest)
    kept = {each["k"]: dict(each["_unknown_fields"] or ()) for each in lakes.rows(lake, "bronze.events")}
    # A null is a value that is there.
    assert kept == {"a": {}, "b": {"discount": "5", "nested": '{"x": [1, 2]}'}, "d": {}}
    aside = sorted((each["reason"], each["detail"]) for each in lakes.rows(lake, "bronze.events__quarantine"))
    assert aside == [
        ("missing column", "it lacks v, tags"),
        ("unparseable", "no JSON row"),
        ("unparseable", 'wrong type: v is no INT: "12"'),
        ("unparseable", 'wrong type: v is no INT: 1099511627776, tags is no ARRAY<STRING>: "no list"'),
    ]
    entry = lakes.ledger(lake, ingest)[0][1]
    assert (entry["read"], entry["on_time"], entry["quarantined"]) == (7, 3, 4)
    assert set(entry.unknown_fields) == {"discount", "nested"}


def test_a_key_twice_may_mean_its_last_value_and_no_personal_one_is_told(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    twice = json.dumps(row("a", 1)).replace('"v": 1', '"v": 1, "v": 2')
    arrive(tmp_path / "in", 1, twice, row("b", "secret"))
    run(spark, lake, an_ingest(tmp_path / "in", contract=Contract(repeated="last"), personal=("v",)))
    assert [(each["k"], each["v"]) for each in lakes.rows(lake, "bronze.events")] == [("a", 2)]
    aside = [each["detail"] for each in lakes.rows(lake, "bronze.events__quarantine")]
    assert aside == [f"wrong type: v is no INT: {MASK}"]


def test_a_column_more_and_a_contract_that_changes_need_no_new_epoch(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    arrive(tmp_path / "in", 1, row("a", 1, late="x"), row("b", 2))
    before = an_ingest(tmp_path / "in", contract=Contract(new="keep"))
    run(spark, lake, before, TOTALS, AS_THEY_ARE)
    arrive(tmp_path / "in", 2, row("a", 10, late="y", also="z"), row("c", 3))
    more = an_ingest(tmp_path / "in", columns={**COLUMNS, "late": "STRING"}, rules=(NotNull("k"),))
    run(spark, lake, more, TOTALS, AS_THEY_ARE)

    found = {(each["k"], each["v"]): each for each in lakes.rows(lake, "bronze.events")}
    assert {key: each["late"] for key, each in found.items()} == {
        ("a", 1): None, ("b", 2): None, ("a", 10): "y", ("c", 3): None
    }  # fmt: skip
    # What was kept before stays; what no column takes now is not kept any more.
    assert dict(found["a", 1]["_unknown_fields"]) == {"late": "x"}
    assert found["a", 10]["_unknown_fields"] is None
    totals = {each["k"]: (each["v"], each["n"]) for each in lakes.rows(lake, "gold.totals")}
    assert totals == {"a": (11, 2), "b": (2, 1), "c": (3, 1)}
    assert sorted(each["twice"] for each in lakes.rows(lake, "silver.events")) == [2, 4, 6, 20]
    lakes.assert_balanced(lake, TOTALS)


def test_a_changed_description_of_a_column_stops_no_reader(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    def comment(table: str, column: str) -> str | None:
        fields = {field.name: field for field in DeltaTable(lake.table_uri(table)).schema().fields}
        found = fields[column].metadata.get("comment")
        return str(found) if found else None

    arrive(tmp_path / "in", 1, row("a", 1))
    described = an_ingest(tmp_path / "in", column_descriptions={"v": "How many.", "k": "Which."})
    run(spark, lake, described, TOTALS)
    assert (comment("bronze.events", "v"), comment("bronze.events", "t")) == ("How many.", None)
    assert comment("bronze.events", "_ingest_seq") == "Number in the order of arrival, unique in the table."
    assert (comment("gold.totals", "v"), comment("gold.totals", "n")) == ("Sum of v.", None)
    assert comment("gold.totals", "window_end") == "First instant after the window, UTC."

    arrive(tmp_path / "in", 2, row("a", 10))
    run(spark, lake, an_ingest(tmp_path / "in", column_descriptions={"v": "How many, in all."}), TOTALS)
    assert (comment("bronze.events", "v"), comment("bronze.events", "k")) == ("How many, in all.", None)
    assert [(each["v"], each["n"]) for each in lakes.rows(lake, "gold.totals")] == [(11, 2)]


def test_a_column_that_is_taken_away_still_needs_one(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    arrive(tmp_path / "in", 1, row("a", 1))
    run(spark, lake, an_ingest(tmp_path / "in"))
    fewer = {name: each for name, each in COLUMNS.items() if name != "v"}
    with pytest.raises(CheckpointError, match="columns"):
        run(spark, lake, an_ingest(tmp_path / "in", columns=fewer))


def test_a_contract_may_halt_the_pipeline_until_a_person_decides(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    strict = an_ingest(tmp_path / "in", contract=Contract(missing="fail", retyped="fail"), personal=("k",))
    arrive(tmp_path / "in", 1, row("a", 1), row("b", "two"), {"k": "c", "v": 3, "t": T.isoformat()}, "[1]")
    with pytest.raises(BrokenRuleError, match="1 rows of batch 0 break missing column"):
        run(spark, lake, strict)
    halt = halts.standing(lake, strict.name)
    assert halt is not None
    assert halt.broken == {"missing column": 1, "wrong type": 1}
    assert lakes.rows(lake, "bronze.events") == lakes.rows(lake, "bronze.events__quarantine") == []
    halts.decide(lake, strict.name, "quarantine", by="ada")
    run(spark, lake, strict)
    assert [each["k"] for each in lakes.rows(lake, "bronze.events")] == ["a"]
    aside = sorted((each["reason"], each["detail"]) for each in lakes.rows(lake, "bronze.events__quarantine"))
    assert aside == [
        ("missing column", "it lacks tags"),
        ("unparseable", "no JSON row"),
        ("wrong type", 'wrong type: v is no INT: "two"'),
    ]


def test_a_line_of_csv_says_which_value_has_another_type(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.csv").write_text('k;v;t\na;1;2026-01-01\n"b;c";two;2026-01-01\nd;;never\ne;1\n')
    csv = Files(str(tmp_path / "in"), format="csv", delimiter=";")
    run(spark, lake, an_ingest(tmp_path, source=csv, columns={"k": "STRING", "v": "INT", "t": "TIMESTAMP"}))
    assert [each["k"] for each in lakes.rows(lake, "bronze.events")] == ["a"]
    aside = sorted(each["detail"] for each in lakes.rows(lake, "bronze.events__quarantine"))
    assert aside == [
        "no CSV row",
        'wrong type: t is no TIMESTAMP: "never"',
        'wrong type: v is no INT: "two"',
    ]


def test_files_of_csv_with_more_columns_are_read_by_their_header(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    files = {
        "a.csv": "k;v;t\na;1;2026-01-01\nb;2;2026-01-01;more\n",
        # With them in the midst and behind, and one that is spelt as in a program that quotes.
        "b.csv": 'k;"the colour";v;t;size\nc;red;3;2026-01-01;9\n"d;e";;4;2026-01-01;\nf;1;2026-01-01\n'
        'g;red;five;2026-01-01;9\n;blue;6;2026-01-01;9\nk;"the colour";v;t;size\n"h;red;7;2026-01-01;9\n',
        "c.csv": "v;k;t;size\n8;i;2026-01-01;9\n",
        "d.csv": "k;v;t;size;size\nj;9;2026-01-01;1;2\n",
    }
    (tmp_path / "in").mkdir()
    for name, text in files.items():
        (tmp_path / "in" / name).write_text(text)
    csv = Files(str(tmp_path / "in"), format="csv", delimiter=";")
    columns = {"k": "STRING", "v": "INT", "t": "TIMESTAMP"}
    ingest = an_ingest(tmp_path, source=csv, columns=columns, rules=(NotNull("k"),), contract=Contract(new="keep"))
    run(spark, lake, ingest)
    kept = {each["k"]: (each["v"], dict(each["_unknown_fields"] or ())) for each in lakes.rows(lake, "bronze.events")}
    assert kept == {"a": (1, {}), "c": (3, {"the colour": "red", "size": "9"}), "d;e": (4, {})}
    aside = sorted(
        (each["reason"], each["detail"], each["raw"]) for each in lakes.rows(lake, "bronze.events__quarantine")
    )
    assert aside == [
        *(("header", "expected k;v;t, got k;v;t;size;size", line) for line in sorted(files["d.csv"].splitlines())),
        *(("header", "expected k;v;t, got v;k;t;size", line) for line in sorted(files["c.csv"].splitlines())),
        ("header", "the header again", 'k;"the colour";v;t;size'),
        ("not_null(k)", "k is null", ";blue;6;2026-01-01;9"),
        ("unparseable", "no CSV row", "b;2;2026-01-01;more"),
        ("unparseable", "no CSV row", "f;1;2026-01-01"),
        ("unparseable", "no CSV row: a quote is not closed on its line", '"h;red;7;2026-01-01;9'),
        ("unparseable", 'wrong type: v is no INT: "five"', "g;red;five;2026-01-01;9"),
    ]  # fmt: skip
    positions = {each["k"]: each["_source"]["position"] for each in lakes.rows(lake, "bronze.events")}
    assert positions == {"a": 1, "c": 1, "d;e": 2}
    entry = lakes.ledger(lake, ingest)[0][1]
    assert (entry["read"], entry["on_time"], entry["searched"], entry["unknown"]) == (13, 3, 3, 2)
    assert entry.unknown_fields == ("size", "the colour")

    # From the day on which a column takes it, of the same files: what was set aside as well.
    (tmp_path / "in/e.csv").write_text("k;v;t;size\nl;10;2026-01-01;11\n")
    taken = an_ingest(tmp_path, source=csv, columns={**columns, "size": "INT"}, rules=(NotNull("k"),))
    run(spark, lake, taken)
    assert {each["k"]: each["size"] for each in lakes.rows(lake, "bronze.events")} == {
        "a": None, "c": None, "d;e": None, "l": 11
    }  # fmt: skip


def test_a_column_more_of_parquet_is_noticed(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = {"k": ["a", "b"], "v": pa.array([1, 2], pa.int32()), "t": [T, T]}
    pq.write_table(pa.table(rows), tmp_path / "in/1 a.parquet")
    parquet = Files(str(tmp_path / "in"), format="parquet", max_files_per_trigger=1)
    ingest = an_ingest(tmp_path, source=parquet, columns={"k": "STRING", "v": "INT", "t": "TIMESTAMP"})
    run(spark, lake, ingest)
    pq.write_table(pa.table({**rows, "size": [1, 2]}), tmp_path / "in/2%20b.parquet")
    run(spark, lake, ingest)
    assert sorted((each["k"], each["v"]) for each in lakes.rows(lake, "bronze.events")) == [
        ("a", 1), ("a", 1), ("b", 2), ("b", 2)
    ]  # fmt: skip
    entries = [entry for _, entry in lakes.ledger(lake, ingest)]
    seen = [(entry["searched"], entry["unknown"], entry.unknown_fields) for entry in entries]
    assert seen == [(2, 0, ()), (2, 2, ("size",))]
