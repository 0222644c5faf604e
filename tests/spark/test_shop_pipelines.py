"""The shop's pipelines on the simulator's streams, with late events, copies and bad rows: against DuckDB over bronze.

Each query is written apart from the pipeline. What the stream has judged late is left out of it, by the event's number.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables import open_table
from spark_jobs.pipelines import registry
from spark_jobs.pipelines._registry import with_sources
from spark_jobs.plan.logical import build
from spark_jobs.simulator import Disorder, Shop, simulate_files
from spark_jobs.spec import Files, Ingest, Pipeline
from tests import lakes

PIPELINES = ("machine_spikes", "unique_events", "valid_orders", "rolling_sales", "order_payments")
STREAMS = ("sales", "clicks", "orders", "order_payments", "products", "customers", "readings")
DISORDER = Disorder(disorder=0.3, late=0.02, duplicates=0.05, malformed=0.01, future=0.002)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake in which all of them have run, in several batches."""
    lake = Lake(str(tmp_path_factory.mktemp("shop"))).ensure_exists()
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    simulate_files(
        Shop(seed=5, start=start, rate=None, streams=STREAMS, disorder=DISORDER),
        out=f"{lake.uri}/landing",
        rows=30_000,
        rows_per_file=1_500,
    )
    definitions = with_sources(registry()[name] for name in PIPELINES)
    lakes.run_all(spark, lake, [_in_batches(each) for each in definitions], close=True)
    return lake


def _in_batches(definition: Any) -> Any:
    """Few files a batch, so that a watermark judges what comes later."""
    if isinstance(definition, Ingest) and isinstance(definition.source, Files):
        return definition.model_copy(
            update={"source": definition.source.model_copy(update={"max_files_per_trigger": 4})}
        )
    return lakes.one_file_a_batch(definition) if isinstance(definition, Pipeline) else definition


def answers(lake: Lake, pipeline: str, sql: str) -> list[tuple[Any, ...]]:
    """A query over the tables of the lake, and `late`: the numbers of the pipeline's late events."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        plan = build(registry()[pipeline])
        names = {"result": plan.result.name, **{table.name.replace(".", "_"): table.name for table in plan.reads}}
        names |= {step.table.replace(".", "_"): step.table for step in plan.lookups}
        if (late := plan.table("late")) is not None:
            names["late"] = late.name
        for alias, name in names.items():
            connection.register(alias, open_table(lake, name).to_pyarrow_table())
        return connection.execute(sql).fetchall()


def test_spikes_are_the_readings_that_are_far_off(shop: Lake) -> None:
    expected = answers(
        shop,
        "machine_spikes",
        "SELECT _ingest_seq FROM bronze_readings WHERE NOT _heartbeat "
        "AND (temperature >= 100 OR vibration >= 10 OR pressure >= 10) ORDER BY ALL",
    )
    assert expected
    assert answers(shop, "machine_spikes", "SELECT _ingest_seq FROM result ORDER BY ALL") == expected
    lakes.assert_balanced(shop, registry()["machine_spikes"])


def test_each_click_is_there_once(shop: Lake) -> None:
    expected = answers(
        shop,
        "unique_events",
        "SELECT DISTINCT _event_id FROM bronze_clicks WHERE NOT _heartbeat "
        "AND _ingest_seq NOT IN (SELECT _ingest_seq FROM late) ORDER BY ALL",
    )
    assert answers(shop, "unique_events", "SELECT _event_id FROM result ORDER BY ALL") == expected
    lakes.assert_balanced(shop, _in_batches(registry()["unique_events"]))


def test_valid_orders_are_counted_by_customer_and_minute(shop: Lake) -> None:
    expected = answers(
        shop,
        "valid_orders",
        "SELECT time_bucket(INTERVAL 1 MINUTE, ordered_at), o.customer_id, c.country, count(*), sum(amount) "
        "FROM bronze_orders o JOIN silver_customers c USING (customer_id) "
        "WHERE amount > 0 AND NOT _heartbeat AND _ingest_seq NOT IN (SELECT _ingest_seq FROM late) GROUP BY ALL "
        "ORDER BY ALL",
    )
    found = "SELECT window_start, customer_id, country, orders, amount FROM result ORDER BY ALL"
    assert answers(shop, "valid_orders", found) == expected
    lakes.assert_balanced(shop, _in_batches(registry()["valid_orders"]))


def test_rolling_sales_are_those_of_the_last_quarter_of_an_hour(shop: Lake) -> None:
    sold = (
        "SELECT s._ingest_seq, s.sold_at, s.quantity, s.unit_price, p.category, "
        "time_bucket(INTERVAL 5 MINUTE, s.sold_at) AS last_start "
        "FROM bronze_sales s LEFT JOIN silver_products p USING (product_id) WHERE NOT s._heartbeat"
    )
    pairs = (
        "SELECT unnest(generate_series(last_start - INTERVAL 10 MINUTE, last_start, INTERVAL 5 MINUTE)) "
        f"AS window_start, _ingest_seq, category, quantity, quantity * unit_price AS revenue FROM ({sold})"
    )
    missed = "SELECT _ingest_seq, unnest(missed_windows).window_start AS window_start FROM late"
    expected = answers(
        shop,
        "rolling_sales",
        f"SELECT window_start, category, sum(quantity), sum(revenue) FROM ({pairs}) "
        f"ANTI JOIN ({missed}) USING (_ingest_seq, window_start) GROUP BY ALL ORDER BY ALL",
    )
    found = "SELECT window_start, category, units, revenue FROM result ORDER BY ALL"
    assert answers(shop, "rolling_sales", found) == expected
    lakes.assert_balanced(shop, _in_batches(registry()["rolling_sales"]))


def test_orders_meet_their_payments_within_the_hour(shop: Lake) -> None:
    on_time = "SELECT * FROM {} x WHERE NOT _heartbeat AND NOT EXISTS (FROM late l WHERE l._side = '{}' "
    on_time += "AND l._ingest_seq = x._ingest_seq)"
    orders, payments = on_time.format("bronze_orders", "left"), on_time.format("bronze_order_payments", "right")
    expected = answers(
        shop,
        "order_payments",
        f"SELECT o._ingest_seq, p._ingest_seq FROM ({orders}) o FULL JOIN ({payments}) p ON o.order_id = p.order_id "
        "AND p.paid_at BETWEEN o.ordered_at AND o.ordered_at + INTERVAL 1 HOUR ORDER BY ALL",
    )
    assert answers(shop, "order_payments", "SELECT _ingest_seq, _other_ingest_seq FROM result ORDER BY ALL") == expected
    sides = dict(answers(shop, "order_payments", "SELECT _side, count(*) FROM result GROUP BY ALL"))
    assert sides.keys() == {"both", "left", "right"}
    lakes.assert_balanced(shop, _in_batches(registry()["order_payments"]))
