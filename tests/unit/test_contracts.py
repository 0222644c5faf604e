"""What a source has against what its ingest declares, before anything is deployed. No JVM."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.control.desired.contracts import Difference, differences
from spark_jobs.control.desired.deployment import Action, plan
from spark_jobs.control.desired.deployment_text import as_text
from spark_jobs.lake import Lake
from spark_jobs.plan.changes import Compatibility, changes
from spark_jobs.spec import Contract, DefinitionError, Files, Parsing
from tests.support.builders import a_lake, an_ingest

COLUMNS = {
    "sale_id": "STRING",
    "quantity": "INT",
    "price": "DECIMAL(10, 2)",
    "tags": "ARRAY<STRING>",
    "sold_at": "TIMESTAMP",
}
GOOD = {"sale_id": "s1", "quantity": 1, "price": 1.5, "tags": ["a"], "sold_at": "2026-01-01T00:00:00Z"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake")


def an_ingest_of(**changes: Any) -> Any:
    return an_ingest(columns=COLUMNS, event_time="sold_at", event_id="sale_id", rules=(), **changes)


def arrive(lake: Lake, *rows: dict[str, Any] | str, name: str = "one.json") -> None:
    folder = Path(lake.uri) / "landing/sales"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (folder / name).write_bytes(content)


def told(lake: Lake, ingest: Any) -> set[tuple[str, str, str]]:
    return {(each.kind, each.column, each.what) for each in differences(lake, ingest)}


class TestDifferences:
    @pytest.mark.parametrize("name", ["one.json", "one.json.gz"])
    def test_columns_that_are_new_missing_and_of_another_type(self, lake, name):
        changed = {**GOOD, "quantity": "two", "discount": 5}
        del changed["tags"]
        arrive(lake, changed, {**changed, "quantity": None}, "no JSON", name=name)
        assert told(lake, an_ingest_of()) == {
            ("new", "discount", "2 of 2 rows have it; it is dropped"),
            ("missing", "tags", "none of 2 rows has it"),
            ("retyped", "quantity", "1 of 2 rows have a value that is no INT"),
        }

    def test_a_source_that_is_as_declared_or_cannot_be_looked_at(self, lake):
        assert told(lake, an_ingest_of()) == set()
        arrive(lake)
        assert told(lake, an_ingest_of()) == set()
        arrive(lake, GOOD, {**GOOD, "price": 3})
        assert told(lake, an_ingest_of()) == set()
        assert told(lake, an_ingest_of(source=Files("landing/*"))) == set()

    def test_values_are_looked_at_as_they_are_declared_to_be_written(self, lake):
        written = {**GOOD, "meta": {"sold": 1767225600}}
        del written["sold_at"]
        arrive(lake, written)
        of_number = an_ingest_of(parsing={"sold_at": Parsing(path="meta.sold", unit="seconds")})
        assert told(lake, of_number) == set()
        of_text = an_ingest_of(parsing={"sold_at": Parsing(path="meta.sold")})
        assert told(lake, of_text) == {("retyped", "sold_at", "1 of 1 rows have a value that is no TIMESTAMP")}
        assert told(lake, an_ingest_of()) == {
            ("new", "meta", "1 of 1 rows have it; it is dropped"),
            ("missing", "sold_at", "none of 1 rows has it"),
        }

    def test_single_rows_of_another_type_are_no_change_of_the_source(self, lake):
        odd = {**GOOD, "quantity": "two", "discount": 5}
        arrive(lake, odd, *[GOOD] * 100)
        assert told(lake, an_ingest_of()) == {("new", "discount", "1 of 101 rows have it; it is dropped")}
        strict = an_ingest_of(contract=Contract(retyped="fail"))
        assert ("retyped", "quantity", "1 of 101 rows have a value that is no INT") in told(lake, strict)
        arrive(lake, odd, *[GOOD] * 99)
        assert ("retyped", "quantity", "1 of 100 rows have a value that is no INT") in told(lake, an_ingest_of())

    def test_a_line_that_may_be_an_event_names_no_column(self, lake):
        arrive(lake, "s1,2,carol@example.org,2026-01-01", "s2,3,x,2026-01-01", name="one.csv")
        columns = {"sale_id": "STRING", "quantity": "INT", "email": "STRING", "sold_at": "TIMESTAMP"}
        found = told(lake, an_ingest(columns=columns, source=Files("landing/sales", format="csv"), personal=("email",)))
        assert "carol" not in str(found)
        assert ("new", "field 3", "1 of 1 files have it; it is dropped") in found

    def test_the_header_of_csv_and_the_schema_of_parquet(self, lake):
        arrive(lake, 'sale_id;"quantity";price;sold_at', "s1;1;1.5;2026-01-01", name="one.csv")
        csv = an_ingest(
            columns={"sale_id": "STRING", "quantity": "INT", "tax": "INT", "sold_at": "TIMESTAMP"},
            source=Files("landing/sales", format="csv", delimiter=";"), event_time="sold_at", event_id=None, rules=(),
        )  # fmt: skip
        assert told(lake, csv) == {
            ("new", "price", "1 of 1 files have it; it is dropped"),
            ("missing", "tax", "none of 1 files has it; such files are set aside"),
        }
        folder = Path(lake.uri) / "landing/sales"
        (folder / "one.csv").unlink()
        pq.write_table(pa.table({"sale_id": ["s1"], "extra": [1]}), folder / "one.parquet")
        found = told(lake, an_ingest_of(source=Files("landing/sales", format="parquet")))
        assert ("new", "extra", "1 of 1 files have it; it is dropped") in found
        assert ("missing", "quantity", "none of 1 files has it") in found

    def test_only_where_the_contract_says_so_it_stops(self, lake):
        arrive(lake, {"sale_id": "s1", "quantity": "x"})
        stops = {each.column for each in differences(lake, an_ingest_of()) if each.stops}
        assert stops == set()
        strict = an_ingest_of(contract=Contract(missing="fail", retyped="fail"))
        found = differences(lake, strict)
        assert {each.column for each in found if each.stops} == {"quantity", "price", "tags", "sold_at"}
        assert all(isinstance(each, Difference) for each in found)


class TestDeploy:
    def test_a_plan_says_what_differs_and_a_contract_refuses(self, lake):
        arrive(lake, {**GOOD, "discount": 5, "quantity": "two"})
        (step,) = plan(lake, [an_ingest_of()]).steps
        assert step.action is Action.START
        text = as_text(plan(lake, [an_ingest_of()]))
        assert "source: new column discount: 1 of 1 rows have it; it is dropped" in text
        assert "source: retyped column quantity: 1 of 1 rows have a value that is no INT" in text
        (step,) = plan(lake, [an_ingest_of(contract=Contract(retyped="fail"))]).steps
        assert step.action is Action.REFUSED
        assert "its source breaks the contract: retyped column quantity" in step.why


class TestDefinition:
    def test_a_column_more_needs_no_new_epoch_and_another_type_does(self):
        def with_columns(columns: dict[str, str]) -> Any:
            return an_ingest_of().model_copy(update={"columns": columns})

        (change,) = changes(an_ingest_of(), with_columns({**COLUMNS, "discount": "INT"}))
        assert (change.field, change.compatibility) == ("columns", Compatibility.SAFE)
        assert {
            each.compatibility for each in changes(an_ingest_of(), with_columns({"discount": "INT", **COLUMNS}))
        } == {Compatibility.SAFE}
        for columns in ({**COLUMNS, "quantity": "BIGINT", "discount": "INT"}, dict(list(COLUMNS.items())[:-1])):
            assert Compatibility.REBUILD in {
                each.compatibility for each in changes(an_ingest_of(), with_columns(columns))
            }
        (change,) = changes(an_ingest_of(), an_ingest_of(contract=Contract(new="keep")))
        assert (change.field, change.compatibility) == ("contract", Compatibility.SAFE)

    @pytest.mark.parametrize(
        ("contract", "files"),
        [
            (Contract(new="keep"), {"format": "csv", "header": False}),
            (Contract(new="keep"), {"format": "parquet"}),
            (Contract(missing="quarantine"), {"format": "csv"}),
        ],
    )
    def test_what_a_format_cannot_tell_is_refused(self, contract, files):
        with pytest.raises(DefinitionError, match=r"contract: (new='keep' is for JSON|missing is for fields of JSON)"):
            an_ingest(contract=contract, source=Files("landing/sales", **files))
        an_ingest(contract=Contract(new="keep"), source=Files("landing/sales", format="csv"))

    @pytest.mark.parametrize(
        ("parsing", "told"),
        [
            ({"quantity": Parsing(unit="millis")}, "quantity: unit is for TIMESTAMP"),
            ({"quantity": Parsing(pattern="dd/MM")}, "quantity: pattern is for TIMESTAMP and DATE"),
            ({"sold_at": Parsing(rounding="down")}, "sold_at: rounding is for DECIMAL"),
            ({"sold": Parsing(unit="millis")}, r"expected columns of .*'sold'"),
            ({"sold_at": Parsing(path="tags.at")}, "value of sold_at is inside of what tags takes"),
            ({"sold_at": Parsing(path="quantity")}, "is inside of what"),
        ],
    )
    def test_what_a_column_cannot_be_written_as_is_refused(self, parsing, told):
        with pytest.raises(DefinitionError, match=told):
            an_ingest_of(parsing=parsing)
        for wrong in ({"unit": "millis", "pattern": "dd"}, {"unit": "hours"}, {"path": "a..b"}, {"path": ()}):
            with pytest.raises(DefinitionError):
                Parsing(**wrong)

    def test_a_path_is_of_json_and_parsing_of_texts(self):
        csv, parquet = (Files("landing/sales", format=each) for each in ("csv", "parquet"))
        flat = {"quantity": "INT", "sold_at": "TIMESTAMP"}
        of = {"columns": flat, "event_id": None, "rules": ()}
        with pytest.raises(DefinitionError, match="path is for JSON"):
            an_ingest(source=csv, parsing={"sold_at": Parsing(path="a.b")}, **of)
        with pytest.raises(DefinitionError, match="the values of a Parquet file have their types"):
            an_ingest(source=parquet, parsing={"sold_at": Parsing(unit="millis")}, **of)
        an_ingest(source=csv, parsing={"sold_at": Parsing(unit="millis")}, **of)

    def test_kept_fields_are_a_column_of_bronze(self):
        assert list(an_ingest_of(contract=Contract(new="keep")).payload) == [*COLUMNS, "_unknown_fields"]
        assert list(an_ingest_of().payload) == list(COLUMNS)
