"""Pipelines with state of each key on the simulator's streams, with late events, copies and bad rows.

Each is held against DuckDB or plain Python over bronze, written apart from the pipeline. What the stream has judged
late is left out, by the event's number.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.pipelines import registry
from spark_jobs.pipelines._registry import with_sources
from spark_jobs.plan.logical import build
from spark_jobs.simulator import Disorder, Shop, simulate_files
from spark_jobs.spec import Files, Ingest, Pipeline, Results
from tests.support import clicks, lakes

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
STREAMS = (
    "sales", "clicks", "orders", "shipments", "products", "readings", "statuses", "visits", "ticks", "transfers",
    "card_payments", "request_logs", "ride_requests", "driver_positions",
)  # fmt: skip
PIPELINES = (
    "account_balances", "cafe_service", "card_fraud", "machine_health", "machine_readings", "machine_statuses",
    "personal_offers", "ride_matching", "service_errors", "service_incidents", "shipment_orders", "stock_averages",
    "stock_triples", "top_products", "tumbling_by_hand", "unique_transfers",
)  # fmt: skip
LONG = (
    "card_fraud", "machine_health", "machine_readings", "machine_statuses", "personal_offers", "ride_matching",
    "service_errors", "service_incidents", "shipment_orders", "stock_averages", "stock_triples", "top_products",
    "tumbling_by_hand",
)  # fmt: skip
"""Those that run in `make long` only. Of what they are made of, these ask:

- events as of another's time, totals, averages of the last minutes, groups of three: tests/spark/test_ordered.py::
  test_rows_are_those_of_events_in_order[as_of], [running], [sliding] and [counting]
- windows, and rankings of them: tests/spark/test_shop_pipelines.py::
  test_results_are_those_of_the_events_that_came_in_time[rolling_sales] and [top_products_live]
- processors: [cafe_service]; of two tables: tests/spark/test_process.py::
  test_of_two_tables_each_row_has_a_number_of_its_own_across_restarts; what they themselves do is asked,
  event by event, by tests/unit/test_keyed_pipelines.py
"""
OF_EVERY_KIND = 5
"""With it all happens that can happen."""
SEED = int(os.environ.get("TIDEMARK_SEED", OF_EVERY_KIND))
"""Of the streams; `make verify SEEDS=3` takes three others."""
SHOP = {
    "seed": SEED, "rate": None, "users": 12, "customers": 12, "machines": 4, "drivers": 6, "accounts": 8, "cards": 12,
    "symbols": 3,
}  # fmt: skip
DISORDER = Disorder(disorder=0.3, late=0.15, late_by="5 hours", duplicates=0.05, malformed=0.01, future=0)
BATCHES = {"bronze.products": 1, "bronze.orders": 4, "bronze.shipments": 4}
"""Of each other table three: an event can be late from the third one on."""


def later(minutes: float) -> str:
    return (START + minutes * MINUTE).isoformat()


EXAMPLES = {
    "ticks": [
        {"symbol": "EXAMPLE", "price": price, "volume": 1, "traded_at": later(minutes)}
        for minutes, price in enumerate((10, 12, 11, 13, 14, 15, 16, 17, 19))
    ],
    "transfers": [
        {"transfer_id": f"example-{minutes}", "account": "example", "amount": amount, "booked_at": later(minutes)}
        for minutes, amount in [*enumerate((150, 100, -50, 200, -100)), (1, 100)]
    ],
    "card_payments": [
        {"payment_id": f"example-{n}", "card": "example", "country": country, "amount": 1, "paid_at": later(minutes)}
        for n, (country, minutes) in enumerate((("DE", 0), ("FR", 60), ("FR", 90), ("DE", 151), ("FR", 211)))
    ],
}
"""Stream -> events by hand, whose results one can tell by looking at them."""

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Lake:
    """A lake in which all that are asked for have run.

    Six hours of everything, then two weeks of few orders and shipments.
    """
    lake = Lake(str(tmp_path_factory.mktemp("keyed"))).ensure_exists()
    landing = Path(lake.path("landing"))
    for stream, rows in EXAMPLES.items():
        (landing / stream).mkdir(parents=True)
        (landing / stream / "0-example.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    simulate_files(
        Shop(
            start=START,
            density=0.05,
            reading_every=timedelta(seconds=30),
            position_every=timedelta(seconds=45),
            visit_updates=True,
            streams=STREAMS,
            disorder=DISORDER,
            **SHOP,
        ),
        out=str(landing),
        rows=11_000,
        rows_per_file=20,
    )
    simulate_files(
        Shop(
            start=START + 8 * HOUR,
            density=0.001,
            streams=("orders", "shipments"),
            disorder=DISORDER.model_copy(update={"late_by": 12 * DAY}),
            **SHOP,
        ),
        out=str(landing),
        rows=500,
        rows_per_file=20,
    )
    here = (item for item in request.session.items if item.path == request.path)
    every = any(item.get_closest_marker("long") for item in here)
    definitions = with_sources(registry()[name] for name in PIPELINES if every or name not in LONG)
    lakes.run_all(spark, lake, [in_batches(each, lake) for each in definitions], close=True)
    return lake


def in_batches(definition: Any, lake: Lake) -> Any:
    """Few batches, each of many files or of one commit of bronze."""
    if isinstance(definition, Ingest) and isinstance(definition.source, Files):
        files = len(list(Path(lake.path(definition.source.path)).iterdir()))
        each = -(-files // BATCHES.get(definition.sink.table, 3))
        return definition.model_copy(
            update={"source": definition.source.model_copy(update={"max_files_per_trigger": each})}
        )
    if isinstance(definition, Ingest) and isinstance(definition.source, Results):
        return definition.model_copy(
            update={"source": definition.source.model_copy(update={"max_files_per_trigger": 1})}
        )
    return lakes.one_file_a_batch(definition) if isinstance(definition, Pipeline) else definition


def late(lake: Lake, name: str) -> list[dict[str, Any]]:
    table = build(registry()[name]).table("late")
    return lakes.rows(lake, table.name) if table is not None else []


def in_time(lake: Lake, name: str, table: str) -> list[dict[str, Any]]:
    """The events of a bronze table that were not late for a pipeline, by their numbers."""
    # Numbers count up in each table; a pipeline of one table need not say which it is.
    missed = {row["_ingest_seq"] for row in late(lake, name) if row.get("_source_table", table) == table}
    rows = [row for row in lakes.rows(lake, table) if not row["_heartbeat"] and row["_ingest_seq"] not in missed]
    return sorted(rows, key=lambda row: row["_ingest_seq"])


def passed(lake: Lake, name: str) -> datetime:
    """Where the watermark stands: later timers have not fired."""
    return lakes.at(max(entry.watermark_ms or 0 for _, entry in lakes.ledger(lake, registry()[name])))


def by_key(rows: Sequence[Mapping[str, Any]], key: str, time: str) -> Mapping[Any, list[Mapping[str, Any]]]:
    """The rows of each key in order of time, those of one instant in order of arrival."""
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row[time], row["_ingest_seq"])):
        found[row[key]].append(row)
    return found


def answer(lake: Lake, name: str, sql: str) -> Rows:
    """A query over the result, and over the tables that the pipeline reads, less the events that were late for it."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET VARIABLE passed = $1", [passed(lake, name)])
        connection.register("result", open_table(lake, registry()[name].sink.table).to_pyarrow_table())
        for table in build(registry()[name]).reads:
            found = open_table(lake, table.name).to_pyarrow_table()
            numbers = [row["_ingest_seq"] for row in in_time(lake, name, table.name)]
            connection.register("whole", found)
            connection.register("numbers", pa.table({"_ingest_seq": pa.array(numbers, pa.int64())}))
            short = table.name.removeprefix("bronze.")
            connection.execute(
                f"CREATE TABLE {short} AS FROM whole SEMI JOIN numbers USING (_ingest_seq) WHERE NOT _heartbeat"
            )
        return connection.execute(sql).fetchall()


QUERIES = {
    "shipment_orders": (
        "SELECT _ingest_seq, ordered_at, customer_id, amount FROM result",
        "SELECT s._ingest_seq, o.ordered_at, o.customer_id, o.amount FROM shipments s "
        "ASOF LEFT JOIN orders o ON s.order_id = o.order_id AND s.shipped_at >= o.ordered_at",
    ),
    "machine_readings": (
        "SELECT _ingest_seq, status, changed_at FROM result",
        "SELECT r._ingest_seq, s.status, s.changed_at FROM readings r "
        "ASOF LEFT JOIN statuses s ON r.machine_id = s.machine_id AND r.read_at >= s.changed_at",
    ),
    "machine_statuses": (
        "SELECT machine_id, status, changed_at FROM result",
        "SELECT machine_id, arg_max(status, changed_at), max(changed_at) FROM statuses GROUP BY machine_id",
    ),
    "unique_transfers": (
        "SELECT _ingest_seq, transfer_id, account, amount, booked_at FROM result",
        "SELECT _ingest_seq, transfer_id, account, amount, booked_at FROM transfers "
        "QUALIFY row_number() OVER (PARTITION BY transfer_id ORDER BY _ingest_seq) = 1",
    ),
    "account_balances": (
        "SELECT _ingest_seq, account, balance, transfers FROM result",
        "SELECT _ingest_seq, account, sum(amount) OVER up_to, count(*) OVER up_to FROM unique_transfers "
        "WINDOW up_to AS (PARTITION BY account ORDER BY booked_at, _ingest_seq "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
    ),
    "service_errors": (
        "SELECT window_start, service, requests, errors, p99_ms, error_rate FROM result",
        "SELECT time_bucket(INTERVAL 1 MINUTE, requested_at), service, count(*), count_if(status_code >= 500), "
        "quantile_cont(latency_ms, 0.99), avg((status_code >= 500)::INT) FROM request_logs GROUP BY ALL",
    ),
    "stock_averages": (
        "SELECT _ingest_seq, average, lowest, highest, traded, weighted FROM result",
        "SELECT _ingest_seq, avg(price) OVER span, min(price) OVER span, max(price) OVER span, "
        "sum(volume) OVER span, sum(price * volume) OVER span / sum(volume) OVER span FROM ticks "
        "WINDOW span AS (PARTITION BY symbol ORDER BY traded_at "
        "RANGE BETWEEN INTERVAL '299.999999 seconds' PRECEDING AND CURRENT ROW)",
    ),
    "stock_triples": (
        "SELECT symbol, traded_at, first_traded_at, average FROM result",
        "SELECT symbol, max(traded_at), min(traded_at), avg(price) FROM (SELECT *, row_number() OVER "
        "(PARTITION BY symbol ORDER BY traded_at, _ingest_seq) - 1 AS number FROM ticks) "
        "GROUP BY symbol, number // 3 HAVING count(*) = 3",
    ),
    "tumbling_by_hand": (
        "SELECT hour, sold_at, place, product_id, units, revenue FROM result",
        "SELECT hour, hour + INTERVAL 1 HOUR, row_number() OVER best AS place, product_id, units, revenue "
        "FROM (SELECT time_bucket(INTERVAL 1 HOUR, sold_at) AS hour, product_id, sum(quantity) AS units, "
        "sum(quantity * unit_price) AS revenue FROM sales GROUP BY ALL) "
        "WHERE hour + INTERVAL 1 HOUR <= getvariable('passed') "
        "WINDOW best AS (PARTITION BY hour ORDER BY units DESC, product_id) QUALIFY place <= 10",
    ),
}
"""Pipeline -> what is read of its result, and what that must be."""


def matched_rides(lake: Lake) -> Rows:
    """Each request and the nearest of the drivers' places at its time; distances by vectors on the globe."""

    def zone(row: Mapping[str, Any]) -> tuple[int, int]:
        return math.floor(row["latitude"]), math.floor(row["longitude"])

    def on_globe(row: Mapping[str, Any]) -> np.ndarray:
        north, east = math.radians(row["latitude"]), math.radians(row["longitude"])
        return np.array([math.cos(north) * math.cos(east), math.cos(north) * math.sin(east), math.sin(north)])

    positions = in_time(lake, "ride_matching", "bronze.driver_positions")
    found: Rows = []
    for asked in in_time(lake, "ride_matching", "bronze.ride_requests"):
        now = asked["requested_at"]
        fresh = [p for p in positions if now - MINUTE <= p["seen_at"] <= now and zone(p) == zone(asked)]
        last = {p["driver_id"]: p for p in sorted(fresh, key=lambda p: (p["seen_at"], p["_ingest_seq"]))}
        far = {
            name: 6371 * 2 * math.asin(float(np.linalg.norm(on_globe(p) - on_globe(asked))) / 2)
            for name, p in last.items()
        }
        nearest = min(far, key=lambda name: far[name], default=None)
        seen_at = last[nearest]["seen_at"] if nearest else None
        found.append((asked["request_id"], asked["rider_id"], now, nearest, far.get(nearest), seen_at))
    return found


def incidents_of_machines(lake: Lake) -> Rows:
    """Mean and deviation computed anew for each reading, over all those before it that were not off."""
    found: Rows = []
    readings = in_time(lake, "machine_health", "bronze.readings")
    for machine, rows in by_key(readings, "machine_id", "read_at").items():
        usual: dict[str, list[float]] = {name: [] for name in ("temperature", "vibration", "pressure")}
        verdicts: list[tuple[datetime, bool]] = []
        begun, is_open, since = 0, False, None
        for row in rows:
            scores = {
                name: abs(row[name] - np.mean(values)) / np.std(values, ddof=1)
                for name, values in usual.items()
                if row[name] is not None and len(values) >= 30
            }
            for name, values in usual.items():
                if row[name] is not None and scores.get(name, 0) <= 4:
                    values.append(row[name])
            if not scores:
                continue
            verdicts.append((row["read_at"], bool(max(scores.values()) > 4)))
            last = verdicts[begun:][-3:]
            if len(last) == 3 and all(off is not is_open for _, off in last):
                is_open, begun = not is_open, len(verdicts)
                since = last[0][0] if is_open else since
                sensor = max(scores, key=lambda name: scores[name])
                change = "opened" if is_open else "closed"
                found.append((machine, row["read_at"], change, since, sensor, scores[sensor], len(usual[sensor])))
    return found


def incidents_of_services(lake: Lake) -> Rows:
    """Three minutes in a row of the other kind since the last change."""
    end, found = passed(lake, "service_incidents"), list[tuple[Any, ...]]()
    logs = in_time(lake, "service_incidents", "bronze.request_logs")
    for service, rows in by_key(logs, "service", "requested_at").items():
        minutes = []
        for minute, requests in groupby(rows, key=lambda row: row["requested_at"].replace(second=0, microsecond=0)):
            codes = [row["status_code"] for row in requests]
            minutes.append((minute, len(codes), sum(code >= 500 for code in codes)))
        begun, is_open, since = 0, False, None
        for number in range(len(minutes)):
            last = minutes[max(begun, number - 2) : number + 1]
            if minutes[number][0] + MINUTE > end:
                break
            if len(last) < 3 or any((errors * 10 > requests) is is_open for _, requests, errors in last):
                continue
            is_open, begun = not is_open, number + 1
            since = last[0][0] if is_open else since
            sums = [sum(each[place] for each in last) for place in (1, 2)]
            found.append((service, last[2][0] + MINUTE, "opened" if is_open else "closed", since, *sums))
    return found


def cases_of_cards(lake: Lake) -> Rows:
    """Each payment with those before it; a case where it is one, and the payment before was none."""
    found: Rows = []
    payments = in_time(lake, "card_fraud", "bronze.card_payments")
    for card, rows in by_key(payments, "card", "paid_at").items():
        once = list({row["payment_id"]: row for row in reversed(rows)}.values())[::-1]
        before: set[str] = set()
        for row in once:
            span = [each for each in once if row["paid_at"] - 10 * MINUTE < each["paid_at"] <= row["paid_at"]]
            hour = [each for each in once if row["paid_at"] - HOUR <= each["paid_at"] <= row["paid_at"]]
            paid, countries = sum(each["amount"] for each in span), sorted({each["country"] for each in hour})
            tests = {"count": len(span) > 5, "sum": paid > 1000, "countries": len(countries) > 1}
            now = {reason for reason, is_case in tests.items() if is_case}
            for reason in sorted(now - before):
                found.append((card, row["paid_at"], reason, row["payment_id"], len(span), paid, countries))
            before = now
    return found


def drinks(lake: Lake) -> Rows:
    """By visit: a row when the drink came, and one at five minutes if it had not."""
    end, found = passed(lake, "cafe_service"), list[tuple[Any, ...]]()
    told = [
        {**row, "told_at": row["served_at"] or row["ordered_at"] or row["seated_at"]}
        for row in in_time(lake, "cafe_service", "bronze.visits")
    ]
    for visit, rows in by_key(told, "visit_id", "told_at").items():
        seated_at, guest = rows[0]["seated_at"], rows[0]["guest_id"]
        mark = seated_at + 5 * MINUTE
        served_at = next((row["served_at"] for row in rows if row["served_at"]), None)
        if rows[0]["served_at"] is None and (served_at is None or served_at > mark) and mark <= end:
            known = next((row["drink"] for row in rows if row["drink"] and row["told_at"] <= mark), None)
            found.append((visit, mark, guest, known, None, False, False))
        if served_at is not None:
            drink = next(row["drink"] for row in rows if row["served_at"])
            minutes = (served_at - seated_at).total_seconds() / 60
            found.append((visit, served_at, guest, drink, minutes, served_at <= mark, True))
    return found


def offers(lake: Lake) -> Rows:
    """The three categories, worked out anew at each instant at which something happens or is a day old."""
    categories = {row["product_id"]: row["category"] for row in lakes.rows(lake, "silver.products")}
    by_user: dict[str, dict[str, set[tuple[datetime, str]]]] = defaultdict(lambda: {"viewed": set(), "bought": set()})
    for row in in_time(lake, "personal_offers", "bronze.clicks"):
        kind, _, name = row["page"].partition("/")
        category = {"category": name, "product": categories.get(name)}.get(kind)
        if category:
            by_user[row["user_id"]]["viewed"].add((row["clicked_at"], category))
    for row in in_time(lake, "personal_offers", "bronze.orders"):
        if (row["amount"] or 0) > 0 and (category := categories.get(row["product_id"])):
            by_user[row["customer_id"].replace("cu-", "u-")]["bought"].add((row["ordered_at"], category))
    end, found = passed(lake, "personal_offers"), list[tuple[Any, ...]]()
    for user, happened in by_user.items():
        times = {time for events in happened.values() for time, _ in events}
        before: list[str] = []
        for now in sorted(times | {time + DAY for time in times}):
            day = {kind: [c for time, c in events if now - DAY < time <= now] for kind, events in happened.items()}
            wanted = sorted(set(day["viewed"]) - set(day["bought"]), key=lambda c: (-day["viewed"].count(c), c))[:3]
            if wanted != before and now <= end:
                found.append((user, now, wanted, [day["viewed"].count(category) for category in wanted]))
            before = wanted
    return found


IN_PYTHON: Mapping[str, tuple[tuple[str, ...], Callable[[Lake], Rows]]] = {
    "ride_matching": (("request_id", "rider_id", "asked_at", "driver_id", "km", "seen_at"), matched_rides),
    "machine_health": (
        ("machine_id", "read_at", "change", "since", "sensor", "score", "readings"),
        incidents_of_machines,
    ),
    "service_incidents": (
        ("service", "requested_at", "change", "since", "requests", "errors"),
        incidents_of_services,
    ),
    "card_fraud": (
        ("card", "paid_at", "reason", "payment_id", "payments", "paid", "countries"),
        cases_of_cards,
    ),
    "cafe_service": (
        ("visit_id", "told_at", "guest_id", "drink", "minutes", "in_time", "is_complete"),
        drinks,
    ),
    "personal_offers": (("user_id", "happened_at", "offers", "views"), offers),
}
"""Pipeline -> columns of its result, and what these must be."""


def found_and_expected(lake: Lake, name: str) -> tuple[Rows, Rows]:
    if name in QUERIES:
        found, expected = (answer(lake, name, sql) for sql in QUERIES[name])
        return found, expected
    columns, oracle = IN_PYTHON[name]
    return [tuple(row[column] for column in columns) for row in lakes.rows(lake, registry()[name].sink.table)], oracle(
        lake
    )


def assert_same(found: Rows, expected: Rows) -> None:
    """The same rows in any order; computed numbers to six digits."""
    assert found
    # Computed numbers last, so that they decide no order.
    pairs = list(zip(sorted(found, key=exact), sorted(expected, key=exact), strict=False))
    differing = [(one, other) for one, other in pairs if not all(map(is_same, one, other))]
    assert differing[:3] == []
    assert len(found) == len(expected)


def exact(row: tuple[Any, ...]) -> str:
    return repr([value for value in row if not isinstance(value, float | Decimal)])


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float | Decimal) and other is not None:
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def but_long(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in names]


@pytest.mark.parametrize("name", but_long(*QUERIES, *IN_PYTHON))
def test_results_are_those_of_the_events_that_came_in_time(lake: Lake, name: str) -> None:
    definition = registry()[name]
    assert isinstance(definition, Pipeline)
    found, expected = found_and_expected(lake, name)
    assert_same(found, expected)
    # What was late for the pipeline before does not come to this one.
    assert len(late(lake, name)) > 0 or definition.watermark is None or name == "account_balances"
    lakes.assert_balanced(lake, in_batches(definition, lake))


def example(lake: Lake, name: str, key: str, *columns: str) -> Rows:
    """The result of the events by hand, in order of time."""
    definition = registry()[name]
    assert isinstance(definition, Pipeline)
    time = str(definition.event_time)
    rows = [row for row in lakes.rows(lake, definition.sink.table) if row[key] in ("example", "EXAMPLE")]
    return [tuple(row[column] for column in columns) for row in sorted(rows, key=lambda row: row[time])]


def test_a_balance_has_a_row_for_each_transfer_and_none_for_its_copy(lake: Lake) -> None:
    assert example(lake, "account_balances", "account", "balance", "transfers") == [
        (150, 1), (250, 2), (200, 3), (400, 4), (300, 5),
    ]  # fmt: skip
    copies = [row for row in lakes.rows(lake, "bronze.transfers") if row["transfer_id"] == "example-1"]
    assert len(copies) == 2


# tests/spark/test_ordered.py::test_rows_are_those_of_events_in_order[counting]
@pytest.mark.long
def test_three_ticks_each_have_an_average(lake: Lake) -> None:
    averages = [float(average) for (average,) in example(lake, "stock_triples", "symbol", "average")]
    assert averages == pytest.approx([11, 14, 17.333333])


# tests/unit/test_keyed_pipelines.py::TestFraud
@pytest.mark.long
def test_an_hour_between_two_countries_is_a_case_and_told_once(lake: Lake) -> None:
    found = example(lake, "card_fraud", "card", "payment_id", "reason", "countries")
    # At exactly an hour, and again after a payment that was none.
    assert found == [("example-1", "countries", ["DE", "FR"]), ("example-4", "countries", ["DE", "FR"])]


# Each is held against DuckDB: of what these two are made of, see LONG.
@pytest.mark.long
def test_a_window_by_hand_gives_the_rows_of_the_window(lake: Lake) -> None:
    ranked = defaultdict(list)
    for name, (hour, place) in {
        "top_products": ("window_start", "rank"),
        "tumbling_by_hand": ("hour", "place"),
    }.items():
        columns = (hour, place, "product_id", "units", "revenue")
        for row in lakes.rows(lake, registry()[name].sink.table):
            ranked[name, row[hour]].append(tuple(row[column] for column in columns))
    # A sale behind the watermark whose hour is open is late by hand only: these hours differ.
    missed = {
        name: {
            row["_ingest_seq"]: row["sold_at"].replace(minute=0, second=0, microsecond=0) for row in late(lake, name)
        }
        for name in ("top_products", "tumbling_by_hand")
    }
    differing = {hour for _, hour in missed["top_products"].items() ^ missed["tumbling_by_hand"].items()}
    alike = {hour for name, hour in ranked if name == "tumbling_by_hand"} - differing
    assert len(alike) >= 4
    for hour in alike:
        assert sorted(ranked["tumbling_by_hand", hour]) == sorted(ranked["top_products", hour])


KINDS: Mapping[str, tuple[str, set[Any]]] = {
    "machine_health": ("change", {"opened", "closed"}),
    "service_incidents": ("change", {"opened", "closed"}),
    "card_fraud": ("reason", {"count", "sum", "countries"}),
    "cafe_service": ("is_complete", {True, False}),
    "shipment_orders": ("_side", {"both", "left"}),
}
"""Pipeline -> a column of its result, and what values it has."""


@pytest.mark.parametrize("name", but_long(*KINDS))
def test_what_happens_in_the_streams_is_of_every_kind(lake: Lake, name: str) -> None:
    column, expected = KINDS[name]
    found = {row[column] for row in lakes.rows(lake, registry()[name].sink.table)}
    assert found == expected if SEED == OF_EVERY_KIND else found <= expected


AUDITED = ("cafe_service",)
"""Rows by events, by timers and `ttl`; [personal_offers] asks what it looks up, too.

Rows by timers alone, and of two tables, are audited in test_process.py, the steps of the others in test_ordered.py.
"""


@pytest.mark.parametrize(
    "name",
    [
        name if name in AUDITED else pytest.param(name, marks=pytest.mark.long)
        for name in sorted(QUERIES.keys() | IN_PYTHON.keys())
        # What was let through can be told a day later only.
        if build(registry()[name]).can_be_backfilled and name != "unique_transfers"
    ],
)
def test_an_audit_computes_the_rows_of_the_stream_again(spark: SparkSession, lake: Lake, name: str) -> None:
    audit = clicks.audited(spark, lake, in_batches(registry()[name], lake))
    assert audit.sound, audit
    assert audit.rows
    assert audit.rows <= len(lakes.rows(lake, registry()[name].sink.table))


def test_silence_goes_by_when_readings_reach_the_lake(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = Lake(str(tmp_path_factory.mktemp("silent"))).ensure_exists()
    readings = lakes.Bronze(lake, "bronze.readings", {"machine_id": pa.string(), "read_at": lakes.TIMESTAMP}, "read_at")
    now = datetime.now(UTC).replace(microsecond=0)
    begin = now - 2 * HOUR
    # Batches, of machines and minutes of arrival; each was read hours before.
    batches: list[list[tuple[str, float]]] = [
        [("a", 0), ("b", 0), ("a", 5), ("a", 30), ("c", 119)],
        [("b", 41), ("c", 119.5)],
    ]
    for batch in batches:
        for machine, minutes in batch:
            readings.arrived_ms = lakes.ms(begin + minutes * MINUTE)
            readings.append([{"machine_id": machine, "read_at": begin - 5 * HOUR}])
    files = {"max_files_per_trigger": len(batches[0])}
    definition = registry()["silent_machines"]
    assert isinstance(definition, Pipeline)
    definition = definition.model_copy(update={"source": definition.source.model_copy(update=files)})
    lakes.run(spark, lake, definition)
    found = [
        (row["machine_id"], row["silent"], row["heard_at"], row["noticed_at"])
        for row in lakes.rows(lake, "gold.silent_machines")
    ]
    expected = [
        ("a", True, 5, 15), ("a", False, 5, 30), ("a", True, 30, 40), ("b", True, 0, 10), ("b", False, 0, 41),
        ("b", True, 41, 51),
    ]  # fmt: skip
    assert sorted(found) == sorted(
        (machine, silent, begin + heard * MINUTE, begin + noticed * MINUTE)
        for machine, silent, heard, noticed in expected
    )
    lakes.assert_balanced(lake, definition)
