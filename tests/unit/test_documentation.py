"""Pages about tables, lineage and proposals from data; what must come out is worked out by hand."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.documentation.places import index_path, page_path
from spark_jobs.documentation.publishing import publish_all
from spark_jobs.documentation.tables import documents
from spark_jobs.lake import Lake
from spark_jobs.pipelines import registry
from spark_jobs.plan.lineage import known_columns, lineage
from spark_jobs.quality.profiling import profile, rounded, row_proposals, table_proposals
from spark_jobs.spec import Aggregate, Enrich, Join, NotNull, Select, Table, TopN, Tumbling, Union
from tests.support.builders import a_lake, a_pipeline, an_ingest, write
from tests.unit.test_quality import NOON, TIME, looked, sales

COLUMNS = {"sale_id": "STRING", "product_id": "STRING", "quantity": "INT", "unit_price": "INT", "sold_at": "TIMESTAMP"}
KNOWN = {"bronze.sales": tuple(COLUMNS)}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return a_lake(tmp_path / "lake")


class TestLineage:
    """The origins of each column, by reading the definition."""

    def test_of_measures_keys_windows_and_ranks(self):
        pipeline = a_pipeline(
            steps=(
                Select(columns={"amount": "quantity * unit_price"}),
                Aggregate(
                    window=Tumbling("1 hour"), by=("product_id",), measures={"revenue": "sum(amount)", "n": "count(*)"}
                ),
                Select(columns={"mean": "revenue / n"}),
                TopN(3, order_by="revenue DESC"),
            )
        )
        assert lineage(pipeline, KNOWN) == {
            "window_start": {"bronze.sales.sold_at"},
            "window_end": {"bronze.sales.sold_at"},
            "product_id": {"bronze.sales.product_id"},
            "revenue": {"bronze.sales.quantity", "bronze.sales.unit_price"},
            "n": frozenset(),
            "mean": {"bronze.sales.quantity", "bronze.sales.unit_price"},
            "rank": {"bronze.sales.quantity", "bronze.sales.unit_price"},
        }

    def test_of_what_is_looked_up_joined_and_put_together(self):
        looked_up = Enrich("silver.products", on=("product_id",), columns={"kind": "category"})
        joined = Join(
            Table("bronze.visits", select={"product_id": "what", "seen_at": "coalesce(a, b)"}),
            on=("product_id",),
            event_time="seen_at",
            within="1 hour",
        )
        pipeline = a_pipeline(steps=(looked_up, joined))
        found = lineage(pipeline, KNOWN)
        assert found["kind"] == {"silver.products.category"}
        assert found["seen_at"] == {"bronze.visits.a", "bronze.visits.b"}
        assert found["quantity"] == {"bronze.sales.quantity"}
        both = Union(
            Table("bronze.a", select={"sold_at": "t", "v": "x + y"}),
            Table("bronze.b", select={"sold_at": "t", "v": "z"}),
        )
        united = a_pipeline(source=both, steps=(Aggregate(window=Tumbling("1 hour"), measures={"v": "max(v)"}),))
        assert lineage(united, {})["v"] == {"bronze.a.x", "bronze.a.y", "bronze.b.z"}

    @pytest.mark.parametrize("name", [name for name, each in registry().items() if each.kind == "pipeline"])
    def test_every_column_of_a_registered_pipeline_that_is_no_count_has_one(self, name):
        known = registry()
        found = lineage(known[name], known_columns(known))
        assert {column for column, origins in found.items() if not origins} <= {
            "sales",
            "visits",
            "orders",
            "events",
            "event_count",
            "requests",
            "transfers",
        }


class TestPages:
    def published(self, lake: Lake, *definitions: Any) -> dict[str, str]:
        known = {each.name: each for each in definitions}
        address = publish_all(lake, definitions, known)
        assert address.endswith(index_path())
        paths = Path(lake.uri).glob("_docs/*/index.html")
        return {path.parent.name: path.read_text() for path in paths} | {
            "": (Path(lake.uri) / index_path()).read_text()
        }

    def test_they_say_what_columns_mean_and_where_they_come_from(self, lake):
        ingest = an_ingest(
            columns=COLUMNS,
            column_descriptions={"quantity": "Units sold.", "product_id": "Which <product>."},
            owner="shop",
        )
        pipeline = a_pipeline(
            description="Units of each hour. More.", column_descriptions={"units": "Units of the hour."}
        )
        write(lake, "gold.hourly_sales", sales(("apple", 1)))
        pages = self.published(lake, ingest, pipeline)
        page = pages["gold.hourly_sales"]
        row = next(line for line in page.splitlines() if "<code>units</code>" in line)
        assert re.findall(r"<td>(.*?)</td>", row) == [
            "<code>units</code>",
            "long",
            "Units of the hour.",
            "<code>bronze.sales.quantity</code>",
        ]
        # Passed on as it is, with the words of the ingest.
        assert "Which &lt;product&gt;." in page
        assert "First instant of the window, UTC." in page
        assert '<a href="../bronze.sales/index.html">bronze.sales</a>' in page
        assert 'Read by</td><td><a href="../gold.hourly_sales/index.html">' in pages["bronze.sales"]
        assert "Not in the lake yet." in pages["bronze.sales"]
        assert "Units of each hour.</td>" in pages[""]
        assert pages.keys() == {
            "",
            "bronze.sales",
            "bronze.sales__quarantine",
            "gold.hourly_sales",
            "gold.hourly_sales__late",
        }

    def test_they_show_the_newest_result_of_each_expectation(self, lake):
        definition = a_pipeline(expectations=(NotNull("product_id"), NotNull("units", severity="warn")))
        write(lake, "gold.hourly_sales", sales(("apple", 1), (None, 2)))
        looked(lake, definition)
        pages = self.published(lake, definition)
        assert "2 expectations, 1 broken." in pages["gold.hourly_sales"]
        assert "1 of 2 broken" in pages[""]

    def test_a_command_writes_them(self, lake):
        done = CliRunner().invoke(app, ["docs", "top_products", "--lake", lake.uri])
        assert (done.exit_code, index_path() in done.output) == (0, True)
        assert (Path(lake.uri) / page_path("gold.top_products__late")).exists()

    def test_personal_columns_are_marked(self, lake):
        ingest = an_ingest(columns=COLUMNS, personal=("product_id",))
        (bronze, *_) = documents(lake, ingest, {ingest.name: ingest})
        assert [each.name for each in bronze.columns if each.personal] == ["product_id"]


class TestProfile:
    def test_it_tells_of_each_column_and_proposes_what_its_rows_satisfy(self, lake):
        rows = 100
        times = pa.array([NOON + timedelta(minutes=15 * n) for n in range(rows)], TIME)
        write(
            lake,
            "bronze.sales",
            {
                "sale_id": [f"s{n}" for n in range(rows)],
                "kind": ["a" if n % 2 else 'b"' for n in range(rows)],
                "quantity": pa.array([None if n == 7 else n for n in range(rows)], pa.int32()),
                "unit_price": pa.array([1.234 + n for n in range(rows)], pa.float64()),
                "secret": [f"x{n % 3}" for n in range(rows)],
                "sold_at": times,
                "_ingest_seq": list(range(rows)),
                "_heartbeat": [False] * rows,
            },
        )
        found = profile(lake, "bronze.sales", event_time="sold_at", keys=[("sale_id",)])
        assert (found.rows, found.key) == (rows, ("sale_id",))
        assert [each.name for each in found.columns] == [
            "sale_id",
            "kind",
            "quantity",
            "unit_price",
            "secret",
            "sold_at",
        ]
        assert list(row_proposals(found, {"secret"})) == [
            'NotNull("sale_id"),',
            'NotNull("kind"),',
            """OneOf("kind", ("a", 'b"')),""",
            'NotNull("quantity", severity="warn"),  # 1 of 100 have none',
            'Between("quantity", min=0, max=99),  # seen: 0 to 99',
            'NotNull("unit_price"),',
            'Between("unit_price", min=1.2, max=110),  # seen: 1.234 to 100.234',
            'NotNull("secret"),',
            'NotNull("sold_at"),',
        ]
        # Four rows in each hour, every quarter of an hour.
        assert list(table_proposals(found, windowed=False)) == [
            'Unique("sale_id"),',
            'Fresh("30 minutes"),  # the longest time between two events: 0:15:00',
            'Volume("1 hour", min_share=0.5, max_share=2),  # seen: 1 to 1 of the median',
            "Conservation(),",
        ]

    def test_what_it_proposes_is_python_that_the_table_satisfies(self, lake):
        write(lake, "gold.hourly_sales", sales(*((f"p{n}", n) for n in range(5)), ("p9", 123456)))
        done = CliRunner().invoke(app, ["profile", "gold.hourly_sales", "--lake", lake.uri])
        assert done.exit_code == 0, done.output
        text = done.output[done.output.index("expectations=(") :]
        scope: dict[str, Any] = {}
        exec(f"from tidemark import *\n{text.strip().rstrip(',')}", scope)
        pasted = [each for each in scope["expectations"] if each.kind != "conservation" and each.kind != "fresh"]
        assert {each.name for each in pasted} >= {"not_null(units)", "between(units, 0..130000)"}
        assert not looked(lake, a_pipeline(expectations=tuple(pasted))).broken

    @pytest.mark.parametrize(
        ("value", "low", "high"), [(0, 0, 0), (7, 7, 7), (123, 120, 130), (-123, -130, -120), (0.0123, 0.012, 0.013)]
    )
    def test_bounds_have_two_digits_and_lie_outside(self, value, low, high):
        assert (rounded(value, up=False), rounded(value, up=True)) == (low, high)

    def test_a_table_without_rows_or_that_is_not_there(self, lake):
        write(lake, "gold.hourly_sales", sales())
        done = CliRunner().invoke(app, ["profile", "gold.hourly_sales", "--lake", lake.uri])
        assert (done.exit_code, "nothing to propose" in done.output) == (0, True)
        missing = CliRunner().invoke(app, ["profile", "gold.nothing", "--lake", lake.uri])
        assert missing.exit_code != 0
