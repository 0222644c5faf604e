"""Columns looked up in a table that changes: against DuckDB and plain Python, version by version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.lookups import LookupMovedError, RepeatedKeyError
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.spec import Aggregate, Enrich, Pipeline, Sink, Table, Tumbling, Watermark, Where
from tests.support import lakes

MINUTE = 60_000
START = 1_700_000_040_000
COLUMNS = {"p": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}


def products(lake: Lake, rows: Mapping[str | None, str]) -> None:
    """The whole table again, as one commit."""
    schema = pa.schema([("p", pa.string()), ("category", pa.string())])
    table = pa.table({"p": list(rows), "category": list(rows.values())}, schema=schema)
    write_deltalake(lake.table_uri("silver.products"), table, mode="overwrite")


def sales(lake: Lake, *batches: list[tuple[float, str | None, int]]) -> lakes.Bronze:
    bronze = lakes.Bronze(lake, "bronze.sales", COLUMNS, "t")
    for batch in batches:
        bronze.append([{"p": p, "v": v, "t": lakes.at(START + round(m * MINUTE))} for m, p, v in batch])
    return bronze


def pipeline(missing: str, *, windowed: bool) -> Pipeline:
    after = (Aggregate(window=Tumbling("5 minutes"), by=("category",), measures={"total": "sum(v)"}),)
    return lakes.one_file_a_batch(
        Pipeline(
            name="by_category",
            source=Table("bronze.sales"),
            event_time="t",
            watermark=Watermark(delay="1 minute") if windowed else None,
            steps=(
                Where("v > 0"),
                Enrich("silver.products", on=("p",), columns={"category": "category"}, missing=missing),
                *(after if windowed else ()),
            ),
            sink=Sink("gold.by_category"),
        )
    )


def terms(lake: Lake, definition: Pipeline) -> Counter[str]:
    names = ("read", "on_time", "late", "filtered", "unmatched", "quarantined")
    return +Counter({name: sum(entry[name] for _, entry in lakes.ledger(lake, definition)) for name in names})


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("null", {"read": 6, "on_time": 5, "filtered": 1}),
        ("drop", {"read": 6, "on_time": 3, "filtered": 1, "unmatched": 2}),
        ("quarantine", {"read": 6, "on_time": 3, "filtered": 1, "quarantined": 2}),
    ],
)
def test_an_event_whose_key_is_missing_ends_as_the_pipeline_says(
    spark: SparkSession, lake: Lake, missing: str, expected: dict[str, int]
) -> None:
    products(lake, {"a": "tea", "b": "milk", None: "nothing"})
    sales(lake, [(1, "a", 1), (2, "x", 2), (3, None, 3), (4, "b", -1)], [(5, "b", 4), (6, "a", 5)])
    definition = pipeline(missing, windowed=False)
    lakes.run(spark, lake, definition)
    rows = {(row["p"], row["v"], row["category"]) for row in lakes.rows(lake, "gold.by_category")}
    known = {("a", 1, "tea"), ("b", 4, "milk"), ("a", 5, "tea")}
    assert rows == (known | {("x", 2, None), (None, 3, None)} if missing == "null" else known)
    assert terms(lake, definition) == expected
    if missing == "quarantine":
        set_aside = lakes.rows(lake, "gold.by_category__quarantine")
        assert {(row["p"], row["v"], row["reason"]) for row in set_aside} == {
            ("x", 2, "no such key"),
            (None, 3, "no such key"),
        }
    lakes.assert_balanced(lake, definition)


# Events that are dropped: test_an_event_whose_key_is_missing_ends_as_the_pipeline_says
@pytest.mark.parametrize("missing", ["quarantine", pytest.param("drop", marks=pytest.mark.long)])
def test_before_windows_late_events_and_missing_keys_add_up(spark: SparkSession, lake: Lake, missing: str) -> None:
    products(lake, {"a": "tea", "b": "tea"})
    bronze = sales(lake, [(1, "a", 1), (2, "x", 2), (30, "b", 3)], [(31, "x", 4)], [(2, "a", 5), (2, "x", 6)])
    bronze.heartbeat(START + 100 * MINUTE)
    definition = pipeline(missing, windowed=True)
    lakes.run(spark, lake, definition)
    found = {
        (lakes.ms(row["window_start"]) - START) // MINUTE: row["total"] for row in lakes.rows(lake, "gold.by_category")
    }
    # The grid of windows begins at 1970, so one of them at minute 1 and one at minute 26.
    assert found == {1: 1, 26: 3}
    gone = "unmatched" if missing == "drop" else "quarantined"
    # The late event without a product met the lookup first.
    assert terms(lake, definition) == {"read": 6, "on_time": 2, "late": 1, gone: 3}
    assert [row["v"] for row in lakes.rows(lake, "gold.by_category__late")] == [5]
    lakes.assert_balanced(lake, definition)


def test_each_batch_takes_the_newest_version_and_the_ledger_notes_it(spark: SparkSession, lake: Lake) -> None:
    products(lake, {"a": "tea"})
    sales(lake, [(1, "a", 1)], [(2, "a", 2)], [(3, "a", 3)])
    definition = pipeline("null", windowed=False)
    started = []

    def change(point: str, batch_id: int) -> None:
        if (point, batch_id) == ("result_committed", 0):
            products(lake, {"a": "coffee"})
        if (point, batch_id) == ("planned", 2) and not started:
            # A commit that changes no row, as those that carry a ledger.
            table = open_table(lake, "silver.products")
            started.append(table.version())
            write_deltalake(table, table.to_pyarrow_table().slice(0, 0), mode="append")

    driver = Driver(spark, lake, (definition,), failpoint=change)
    outcomes = driver.run_until_caught_up(close=False)
    assert outcomes["by_category"].error is None
    rows = {(row["v"], row["category"]) for row in lakes.rows(lake, "gold.by_category")}
    assert rows == {(1, "tea"), (2, "coffee"), (3, "coffee")}
    read = [entry.reads["silver.products"][0] for _, entry in lakes.ledger(lake, definition)]
    assert read == [0, 1, 1]
    lakes.assert_balanced(lake, definition)


def test_a_batch_is_finished_with_the_lookup_version_that_it_began_with(spark: SparkSession, lake: Lake) -> None:
    products(lake, {"a": "tea"})
    sales(lake, [(1, "a", 1), (2, "x", 2)], [(3, "x", 3)])
    definition = pipeline("quarantine", windowed=False)

    def cut(point: str, batch_id: int) -> None:
        if (point, batch_id) == ("quarantine_committed", 0):
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        lakes.run(spark, lake, definition, failpoint=cut)
    # By now `x` has a category: what is in the quarantine would come into the result as well.
    products(lake, {"a": "tea", "x": "milk"})
    with pytest.raises(LookupMovedError):
        lakes.run(spark, lake, definition)
    assert {row["v"] for row in lakes.rows(lake, "gold.by_category")} == {1}
    lakes.run(spark, lake, definition)
    assert {(row["v"], row["category"]) for row in lakes.rows(lake, "gold.by_category")} == {(1, "tea"), (3, "milk")}
    assert [row["v"] for row in lakes.rows(lake, "gold.by_category__quarantine")] == [2]
    lakes.assert_balanced(lake, definition)


def test_a_table_with_a_key_twice_or_none_at_all_is_refused(spark: SparkSession, lake: Lake) -> None:
    sales(lake, [(1, "a", 1)])
    with pytest.raises(MissingTableError, match=r"looks columns up in silver\.products, which does not exist"):
        lakes.run(spark, lake, pipeline("null", windowed=False))
    twice = pa.table({"p": ["a", "a"], "category": ["tea", "milk"]})
    write_deltalake(lake.table_uri("silver.products"), twice)
    with pytest.raises(RepeatedKeyError, match="more than one row with the same p "):
        lakes.run(spark, lake, pipeline("null", windowed=False))


def test_a_key_of_another_type_is_refused_before_anything_is_read(spark: SparkSession, lake: Lake) -> None:
    """`"7"` and `"07"` are two keys of the table, and both the number 7: the event would become two."""
    bronze = lakes.Bronze(lake, "bronze.sales", {**COLUMNS, "p": pa.int32()}, "t")
    bronze.append([{"p": 7, "v": 1, "t": lakes.at(START)}])
    products(lake, {"7": "tea", "07": "milk"})
    with pytest.raises(
        SchemaMismatchError, match=r"Enrich compares `p` of its events, int, with `p` of silver\.products"
    ):
        lakes.run(spark, lake, pipeline("null", windowed=False))
    assert not exists(lake, "gold.by_category")
