"""Suites for real data: what they find, by the stream and by the check alike: `make verify DATA=folder`."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING, Totals
from spark_jobs.quality.checking import check
from spark_jobs.spec import (
    Between,
    Conservation,
    CustomSql,
    Files,
    Fresh,
    Ingest,
    Matches,
    NotNull,
    OneOf,
    Referential,
    Satisfies,
    Sink,
    Unique,
)
from tests.support import lakes
from tests.support.outside import data_file

pytestmark = pytest.mark.outside_data

HEX = "[0-9a-f]{32}"
WARN: Any = {"on_failure": "warn"}


def quakes(folder: Path) -> Ingest:
    names = (
        *("time", "latitude", "longitude", "depth", "mag", "magType", "nst", "gap", "dmin", "rms", "net", "id"),
        *("updated", "place", "type"),
    )
    numbers = dict.fromkeys(("latitude", "longitude", "depth", "mag", "gap", "dmin", "rms"), "DOUBLE")
    times = dict.fromkeys(("time", "updated"), "TIMESTAMP")
    types = dict.fromkeys(names, "STRING") | numbers | times | {"nst": "INT"}
    return Ingest(
        name="ingest_quakes",
        source=Files(str(folder), format="csv"),
        columns={name: types[name] for name in names},
        event_time="time",
        event_id="id",
        rules=(
            NotNull("mag", **WARN),
            Between("mag", min=-2, max=10, **WARN),
            Between("latitude", min=-90, max=90, **WARN),
            Between("longitude", min=-180, max=180, **WARN),
            Between("depth", min=0, max=800, **WARN),
            Between("gap", min=0, max=360, **WARN),
            NotNull("nst", **WARN),
            NotNull("rms", **WARN),
            OneOf("type", ("earthquake", "quarry blast", "explosion"), **WARN),
            OneOf("magType", ("ml", "md", "mb", "mb_lg", "mc", "mwr", "mww", "mwb", "mwc", "mwp", "mw", "mh"), **WARN),
            Matches("id", "[a-z]{2}[0-9a-z]+", **WARN),
            Satisfies("updated after it happened", "updated >= time", **WARN),
            Satisfies("a region is named", "place LIKE '%,%'", **WARN),
        ),
        expectations=(Unique("id"), Conservation()),
        sink=Sink("bronze.quakes"),
    )


def orders(folder: Path) -> Ingest:
    times = (
        "order_purchase_timestamp",
        "order_approved_at",
        "order_delivered_carrier_date",
        "order_delivered_customer_date",
        "order_estimated_delivery_date",
    )
    statuses = ("created", "approved", "invoiced", "processing", "shipped", "delivered", "unavailable", "canceled")
    return Ingest(
        name="ingest_orders",
        source=Files(str(folder), format="csv"),
        columns={"order_id": "STRING", "customer_id": "STRING", "order_status": "STRING"}
        | dict.fromkeys(times, "TIMESTAMP"),
        event_time="order_purchase_timestamp",
        event_id="order_id",
        rules=(
            Matches("order_id", HEX, **WARN),
            OneOf("order_status", statuses, **WARN),
            NotNull("order_approved_at", **WARN),
            Satisfies("approved after it was placed", "order_approved_at >= order_purchase_timestamp", **WARN),
            Satisfies("handed over after it was approved", "order_delivered_carrier_date >= order_approved_at", **WARN),
            Satisfies(
                "delivered after it was handed over",
                "order_delivered_customer_date >= order_delivered_carrier_date",
                **WARN,
            ),
            Satisfies(
                "delivered has a date",
                "order_status <> 'delivered' OR order_delivered_customer_date IS NOT NULL",
                **WARN,
            ),
            Satisfies(
                "a date means delivered",
                "order_status = 'delivered' OR order_delivered_customer_date IS NULL",
                **WARN,
            ),
        ),
        expectations=(
            Unique("order_id"),
            Conservation(),
            Fresh("1 day", severity="warn"),
            CustomSql(
                "each order has items", "SELECT order_id FROM bronze.orders ANTI JOIN bronze.items USING (order_id)"
            ),
            CustomSql(
                "payments make up the items",
                "WITH due AS (SELECT order_id, sum(price + freight_value) AS due FROM bronze.items GROUP BY ALL), "
                "paid AS (SELECT order_id, sum(payment_value) AS paid FROM bronze.payments GROUP BY ALL) "
                "SELECT order_id FROM due JOIN paid USING (order_id) WHERE abs(due - paid) > 0.01",
            ),
        ),
        sink=Sink("bronze.orders"),
    )


def items(folder: Path) -> Ingest:
    return Ingest(
        name="ingest_items",
        source=Files(str(folder), format="csv"),
        columns={
            "order_id": "STRING",
            "order_item_id": "INT",
            "product_id": "STRING",
            "seller_id": "STRING",
            "shipping_limit_date": "TIMESTAMP",
            "price": "DECIMAL(10, 2)",
            "freight_value": "DECIMAL(10, 2)",
        },
        event_time="shipping_limit_date",
        # Limits lie ahead of the clock in such a history by nature.
        max_future="3650 days",
        rules=(
            Between("price", min=0.01, **WARN),
            Satisfies("somebody pays the freight", "freight_value > 0", **WARN),
            Between("order_item_id", min=1, max=20, **WARN),
        ),
        expectations=(Unique("order_id", "order_item_id"), Referential("order_id", "bronze.orders"), Conservation()),
        sink=Sink("bronze.items"),
    )


def payments(folder: Path) -> Ingest:
    """Payments have no time of their own: the time of the file's reading stands for it, in a column that it lacks."""
    return Ingest(
        name="ingest_payments",
        source=Files(str(folder), format="csv"),
        columns={
            "order_id": "STRING",
            "payment_sequential": "INT",
            "payment_type": "STRING",
            "payment_installments": "INT",
            "payment_value": "DECIMAL(10, 2)",
            "paid_at": "TIMESTAMP",
        },
        event_time="paid_at",
        rules=(
            OneOf("payment_type", ("credit_card", "boleto", "voucher", "debit_card"), **WARN),
            Between("payment_value", min=0.01, **WARN),
            Between("payment_installments", min=1, max=24, **WARN),
        ),
        expectations=(
            Unique("order_id", "payment_sequential"),
            Referential("order_id", "bronze.orders"),
            Conservation(),
        ),
        sink=Sink("bronze.payments"),
    )


# Found once by hand with DuckDB over the files; `by_duckdb` counts them again.
FOUND: Mapping[str, Mapping[str, int]] = {
    "ingest_quakes": {
        "between(depth, 0..800)": 10,
        "not_null(nst)": 3_104,
        "not_null(rms)": 10,
        "one_of(magType)": 438,
        "a region is named": 51,
    },
    "ingest_orders": {
        "not_null(order_approved_at)": 146,
        "handed over after it was approved": 77,
        "delivered after it was handed over": 3,
        "delivered has a date": 8,
        "a date means delivered": 6,
    },
    "ingest_items": {"somebody pays the freight": 17},
    "ingest_payments": {"one_of(payment_type)": 3, "between(payment_value, 0.01..)": 5},
}
TABLES = {
    "fresh(1 day)": 1,
    "each order has items": 775,
    "payments make up the items": 26,
}


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed")


def arrive(name: str, folder: Path, *, with_time: bool = False) -> Path:
    folder.mkdir()
    if not with_time:
        shutil.copy(data_file(name), folder)
        return folder
    head, *rows = data_file(name).read_text().splitlines()
    lines = (f"{head},paid_at", *(f"{row},2018-01-01T00:00:00Z" for row in rows))
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, dict[str, Ingest]]:
    folder = tmp_path_factory.mktemp("real")
    lake = Lake(str(folder / "lake")).ensure_exists()
    definitions = (
        quakes(arrive("usgs_earthquakes_2015-08.csv", folder / "quakes")),
        orders(arrive("olist_orders.csv", folder / "orders")),
        items(arrive("olist_order_items.csv", folder / "items")),
        payments(arrive("olist_order_payments.csv", folder / "payments", with_time=True)),
    )
    lakes.run_all(spark, lake, definitions, close=False)
    return lake, {each.name: each for each in definitions}


@pytest.mark.parametrize("name", FOUND)
def test_the_stream_and_the_check_find_the_same(found: tuple[Lake, dict[str, Ingest]], name: str) -> None:
    lake, definitions = found
    definition = definitions[name]
    totals = Totals.of(entry for _, entry in lakes.ledger(lake, definition))
    streamed = {
        reason.removeprefix(WARNING): count for reason, count in totals.reasons.items() if reason.startswith(WARNING)
    }
    assert streamed == FOUND[name]
    assert totals["quarantined"] == 0
    checked = check(lake, definition, no_spark)
    broken = {each.expectation: each.unexpected_count for each in checked.results if not each.success}
    by_table = {each: count for each, count in broken.items() if each in TABLES}
    assert {each: count for each, count in broken.items() if each not in TABLES} == FOUND[name]
    assert set(by_table) == (set(TABLES) if name == "ingest_orders" else set())
    for each, count in by_table.items():
        assert count in (None, TABLES[each])


def test_the_figures_are_those_of_the_files() -> None:
    quakes, orders, payments = (
        f"read_csv('{data_file(name)}')"
        for name in ("usgs_earthquakes_2015-08.csv", "olist_orders.csv", "olist_order_payments.csv")
    )
    counted = duckdb.sql(
        f"""SELECT (SELECT count(*) FROM {quakes} WHERE depth < 0), (SELECT count(*) FROM {quakes} WHERE nst IS NULL),
        (SELECT count(*) FROM {quakes} WHERE "magType" IN ('Md', 'Ml')),
        (SELECT count(*) FROM {orders} WHERE order_approved_at IS NULL),
        (SELECT count(*) FROM {orders} WHERE order_delivered_carrier_date < order_approved_at),
        (SELECT count(*) FROM {payments} WHERE payment_value <= 0)"""
    ).fetchall()
    assert counted == [(10, 3_104, 438, 146, 77, 5)]
