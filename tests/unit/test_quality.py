"""Checks of real, small tables; what must come out is worked out by hand or in plain Python."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from rich.console import Console
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.console.reports import print_late
from spark_jobs.control.monitoring import monitor
from spark_jobs.documentation.places import page_path
from spark_jobs.documentation.publishing import publish_pages
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables import quality, watermarks
from spark_jobs.lake.tables.query import run
from spark_jobs.pipelines import load_file
from spark_jobs.quality.checking import check
from spark_jobs.quality.suites import suite_of
from spark_jobs.quality.validating import expectation_suite
from spark_jobs.spec import (
    Between,
    Conservation,
    CustomSql,
    Expectation,
    Fresh,
    Matches,
    NotNull,
    OneOf,
    Pipeline,
    Referential,
    Satisfies,
    Sink,
    Unique,
    Volume,
)
from spark_jobs.spec.personal import MASK
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, an_ingest, write
from tests.support.deploying import deploy

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake")


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed")


def hour(number: float) -> datetime:
    return NOON + timedelta(hours=number)


def sales(*rows: tuple[str | None, int | None], at: float = 0) -> pa.Table:
    """Results of one hour: product and units."""
    return pa.table(
        {
            "window_start": pa.array([hour(at)] * len(rows), TIME),
            "window_end": pa.array([hour(at + 1)] * len(rows), TIME),
            "product_id": pa.array([product for product, _ in rows], pa.string()),
            "units": pa.array([units for _, units in rows], pa.int64()),
        }
    )


def with_(*expectations: Expectation, **changes: Any) -> Pipeline:
    return a_pipeline(expectations=expectations, **changes)


def looked(lake: Lake, definition: Pipeline, **options: Any) -> quality.Check:
    """Checks, and records it."""
    found = check(lake, definition, no_spark, now=hour(1), **options)
    quality.publish(lake, found)
    return found


def one(lake: Lake, *expectations: Expectation, **options: Any) -> quality.Result:
    (result,) = looked(lake, with_(*expectations), **options).results
    return result


ROWS = (("apple", 1), ("pear", 5), (None, 7), ("pear", None), ("Plum", -2))


class TestRows:
    @pytest.mark.parametrize(
        ("expectation", "wrong"),
        [
            (NotNull("product_id"), lambda product, units: product is None),
            (NotNull("window_start"), lambda product, units: False),
            (Between("units", min=1), lambda product, units: units is not None and units < 1),
            (Between("units", min=1, max=4.5), lambda product, units: units is not None and not 1 <= units <= 4.5),
            (OneOf("product_id", ("pear", "now")), lambda product, units: product not in (None, "pear", "now")),
            (Matches("product_id", "[a-z]+"), lambda product, units: product == "Plum"),
            (Satisfies("few", "units < 6 OR product_id IS NOT NULL"), lambda product, units: units == 7),
        ],
        ids=lambda each: getattr(each, "name", ""),
    )
    def test_each_row_that_breaks_a_rule_is_counted(self, lake, expectation, wrong):
        write(lake, "gold.hourly_sales", sales(*ROWS))
        broken = [row for row in ROWS if wrong(*row)]
        found = one(lake, expectation)
        assert (found.success, found.unexpected_count, found.rows) == (not broken, len(broken), len(ROWS))
        assert found.unexpected_share == len(broken) / len(ROWS)
        columns = {"product_id": 0, "units": 1}
        for sample, row in zip(found.samples, broken, strict=True):
            told = {name: row[columns[name]] for name in sample if name in columns}
            assert sample == {name: None if value is None else str(value) for name, value in told.items()}

    def test_floats_are_compared_as_the_stream_does(self, lake):
        """0.1 as a FLOAT is a little more than 0.1, and NaN is greater than any number."""
        values = pa.array([0.1, 0.5, float("nan"), None], pa.float32())
        write(lake, "gold.hourly_sales", pa.table({"units": values}))
        assert one(lake, Between("units", max=0.1)).unexpected_count == 3
        assert one(lake, Between("units", min=0.2), all_rows=True).unexpected_count == 1
        assert one(lake, NotNull("units"), all_rows=True).unexpected_count == 1

    @pytest.mark.parametrize("regex", [r"\d{2}-[A-Z]+", "a.c", "(?:ab|c)*", r"[^\d.]+x?", r"\w\.\w"])
    def test_a_pattern_means_the_whole_text(self, lake, regex):
        texts = ["12-AB", "12-AB\n", "x12-AB", "a\nc", "abc", "ababc", "", "ä.b", "a.b", "q\r\nx", "xx"]
        write(lake, "gold.hourly_sales", pa.table({"product_id": texts}))
        holds = [text for text in texts if re.fullmatch(regex, text, re.DOTALL | re.ASCII)]
        assert one(lake, Matches("product_id", regex)).unexpected_count == len(texts) - len(holds)

    def test_the_rules_of_an_ingest_are_in_the_suite_of_bronze(self):
        rules = (NotNull("sale_id"), Between("quantity", min=1, on_failure="warn"))
        suite = suite_of(an_ingest(rules=rules, expectations=(Unique("sale_id"),)))
        assert [(each.name, each.severity) for each in suite.rows] == [
            ("not_null(sold_at)", "fail"),
            ("not_null(sale_id)", "fail"),
            ("between(quantity, 1..)", "warn"),
        ]
        described = [each.description for each in expectation_suite(suite.table, suite.rows).expectations]
        assert described[2] == "between(quantity, 1..): `quantity` >= 1"

    def test_heartbeats_are_no_rows(self, lake):
        columns = {"sale_id": [None, "a"], "quantity": [1, 1], "sold_at": pa.array([NOON, NOON], TIME)}
        write(lake, "bronze.sales", pa.table(columns | {"_heartbeat": [True, False]}))
        found = check(lake, an_ingest(rules=(NotNull("sale_id"),)), no_spark)
        assert (found.rows, found.broken) == (1, ())


class TestTables:
    def test_keys_that_occur_twice_are_found_in_old_rows_too(self, lake):
        write(lake, "gold.hourly_sales", sales(("a", 1), (None, 1)))
        key = Unique("window_start", "product_id")
        assert one(lake, key).success
        write(lake, "gold.hourly_sales", sales(("a", 2), ("b", 1), (None, 3)))
        found = one(lake, key)
        assert (found.success, found.unexpected_count, found.rows) == (False, 2, 3)
        assert {sample["product_id"] for sample in found.samples} == {"a", None}

    def test_what_refers_to_nothing_is_counted(self, lake):
        write(lake, "gold.hourly_sales", sales(("a", 1), ("b", 1), ("c", 1), ("c", 2), (None, 1)))
        write(lake, "silver.products", {"product": ["a", "b"]})
        found = one(lake, Referential("product_id", "silver.products", "product"))
        assert (found.success, found.unexpected_count) == (False, 2)
        assert [dict(sample) for sample in found.samples] == [{"product_id": "c"}]

    def test_columns_of_other_types_cannot_be_compared_and_the_others_are(self, lake):
        write(lake, "gold.hourly_sales", sales(("a", 1), ("7", 2)))
        write(lake, "silver.products", {"product": [7, 8]})
        refers = Referential("product_id", "silver.products", "product")
        results = {each.expectation: each for each in looked(lake, with_(refers, Between("units", min=2))).results}
        assert "'product_id' is STRING and 'product' is BIGINT" in results[refers.name].observed
        assert not results[refers.name].success
        assert results["between(units, 2..)"].unexpected_count == 1

    def test_columns_of_one_type_are_compared_whatever_it_is(self, lake):
        sold = sales(("a", 1), ("b", 1))
        keys = pa.array([b"a", b"b"])
        write(lake, "gold.hourly_sales", sold.set_column(sold.column_names.index("product_id"), "product_id", keys))
        write(lake, "silver.products", {"product": [b"a"]})
        assert one(lake, Referential("product_id", "silver.products", "product")).unexpected_count == 1

    def test_a_query_may_end_in_a_comment(self, lake):
        write(lake, "gold.hourly_sales", sales(("a", 1), ("b", 9)))
        many = CustomSql("few", "SELECT * FROM gold.hourly_sales WHERE units > 5 -- more than anybody buys")
        assert one(lake, many).unexpected_count == 1

    def test_the_newest_window_must_be_young_enough(self, lake):
        write(lake, "gold.hourly_sales", sales(("a", 1), at=-3))
        assert not one(lake, Fresh("2 hours 59 minutes")).success
        found = one(lake, Fresh("4 hours"))
        assert found.success
        assert "newest window_end: 2026-03-01 10:00:00 UTC, 3 hours ago" in found.observed

    @pytest.mark.parametrize(("rows", "success"), [(1, False), (2, True), (8, True), (9, False)])
    def test_the_newest_whole_interval_has_about_as_many_rows_as_those_before(self, lake, rows, success):
        # Four an hour, and in one hour none; the interval that has begun does not count.
        for at, count in ((-6, 4), (-5, 4), (-3, 4), (-2, 4), (-1, rows), (0, 1)):
            write(lake, "gold.hourly_sales", sales(*[("a", 1)] * count, at=at - 0.5))
        found = one(lake, Volume("1 hour", min_share=0.5, max_share=2, intervals=5))
        assert (found.success, found.observed.split(" rows")[0]) == (success, str(rows))
        assert "the median of 5 before is 4" in found.observed

    @pytest.mark.parametrize(("rows", "success"), [(1, False), (2, True), (8, True), (9, False)])
    def test_it_is_compared_with_the_same_hour_of_the_weeks_before(self, lake, rows, success):
        # The hours directly before are busy: they say nothing of this one.
        weeks = [(-1 - 168 * week, 4) for week in (1, 2, 3)]
        for at, count in (*weeks, (-4, 40), (-3, 40), (-2, 40), (-1, rows), (0, 1)):
            write(lake, "gold.hourly_sales", sales(*[("a", 1)] * count, at=at - 0.5))
        expected = Volume("1 hour", min_share=0.5, max_share=2, every="7 days", intervals=3)
        found = one(lake, expected)
        assert (found.success, found.observed.split(" rows")[0]) == (success, str(rows))
        assert "the median of 3 before, 1 week apart, is 4" in found.observed
        assert found.expectation == "volume(1 hour every 1 week, 0.5..2)"

    def test_a_volume_is_not_judged_before_there_is_something_to_compare_with(self, lake):
        write(lake, "gold.hourly_sales", sales(("a", 1)))
        assert one(lake, Volume("1 hour", min_share=0.5)).success

    @pytest.mark.parametrize(("on_time", "success"), [(2, True), (1, False)])
    def test_the_ledger_must_balance(self, lake, on_time, success):
        definition = an_ingest(expectations=(Conservation(),))
        begin_epoch(lake, definition, 1)
        columns = {"sale_id": ["a", "b"], "sold_at": pa.array([NOON, NOON], TIME), "_heartbeat": [False, False]}
        entry = a_batch(2, on_time=on_time, rows=2)
        write(
            lake,
            "bronze.sales",
            pa.table(columns | {"quantity": pa.array([1, 1], pa.int32())}),
            stamp=a_stamp(pipeline=definition.name, rows=2, ledger=entry),
        )
        write(lake, "bronze.sales__quarantine", {"reason": ["a"], "_epoch": [0]})
        result = check(lake, definition, no_spark).results[-1]
        assert (result.expectation, result.success) == ("conservation", success)

    def test_a_query_gives_the_rows_that_are_wrong(self, lake):
        write(lake, "gold.hourly_sales", sales(*ROWS))
        found = one(lake, CustomSql("too few", "SELECT product_id, units FROM gold.hourly_sales WHERE units < 5;"))
        assert (found.success, found.unexpected_count) == (False, 2)
        assert {sample["units"] for sample in found.samples} == {"1", "-2"}


class TestWhatIsNew:
    RULE = Between("units", min=1)

    def test_a_check_looks_at_what_was_added_since_the_one_before(self, lake):
        definition = with_(self.RULE)
        write(lake, "gold.hourly_sales", sales(("a", 0), ("b", 1)))
        assert looked(lake, definition).results[0].unexpected_count == 1
        nothing = looked(lake, definition)
        assert (nothing.rows, nothing.results, nothing.left_out) == (0, (), (self.RULE.name,))
        write(lake, "gold.hourly_sales", sales(("c", 1)))
        found = looked(lake, definition)
        assert (found.rows, found.broken, found.since, found.upto.version) == (1, (), quality.CheckPosition(0), 1)
        assert looked(lake, definition, all_rows=True).results[0].unexpected_count == 1

    def test_what_a_compaction_wrote_again_is_not_new(self, lake):
        definition = with_(self.RULE)
        write(lake, "gold.hourly_sales", sales(("a", 0)))
        looked(lake, definition)
        write(lake, "gold.hourly_sales", sales(("b", 0), ("c", 1)))
        table = DeltaTable(lake.table_uri("gold.hourly_sales"))
        table.optimize.compact()
        found = looked(lake, definition)
        assert (found.rows, found.results[0].unexpected_count) == (2, 1)

    def test_rows_whose_files_are_gone_are_looked_for_among_all(self, lake):
        definition = with_(self.RULE)
        write(lake, "gold.hourly_sales", sales(("a", 0)))
        looked(lake, definition)
        write(lake, "gold.hourly_sales", sales(("b", 0), ("c", 1)))
        table = DeltaTable(lake.table_uri("gold.hourly_sales"))
        table.optimize.compact()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        found = looked(lake, definition)
        assert (found.rows, found.results[0].unexpected_count, found.since) == (3, 2, None)

    def test_rows_that_change_are_looked_at_once_they_are_final(self, lake):
        definition = with_(self.RULE, sink=Sink("gold.live", mode="update"))

        def revised(*rows: tuple[str, int], at: float) -> None:
            found = sales(*rows, at=at)
            write(lake, "gold.live", found.append_column("final_after", found["window_end"]))

        def passed(at: float) -> None:
            engine_ms = int(hour(at).timestamp() * 1000)
            watermarks.publish(
                lake, pipeline=definition.name, table="gold.live", engine_ms=engine_ms, grace_ms=0, epoch=1, batch_id=0
            )

        revised(("a", 0), at=0)
        assert looked(lake, definition).rows == 0
        passed(0.5)
        revised(("a", 0), ("b", 0), at=1)
        assert looked(lake, definition).rows == 0
        passed(1)
        assert (first := looked(lake, definition)).rows == 1
        assert first.results[0].unexpected_count == 1
        passed(2)
        revised(("c", 0), at=0)  # a backfill
        revised(("d", 0), at=2)
        assert looked(lake, definition).rows == 3
        assert looked(lake, definition).rows == 0
        assert looked(lake, definition, all_rows=True).rows == 4

    def test_an_empty_table_has_nothing_to_check(self, lake):
        write(lake, "gold.hourly_sales", sales())
        found = looked(lake, with_(self.RULE, Unique("product_id")))
        assert (found.rows, found.results, found.left_out) == (0, (), (self.RULE.name, "unique(product_id)"))


class TestBadInput:
    def test_a_table_that_is_not_there(self, lake):
        with pytest.raises(MissingTableError, match=r"hourly_sales: not in the lake .* tidemark run hourly_sales"):
            check(lake, with_(NotNull("units")), no_spark)

    def test_a_column_that_is_gone_is_told_and_the_others_are_checked(self, lake):
        write(lake, "gold.hourly_sales", sales(*ROWS).drop_columns(["product_id"]))
        gone, known, unique = sorted(
            looked(lake, with_(NotNull("product_id"), NotNull("units"), Unique("product_id"))).results,
            key=lambda each: each.expectation,
        )
        assert (gone.success, known.unexpected_count, unique.success) == (False, 1, False)
        for each in (gone, unique):
            assert "cannot be checked: gold.hourly_sales has no column 'product_id'" in each.observed

    def test_a_type_that_a_rule_cannot_compare(self, lake):
        write(lake, "gold.hourly_sales", sales(*ROWS).set_column(3, "units", pa.array(["1"] * len(ROWS))))
        found = one(lake, Between("units", min=1))
        assert not found.success
        assert "it compares numbers, but 'units' is STRING: use Satisfies" in found.observed

    def test_a_table_that_is_referred_to_and_not_there(self, lake):
        write(lake, "gold.hourly_sales", sales(*ROWS))
        found = one(lake, Referential("product_id", "silver.products"))
        assert (found.success, "silver.products: not in the lake" in found.observed) == (False, True)


class TestPersonalColumns:
    SECRET = "ada@example.org"

    def test_their_values_are_in_no_result_and_no_report(self, lake):
        write(lake, "gold.hourly_sales", sales((self.SECRET, 0), (self.SECRET, 1)))
        definition = with_(
            Matches("product_id", "[a-z]+"),
            Satisfies("both", "units > 0 AND product_id <> 'x'"),
            Unique("product_id"),
            Referential("product_id", "gold.hourly_sales", "product_id", severity="warn"),
            CustomSql("renamed", "SELECT upper(product_id) AS shown, units FROM gold.hourly_sales"),
            CustomSql("whole", "SELECT h FROM gold.hourly_sales h"),
            CustomSql("starred", "SELECT * FROM gold.hourly_sales"),
            personal=("product_id",),
        )
        found = looked(lake, definition)
        assert len(found.broken) == 6
        publish_pages(lake, definition, {})
        written = json.dumps(run(lake, "SELECT * FROM ops.quality")[1], default=str, ensure_ascii=False)
        written += (Path(lake.uri) / page_path("gold.hourly_sales")).read_text()
        assert self.SECRET.casefold() not in written.casefold()
        assert MASK in written

    def test_late_events_are_shown_without_them(self, lake):
        missed = [{"window_start": NOON, "window_end": hour(1)}]
        window = pa.struct([("window_start", TIME), ("window_end", TIME)])
        late = {
            "_event_id": ["e0"],
            "sold_at": pa.array([NOON], TIME),
            "product_id": [self.SECRET],
            "missed_windows": pa.array([missed], pa.list_(window)),
            "partly_late": [False],
            "late_by_ms": [7000],
            "_epoch": [1],
            "_batch_id": [0],
        }
        write(lake, "gold.hourly_sales__late", late)
        for personal, shown in (((), self.SECRET), (("product_id",), MASK)):
            console = Console(record=True, width=200, file=StringIO())
            print_late(console, lake, with_(personal=personal), 20)
            told = console.export_text()
            assert shown in told
            assert (self.SECRET in told) == (not personal)


class TestCommand:
    PIPELINE = """
from spark_jobs.spec import *
mine = Pipeline(
    name="hourly_sales", source=Table("bronze.sales"), event_time="sold_at", watermark=Watermark(delay="2 minutes"),
    steps=(Aggregate(window=Tumbling("1 hour"), by=("product_id",), measures={"units": "sum(quantity)"}),),
    sink=Sink("gold.hourly_sales"),
    expectations=(Between("units", min=1, severity="SEVERITY"), NotNull("units")),
)
"""

    @pytest.mark.parametrize(("severity", "code", "mark"), [("fail", 1, "BROKEN"), ("warn", 0, "warn")])
    def test_it_tells_what_is_broken_and_fails_by_severity(self, lake, tmp_path, severity, code, mark):
        write(lake, "gold.hourly_sales", sales(("a", 0), ("b", 1)))
        file = tmp_path / "mine.py"
        file.write_text(self.PIPELINE.replace("SEVERITY", severity))
        done = CliRunner().invoke(app, ["check", str(file), "--lake", lake.uri])
        assert done.exit_code == code, done.output
        assert re.search(rf'{mark} +between.units, 1...: 1 of 2 rows break it\n +."units": "0"', done.output)
        assert "ok     not_null(units): 0 of 2 rows break it" in done.output
        assert ("is not as expected: between(units, 1..)" in done.output) == (code == 1)
        page = (Path(lake.uri) / page_path("gold.hourly_sales")).read_text()
        assert ("broken (warning)" in page) == (severity == "warn")
        assert f"  report {lake.path(page_path('gold.hourly_sales'))}\n" in done.output
        assert "link" not in done.output
        again = CliRunner().invoke(app, ["check", str(file), "--lake", lake.uri])
        assert (again.exit_code, "nothing new to check" in again.output) == (0, True)

    def test_in_airflow_it_tells_where_a_browser_opens_the_page(self, lake, tmp_path, monkeypatch):
        write(lake, "gold.hourly_sales", sales(("a", 1)))
        file = tmp_path / "mine.py"
        file.write_text(self.PIPELINE.replace("SEVERITY", "fail"))
        monkeypatch.setenv("TIDEMARK_PAGES_URL", "http://localhost:8080/tidemark/tables")
        done = CliRunner().invoke(app, ["check", str(file), "--lake", lake.uri])
        page = "http://localhost:8080/tidemark/tables/gold.hourly_sales/index.html"
        assert done.output.endswith(
            f"  report {lake.path(page_path('gold.hourly_sales'))}\n  link, with a login to Airflow: {page}\n"
        )

    def test_the_monitor_alerts_until_a_check_of_newer_rows_finds_nothing(self, lake, tmp_path):
        file = tmp_path / "mine.py"
        file.write_text(self.PIPELINE.replace("SEVERITY", "fail"))
        deploy(lake, load_file(file))

        def told():
            seen = monitor.look(lake, now=datetime.now(UTC))
            monitor.mark_reported(lake, seen)
            return [(each.began, each.message) for each in seen.changes if each.kind == "broken-expectation"]

        def check_again():
            return CliRunner().invoke(app, ["check", str(file), "--lake", lake.uri]).exit_code

        write(lake, "gold.hourly_sales", sales(("a", 1)))
        assert (check_again(), told()) == (0, [])
        write(lake, "gold.hourly_sales", sales(("b", 0)))
        assert check_again() == 1
        ((began, message),) = told()
        assert began
        assert message.startswith("gold.hourly_sales is not as expected: between(units, 1..): 1 of 1 rows break it.")
        # Nothing new has come, so nothing has become right.
        assert (check_again(), told()) == (0, [])
        write(lake, "gold.hourly_sales", sales(("c", 2)))
        assert check_again() == 0
        assert [began for began, _ in told()] == [False]

    def test_a_lake_without_such_tables(self, lake):
        begin_epoch(lake, a_pipeline(name="of_a_file"), 1)
        done = CliRunner().invoke(app, ["check", "--lake", lake.uri])
        assert (done.exit_code, "no tables with expectations yet" in done.output) == (0, True)
