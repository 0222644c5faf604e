"""The shop's pipelines on the simulator's streams, with late events, copies and bad rows: against DuckDB over bronze.

Each query is written apart from the pipeline. What the stream has judged late is left out of it, by the event's number.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.backfill import execute as backfill
from spark_jobs.operations.backfill.plan import plan_backfill
from spark_jobs.operations.repair import execute as repair
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.pipelines import registry
from spark_jobs.pipelines._registry import with_sources
from spark_jobs.plan.logical import build
from spark_jobs.plan.operators import AsStreamed
from spark_jobs.simulator import Disorder, Shop, simulate_files
from spark_jobs.spec import Files, Ingest, Pipeline
from tests.support import lakes

pytestmark = pytest.mark.usefixtures("divided")

STREAMS = ("sales", "clicks", "orders", "order_payments", "products", "customers", "readings")
# Late by up to all of the day: three batches of each table are enough for late events.
DISORDER = Disorder(disorder=0.3, late=0.15, late_by="12 hours", duplicates=0.05, malformed=0.01, future=0)
BEGIN, END = datetime(2026, 2, 28, tzinfo=UTC), datetime(2026, 3, 5, tzinfo=UTC)
REVISED = {"revision", "revised_at", "final_after"}

ON_TIME = "NOT _heartbeat AND _ingest_seq NOT IN (SELECT _ingest_seq FROM late)"
TOP_TEN = (
    "SELECT window_start, product_id, units, revenue FROM result ORDER BY ALL",
    "FROM (SELECT time_bucket(INTERVAL 1 HOUR, sold_at) AS s, product_id, sum(quantity) AS units, "
    f"sum(quantity * unit_price) FROM bronze_sales WHERE {ON_TIME} GROUP BY ALL) "
    "QUALIFY row_number() OVER (PARTITION BY s ORDER BY units DESC, product_id) <= 10 ORDER BY ALL",
)
SOLD = (
    "SELECT s._ingest_seq, s.sold_at, s.quantity, s.unit_price, p.category, "
    "time_bucket(INTERVAL 5 MINUTE, s.sold_at) AS last_start "
    "FROM bronze_sales s LEFT JOIN silver_products p USING (product_id) WHERE NOT s._heartbeat"
)
PAIRS = (
    "SELECT unnest(generate_series(last_start - INTERVAL 10 MINUTE, last_start, INTERVAL 5 MINUTE)) "
    f"AS window_start, _ingest_seq, category, quantity, quantity * unit_price AS revenue FROM ({SOLD})"
)
MISSED = "SELECT _ingest_seq, unnest(missed_windows).window_start AS window_start FROM late"
OF_SIDE = (
    "SELECT * FROM {} x WHERE NOT _heartbeat AND NOT EXISTS (FROM late l WHERE l._side = '{}' "
    "AND l._ingest_seq = x._ingest_seq)"
)
ORDERS, PAYMENTS = OF_SIDE.format("bronze_orders", "left"), OF_SIDE.format("bronze_order_payments", "right")

ANSWERS = {
    "machine_spikes": (
        "SELECT _ingest_seq FROM result ORDER BY ALL",
        "SELECT _ingest_seq FROM bronze_readings WHERE NOT _heartbeat "
        "AND (temperature >= 100 OR vibration >= 10 OR pressure >= 10) ORDER BY ALL",
    ),
    "unique_events": (
        "SELECT _event_id FROM result ORDER BY ALL",
        f"SELECT DISTINCT _event_id FROM bronze_clicks WHERE {ON_TIME} ORDER BY ALL",
    ),
    "user_activity": (
        "SELECT window_start, user_id, events FROM result ORDER BY ALL",
        "SELECT time_bucket(INTERVAL 5 MINUTE, clicked_at), user_id, count(*) FROM bronze_clicks "
        f"WHERE {ON_TIME} GROUP BY ALL ORDER BY ALL",
    ),
    "top_products": TOP_TEN,
    "top_products_live": TOP_TEN,
    "valid_orders": (
        "SELECT window_start, customer_id, country, orders, amount FROM result ORDER BY ALL",
        "SELECT time_bucket(INTERVAL 1 MINUTE, ordered_at), o.customer_id, c.country, count(*), sum(amount) "
        f"FROM bronze_orders o JOIN silver_customers c USING (customer_id) WHERE amount > 0 AND {ON_TIME} "
        "GROUP BY ALL ORDER BY ALL",
    ),
    "rolling_sales": (
        "SELECT window_start, category, units, revenue FROM result ORDER BY ALL",
        f"SELECT window_start, category, sum(quantity), sum(revenue) FROM ({PAIRS}) "
        f"ANTI JOIN ({MISSED}) USING (_ingest_seq, window_start) GROUP BY ALL ORDER BY ALL",
    ),
    "order_payments": (
        "SELECT _ingest_seq, _other_ingest_seq FROM result ORDER BY ALL",
        f"SELECT o._ingest_seq, p._ingest_seq FROM ({ORDERS}) o FULL JOIN ({PAYMENTS}) p ON o.order_id = p.order_id "
        "AND p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL 1 HOUR ORDER BY ALL",
    ),
}
"""Pipeline -> what is read of its result, and what that must be."""

SESSIONS = (
    "SELECT user_id, session_start, session_end, event_count FROM result ORDER BY ALL",
    "SELECT user_id, min(clicked_at), max(clicked_at), count(*) FROM (SELECT *, count(*) FILTER (begins) "
    "OVER (PARTITION BY user_id ORDER BY clicked_at) AS number FROM (SELECT *, coalesce(clicked_at > lag(clicked_at) "
    "OVER (PARTITION BY user_id ORDER BY clicked_at) + INTERVAL 30 MINUTE, true) AS begins FROM bronze_clicks "
    "WHERE NOT _heartbeat)) GROUP BY user_id, number ORDER BY ALL",
)
"""The same over all events: which the late ones are of a session depends on the batches."""

COMPUTED_AGAIN = {**ANSWERS, "page_sessions": SESSIONS}

ELSEWHERE = {
    **dict.fromkeys(
        (
            "account_balances",
            "cafe_service",
            "card_fraud",
            "machine_health",
            "machine_readings",
            "personal_offers",
            "ride_matching",
            "service_errors",
            "service_incidents",
            "shipment_orders",
            "stock_averages",
            "tumbling_by_hand",
            "unique_transfers",
        ),
        "tests/spark/test_keyed_pipelines.py",
    ),
    "cafe_visits": "tests/spark/test_cafe.py",
    "cafe_spending": "tests/spark/test_cafe.py",
    "ingest_time_activity": "tests/spark/test_ingest_time.py",
    "ingest_time_difference": "tests/spark/test_ingest_time.py",
}
"""Pipelines that have a lake of their own: days pass in it, it has other streams, or it says when events arrived."""


VARIANTS = {
    "machine_spikes": "tests/spark/test_backfill_steps.py::test_rows_of_single_events_come_back_and_the_stream_goes_on",
    "order_payments": "tests/spark/test_join.py::test_every_event_of_both_sides_is_matched_alone_or_late",
    "top_products": "[top_products_live]",
    "user_activity": "[rolling_sales]",
    "valid_orders": "[rolling_sales]; events without a row in the lookup: tests/spark/test_enrich.py",
    "unique_events": "tests/spark/test_deduplicate.py::test_batches_and_their_watermarks_tell_what_was_a_duplicate",
}
"""Pipelines that run in `make long` only -> what asks the same of the step that they have."""
BATCHES = {"bronze.sales": 3, "bronze.clicks": 3, "bronze.orders": 3, "bronze.order_payments": 3}
"""So many of each table that is read with a watermark: an event can be late from the third one on."""


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Lake:
    """A lake in which all of them have run that are asked for."""
    lake = Lake(str(tmp_path_factory.mktemp("shop"))).ensure_exists()
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    simulate_files(
        Shop(
            seed=5,
            start=start,
            rate=None,
            density=0.075,
            reading_every=timedelta(minutes=2),
            streams=STREAMS,
            disorder=DISORDER,
        ),
        out=f"{lake.uri}/landing",
        rows=4_000,
        rows_per_file=20,
    )
    # A day later, in order: all that is late can be counted by then, whatever it waits for.
    simulate_files(
        Shop(
            seed=5,
            start=start + timedelta(days=1),
            rate=None,
            reading_every=timedelta(minutes=2),
            streams=STREAMS,
            disorder=Disorder.none(),
        ),
        out=f"{lake.uri}/landing",
        rows=600,
        rows_per_file=600,
    )
    here = (item for item in request.session.items if item.path == request.path)
    names = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    definitions = with_sources(registry()[name] for name in COMPUTED_AGAIN if name in names)
    lakes.run_all(spark, lake, [_in_batches(each, lake) for each in definitions], close=True)
    return lake


def _in_batches(definition: Any, lake: Lake) -> Any:
    """Few batches, each of many files or of one commit of bronze."""
    if isinstance(definition, Ingest) and isinstance(definition.source, Files):
        files = len(list(Path(lake.path(definition.source.path)).iterdir()))
        each = -(-files // BATCHES.get(definition.sink.table, 1))
        return definition.model_copy(
            update={"source": definition.source.model_copy(update={"max_files_per_trigger": each})}
        )
    return lakes.one_file_a_batch(definition) if isinstance(definition, Pipeline) else definition


def answers(lake: Lake, pipeline: str, sql: str, *, all_events: bool = False) -> list[tuple[Any, ...]]:
    """A query over the tables of the lake, and `late`: the pipeline's late events, or none where all are to count."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        plan = build(registry()[pipeline])
        names = {"result": plan.result.name, **{table.name.replace(".", "_"): table.name for table in plan.reads}}
        names |= {step.table.replace(".", "_"): step.table for step in plan.lookups}
        for alias, name in names.items():
            connection.register(alias, open_table(lake, name).to_pyarrow_table())
        if (late := plan.table("late")) is not None:
            found = open_table(lake, late.name).to_pyarrow_table()
            connection.register("late", found.slice(0, 0) if all_events else found)
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in VARIANTS else name for name in ANSWERS]
)
def test_results_are_those_of_the_events_that_came_in_time(shop: Lake, name: str) -> None:
    found, expected = (answers(shop, name, sql) for sql in ANSWERS[name])
    assert found
    assert found == expected
    lakes.assert_balanced(shop, _in_batches(registry()[name], shop))


# tests/spark/test_join.py::test_every_event_of_both_sides_is_matched_alone_or_late
@pytest.mark.long
@pytest.mark.parametrize("name", ["order_payments"])
def test_orders_and_payments_are_matched_and_alone(shop: Lake, name: str) -> None:
    sides = dict(answers(shop, name, "SELECT _side, count(*) FROM result GROUP BY ALL"))
    assert sides.keys() == {"both", "left", "right"}


def test_every_pipeline_that_may_be_backfilled_is_here() -> None:
    definitions = (each for each in registry().values() if isinstance(each, Pipeline))
    assert COMPUTED_AGAIN.keys() | ELSEWHERE.keys() == {
        each.name for each in definitions if build(each).as_streamed is not AsStreamed.REFUSED
    }


@pytest.fixture(scope="module")
def computed_again(shop: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The lake again, for backfills; each test changes the tables of its own pipeline only."""
    copy = tmp_path_factory.mktemp("again")
    shutil.copytree(shop.uri, copy, dirs_exist_ok=True)
    return Lake(str(copy))


# Of what they are made of, these ask:
#
# - windows: tests/spark/test_backfill.py::test_a_stream_goes_on_after_a_repair_and_the_next_one_counts_the_rest
# - rankings: tests/spark/test_backfill.py::test_where_another_writer_is_always_faster_both_are_named
# - first events: tests/spark/test_deduplicate.py::test_batches_and_their_watermarks_tell_what_was_a_duplicate
# - sessions: tests/spark/test_backfill_steps.py::test_late_events_draw_sessions_together
# - joins: tests/spark/test_backfill_steps.py::test_late_events_of_both_sides_of_a_join_are_repaired
# - lookups: tests/spark/test_backfill_steps.py::test_events_are_looked_up_in_the_versions_that_the_stream_has_taken
# - single events: tests/spark/test_backfill_steps.py::test_rows_of_single_events_come_back_and_the_stream_goes_on
@pytest.mark.long
@pytest.mark.parametrize("name", COMPUTED_AGAIN)
def test_repairs_and_backfills_of_shop_pipelines_count_all_events(
    spark: SparkSession, computed_again: Lake, name: str
) -> None:
    lake, definition = computed_again, _in_batches(registry()[name], computed_again)

    def result() -> list[str]:
        rows = lakes.rows(lake, definition.sink.table)
        return sorted(repr({column: row[column] for column in row.keys() - REVISED}) for row in rows)

    streamed, has_late = result(), build(definition).table("late") is not None
    found, expected = COMPUTED_AGAIN[name]

    def assert_all_events() -> None:
        assert answers(lake, name, found) == answers(lake, name, expected, all_events=True)
        assert (result() != streamed) is has_late, "late events matter"
        lakes.assert_balanced(lake, definition)

    if has_late:
        target, repairs = plan_repair(lake, definition)
        assert repairs.late > 0
        done = repair.execute(spark, target, repairs)
        assert done.repaired == len(lakes.rows(lake, f"{definition.sink.table}__late"))
        assert_all_events()
    target, plan = plan_backfill(lake, definition, BEGIN, END, mode="as-streamed", force=True)
    backfill.execute(spark, target, plan)
    assert result() == streamed
    lakes.assert_balanced(lake, definition)
    if has_late:
        # A backfill gives what the repair gave: tests/spark/test_backfill.py.
        return
    target, plan = plan_backfill(lake, definition, BEGIN, END, force=True)
    backfill.execute(spark, target, plan)
    assert_all_events()
