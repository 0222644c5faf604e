"""What is personal goes by where a value comes from: through every step, into every table, and into no message."""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from spark_jobs.documentation.places import page_path
from spark_jobs.documentation.publishing import publish_pages
from spark_jobs.engine.failures import Words, explained
from spark_jobs.lake.tables import broken_expectations, quality
from spark_jobs.lake.tables.quarantine import Selection, samples
from spark_jobs.lake.tables.query import run
from spark_jobs.plan.personal import PersonalColumns
from spark_jobs.plan.quarantine import HEADER, header_told
from spark_jobs.quality.checking import check
from spark_jobs.quality.masking import TableColumns, masked_results, personal_outputs
from spark_jobs.spec import (
    Contract,
    CustomSql,
    Deduplicate,
    DefinitionError,
    Enrich,
    Files,
    Join,
    Select,
    Table,
    TopN,
    Where,
)
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.spec.personal import MASK
from tests.support.builders import a_lake, a_pipeline, an_aggregate, an_ingest, write

SECRET = "carol@example.org"
COLUMNS = {"sale_id": "STRING", "email": "STRING", "quantity": "INT", "sold_at": "TIMESTAMP"}


def sales(**changes):
    return an_ingest(**({"columns": COLUMNS, "personal": ("email",)} | changes))


def without_steps(**changes):
    """A pipeline in which no step remembers events."""
    return a_pipeline(**({"event_time": None, "watermark": None, "steps": (Where("quantity > 0"),)} | changes))


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path / "lake")


class TestLineage:
    def of(self, pipeline, *others, table="gold.hourly_sales"):
        return PersonalColumns((pipeline, *(others or (sales(),)))).of(table) - {"email"}

    def test_through_the_columns_that_a_source_selects(self):
        source = Table("bronze.sales", select={"who": "lower(Email)", "quantity": "quantity"})
        assert self.of(without_steps(source=source)) == {"who"}

    def test_through_a_select_the_key_and_the_measures_of_an_aggregate(self):
        measures = {"newest": "max_by(who, sold_at)", "units": "sum(quantity)"}
        steps = (Select({"who": "concat(email, '!')"}), an_aggregate(by=("email", "sale_id"), measures=measures))
        assert self.of(a_pipeline(steps=steps)) == {"newest"}

    def test_a_count_tells_no_value(self):
        counts = {"n": "count(email)", "people": "approx_count_distinct(email)", "some": "count_if(email IS NULL)"}
        steps = (an_aggregate(by=("sale_id",), measures=counts),)
        assert self.of(a_pipeline(steps=steps)) == frozenset()

    def test_a_personal_id_is_personal_as_the_id_of_the_event(self):
        ingest = sales(event_id="sale_id", personal=("sale_id",))
        known = PersonalColumns((ingest, without_steps(), a_pipeline()))
        assert "_event_id" in known.of("bronze.sales")
        assert "_event_id" in known.of("gold.hourly_sales__late")
        assert "_event_id" not in PersonalColumns((ingest, a_pipeline())).of("gold.hourly_sales")
        assert self.of(without_steps(), ingest) == {"sale_id", "_event_id"}
        assert self.of(a_pipeline(steps=(Deduplicate("sale_id", within="1 hour"),)), ingest) == {"sale_id", "_event_id"}

    def test_through_both_sides_of_a_join(self):
        payments = an_ingest(
            name="ingest_payments",
            columns={"sale_id": "STRING", "card": "STRING", "paid_at": "TIMESTAMP"},
            event_time="paid_at",
            event_id="card",
            personal=("card",),
        ).model_copy(update={"sink": sales().sink.model_copy(update={"table": "bronze.payments"})})
        other = Table("bronze.payments", select={"sale_id": "sale_id", "paid_by": "card", "paid_at": "paid_at"})
        join = Join(other, on=("sale_id",), event_time="paid_at", within="1 hour")
        found = self.of(a_pipeline(steps=(join,)), sales(), payments)
        assert found == {"card", "paid_by", "_other_event_id"}

    def test_through_the_table_that_a_pipeline_keeps_and_another_looks_up(self):
        directory = a_pipeline(
            name="directory",
            event_time=None,
            watermark=None,
            steps=(an_aggregate(window=None, by=("sale_id",), measures={"contact": "max_by(email, sold_at)"}),),
            sink={"table": "silver.people", "mode": "update"},
        )
        looked_up = Enrich("silver.people", on=("sale_id",), columns={"reach": "contact"}, missing="quarantine")
        steps = (looked_up, an_aggregate(by=("reach",)))
        assert self.of(a_pipeline(steps=steps), sales(), directory) == {"reach"}

    def test_a_rank_and_the_tables_beside_a_result_have_them_too(self):
        steps = (an_aggregate(by=("who",)), TopN(3, order_by="units DESC"))
        source = Table("bronze.sales", select={"who": "email", "quantity": "quantity", "sold_at": "sold_at"})
        pipeline = a_pipeline(source=source, steps=steps)
        for table in ("gold.hourly_sales__late", "gold.hourly_sales__groups", "gold.hourly_sales__rebuilt"):
            assert self.of(pipeline, table=table) == {"who"}

    def test_a_field_that_no_column_takes_may_be_one_of_them(self):
        assert UNKNOWN_FIELDS in PersonalColumns((sales(contract=Contract(new="keep")),)).of("bronze.sales")

    def test_where_nothing_is_declared_nothing_is_personal(self):
        assert PersonalColumns((a_pipeline(), an_ingest())).of("gold.hourly_sales") == frozenset()


class TestQuarantineOfAPipeline:
    STEPS = (
        Enrich("silver.shops", on=("sale_id",), columns={"city": "city"}, missing="quarantine"),
        an_aggregate(by=("city",)),
    )

    def shown(self, lake, definition, personal=None):
        row = {"sale_id": ["s1"], "email": [SECRET], "reason": ["no such key"], "detail": [None]}
        row |= {"_epoch": [1], "_batch_id": [0], "_ingest_time": pa.array([0], pa.timestamp("us", "UTC"))}
        write(lake, "gold.hourly_sales__quarantine", {**row, "_event_id": ["e1"]})
        return str(samples(lake, definition, Selection(), 3, personal=personal))

    def test_follows_what_the_ingest_declares(self, lake):
        definition = a_pipeline(steps=self.STEPS)
        told = self.shown(lake, definition, PersonalColumns((definition, sales())))
        assert SECRET not in told
        assert f"email={MASK}" in told
        assert "sale_id=s1" in told

    def test_its_columns_can_be_declared_beside_an_aggregate(self, lake):
        told = self.shown(lake, a_pipeline(steps=self.STEPS, personal=("email",)))
        assert SECRET not in told

    def test_a_name_that_none_of_its_tables_has_is_still_refused(self):
        source = Table("bronze.sales", select={name: name for name in ("sale_id", "sold_at", "quantity")})
        a_pipeline(source=source, steps=self.STEPS, personal=("sale_id",))
        with pytest.raises(DefinitionError, match=r"personal: expected columns of .*, got \['email'\]"):
            a_pipeline(source=source, steps=self.STEPS, personal=("email",))
        with pytest.raises(DefinitionError, match=r"personal: expected columns of .*, got \['email'\]"):
            a_pipeline(personal=("email",))


class TestQuarantineOfAnIngest:
    def shown(self, lake, reason, detail, raw):
        row = {"reason": [reason], "detail": [detail], "raw": [raw], "_epoch": [1], "_batch_id": [0]}
        write(lake, "bronze.sales__quarantine", row | {"_ingest_time": pa.array([0], pa.timestamp("us", "UTC"))})
        return str(samples(lake, sales(source=Files("in", format="csv")), Selection(), 3))

    def test_a_file_without_its_header_shows_no_line(self, lake):
        told = self.shown(lake, HEADER, f"expected sale_id,email, got 3,{SECRET},1", f"{SECRET},3,1,x")
        assert "carol" not in told
        assert "expected sale_id,email" in told

    def test_a_rule_that_writes_the_column_in_another_case_shows_none(self, lake):
        assert "carol" not in self.shown(lake, "known", f"EMAIL is {SECRET}", f"3,{SECRET},1,x")

    def test_each_column_that_is_wrong_is_named_and_a_long_row_is_cut(self, lake):
        detail = ", ".join(f"column_{number:02d}: expected INT" for number in range(20))
        told = self.shown(lake, "known", detail, "3,x," + "1" * 300)
        assert detail in told
        assert "1" * 200 not in told

    def test_the_header_that_was_found_is_told_by_its_fields_and_a_digest(self):
        line = f"3,{SECRET},1"
        told = header_told(line, ",", quoted=False)
        assert told.startswith("3 fields (line ")
        assert told == header_told(line, ",", quoted=False) != header_told("3,x,1", ",", quoted=False)
        assert header_told(line, ",", quoted=True) == line

    def test_a_field_under_another_name_is_masked(self, lake):
        row = {"reason": ["unparseable"], "detail": [""], "raw": [json.dumps({"sale_id": "s1", "e_mail": SECRET})]}
        row |= {"_epoch": [1], "_batch_id": [0], "_ingest_time": pa.array([0], pa.timestamp("us", "UTC"))}
        write(lake, "bronze.sales__quarantine", row)
        told = str(samples(lake, sales(source=Files("in", format="json")), Selection(), 3))
        assert "carol" not in told
        assert "s1" in told


TABLES = {
    "silver.c": TableColumns(("id", "NAME", "tags"), ("name",)),
    "silver.d": TableColumns(("id", "k"), ()),
}


class TestResultsOfAQuery:
    @pytest.fixture
    def connection(self):
        with duckdb.connect() as connection:
            connection.execute("CREATE SCHEMA silver; CREATE TABLE silver.c(id INT, NAME VARCHAR, tags INT[])")
            connection.execute("CREATE TABLE silver.d(id INT, k INT); INSERT INTO silver.d VALUES (1, 2)")
            connection.execute(f"INSERT INTO silver.c VALUES (1, '{SECRET}', [1])")
            yield connection

    def told(self, connection, sql):
        found = connection.execute(f"SELECT * FROM ({sql}) LIMIT 5")
        names, rows = [column[0] for column in found.description], found.fetchall()
        return masked_results(rows, names, personal_outputs(sql, names, TABLES), sql=sql, tables=TABLES)

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT * FROM silver.c",
            "FROM silver.c",
            "SELECT c.* FROM silver.c c",
            "SELECT c FROM silver.c c",
            "SELECT to_json(c) AS id FROM silver.c",
            "SELECT string_agg(c::VARCHAR) AS id FROM silver.c",
            "SELECT c['name'] AS id FROM silver.c",
            "SELECT * RENAME (name AS id2) FROM silver.c",
            "SELECT * REPLACE (upper(name) AS id) FROM silver.c",
            "SELECT COLUMNS(*) FROM silver.c",
            "SELECT * FROM silver.c AS c(x, id, y)",
            "SELECT * FROM (PIVOT silver.c ON name USING count(*))",
            "PIVOT silver.c ON name USING count(*)",
            "UNPIVOT silver.c ON name INTO NAME k VALUE v",
            "SELECT * FROM silver.c UNPIVOT (v FOR k IN (name))",
            "SELECT * FROM (SUMMARIZE silver.c)",
            "SELECT * FROM query_table('silver.c')",
            "SELECT id, (SELECT max(name) FROM silver.c) AS k FROM silver.d",
            "SELECT d.id, x.m FROM silver.d d, LATERAL (SELECT name AS m FROM silver.c) x",
            "SELECT id FROM silver.d UNION ALL BY NAME SELECT name AS id FROM silver.c",
            "SELECT id::VARCHAR AS id FROM silver.d UNION ALL SELECT name FROM silver.c",
            "WITH d AS (SELECT name AS k, 1 AS id FROM silver.c) SELECT k FROM d",
            "SELECT u FROM silver.c, unnest([name]) AS t(u)",
            "SELECT z.id FROM (SELECT name AS id FROM silver.c) z",
            "SELECT name AS z, z AS id FROM silver.c",
        ],
    )
    def test_have_no_value_that_may_be_one(self, connection, sql):
        told = self.told(connection, sql)
        assert told
        assert "carol" not in json.dumps(told, ensure_ascii=False).casefold()

    @pytest.mark.parametrize(
        ("sql", "shown"),
        [
            ("SELECT id, name FROM silver.c", {"id": "1", "NAME": MASK}),
            ("SELECT * EXCLUDE (name) FROM silver.c", {"id": "1", "tags": "[1]"}),
            ("SELECT d.*, c.name FROM silver.d d JOIN silver.c c ON c.id = d.id", {"id": "1", "k": "2", "NAME": MASK}),
            ("WITH c AS (SELECT id, name AS n FROM silver.c) SELECT * FROM c", {"id": "1", "n": MASK}),
            ("SELECT count(name) AS n, max(id) AS m FROM silver.c WHERE name <> 'x'", {"n": "1", "m": "1"}),
            ("SELECT k FROM (FROM silver.d) x", {"k": "2"}),
        ],
    )
    def test_show_what_comes_from_other_columns(self, connection, sql, shown):
        assert self.told(connection, sql) == (shown,)

    def test_names_that_are_more_than_words_are_names(self):
        tables = {"silver.c--d": TableColumns(("id -- x", "größe", "order"), ("order",))}
        for sql, names in (
            ('SELECT * FROM silver."c--d"', ["id -- x", "größe", "order"]),
            ('SELECT "id -- x", "Größe", "order" AS "a, b" FROM silver."c--d"', ["id -- x", "größe", "a, b"]),
        ):
            hidden = personal_outputs(sql, names, tables)
            assert hidden == [False, False, True]
            (told,) = masked_results([(1, 2, 3)], names, hidden, sql=sql, tables=tables)
            assert told == dict(zip(names, ("1", "2", MASK), strict=True))


class TestErrorsThatQuoteAValue:
    DEFINITION = a_pipeline(
        personal=("product_id",),
        expectations=(
            CustomSql("cast", "SELECT CAST(product_id AS INT) AS n FROM gold.hourly_sales"),
            CustomSql("typo", "SELECT nothing_like_it FROM gold.hourly_sales"),
        ),
    )

    def test_a_check_says_the_kind_and_the_column(self, lake):
        write(lake, "gold.hourly_sales", {"product_id": [SECRET], "units": [1]})
        found = check(lake, self.DEFINITION, lambda: pytest.fail("no Spark"))
        quality.publish(lake, found)
        broken_expectations.note(lake, found)
        publish_pages(lake, self.DEFINITION, {})
        told = {each.expectation: each.observed for each in found.results}
        cast = next(said for name, said in told.items() if "cast" in name)
        assert "Conversion Error (columns named: product_id): ‹masked›" in cast
        written = json.dumps(run(lake, "SELECT * FROM ops.quality")[1], default=str)
        written += (Path(lake.uri) / page_path("gold.hourly_sales")).read_text()
        written += "".join(path.read_text() for path in Path(lake.uri, "_control").rglob("*.json"))
        assert "carol" not in written + str(told)

    def test_where_nothing_is_personal_the_words_are_shown(self, lake):
        write(lake, "gold.hourly_sales", {"product_id": [SECRET], "units": [1]})
        definition = self.DEFINITION.model_copy(update={"personal": ()})
        found = check(lake, definition, lambda: pytest.fail("no Spark"))
        assert SECRET in str([each.observed for each in found.results])

    # As Spark 4.2 says it, shortened.
    CAST = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure\n"
        "Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'carol@example.org' of "
        'the type "STRING" cannot be cast to "INT" because it is malformed. SQLSTATE: 22018\n'
        "== SQL (line 1, position 1) ==\nCAST(email AS INT)\n^^^^^\n"
    )

    def stopped(self, lake, text, *definitions):
        words = (
            Words((), ())
            if not definitions
            else Words(
                frozenset().union(*map(PersonalColumns((*definitions, sales())).touching, definitions)),
                ("email", "units"),
            )
        )
        return str(explained(ValueError(text), pipeline="p", lake=lake, checkpoint="_checkpoints/p", words=words))

    def test_a_stream_says_the_kind_and_the_column(self, lake):
        told = self.stopped(lake, self.CAST, a_pipeline())
        assert "carol" not in told
        assert "SparkNumberFormatException, STREAM_FAILED, CAST_INVALID_INPUT (columns named: email): ‹masked›" in told

    def test_a_stream_that_reads_nothing_personal_says_all(self, lake):
        assert SECRET in self.stopped(lake, self.CAST)

    def test_what_never_quotes_a_value_is_said_in_full(self, lake):
        text = "Job aborted\nCaused by: java.io.FileNotFoundException: part-0001.parquet does not exist"
        assert "part-0001.parquet does not exist" in self.stopped(lake, text, a_pipeline())

    def test_what_java_says_without_a_cause_is_masked_too(self):
        class Py4JJavaError(Exception):
            pass

        def told(kind, said):
            text = f"An error occurred while calling o1.collectToPython.\n: {kind}: {said}\n\tat org.apache.spark.X\n"
            return Words(("email",), ("email",)).of(Py4JJavaError(text))

        found = told("org.apache.spark.SparkNumberFormatException", f"[CAST_INVALID_INPUT] The value '{SECRET}'")
        assert found is not None
        assert SECRET not in found
        assert "SparkNumberFormatException, CAST_INVALID_INPUT" in found
        assert told("java.io.FileNotFoundException", "part-0001.parquet") is None

    def test_a_pipeline_masks_what_an_ingest_beside_it_declares(self):
        assert "email" not in Words.about(a_pipeline()).personal
        assert "email" in Words.about(a_pipeline(), beside=(sales(),)).personal

    def test_a_value_that_looks_like_a_cause_is_none(self, lake):
        text = f"Job aborted\nCaused by: {SECRET}: IOException\n"
        assert "carol" not in self.stopped(lake, text, a_pipeline())
