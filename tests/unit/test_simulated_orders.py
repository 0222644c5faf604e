"""The simulator's orders, their payments and the tables beside them: who, what and when fit together."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.simulator import DEFAULT_STREAMS, FORMATS, Disorder, Shop, StreamName, read_truth, simulate_files
from spark_jobs.simulator.timeline import timeline

START = datetime(2024, 5, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
MINUTE_MS, HOUR_MS = 60_000, 3_600_000

Row = Mapping[str, Any]


def shop(**settings: Any) -> Shop:
    return Shop(**{"seed": 7, "start": START, "rate": None, "density": 2.0, **settings})


def happened(*streams: StreamName, hours: float, **settings: Any) -> dict[StreamName, list[Row]]:
    """What truly happened within the first hours, stream by stream."""
    until_ms = START_MS + hours * HOUR_MS
    rows: dict[StreamName, list[Row]] = {stream: [] for stream in streams}
    events = timeline(shop(streams=streams, **settings), START_MS)
    for event in takewhile(lambda event: event.event_time_ms < until_ms, events):
        rows[event.stream].append(event.values)
    return rows


@pytest.fixture(scope="module")
def day() -> dict[StreamName, list[Row]]:
    """Twelve hours of orders, all that is paid for those of the first six, and both tables."""
    return happened("products", "customers", "sales", "orders", "order_payments", hours=12)


def old_orders(day: dict[StreamName, list[Row]]) -> Iterator[tuple[Row, list[Row]]]:
    """The orders whose time to be paid is over, and what was paid for each."""
    paid: dict[str, list[Row]] = {}
    for payment in day["order_payments"]:
        paid.setdefault(payment["order_id"], []).append(payment)
    for order in day["orders"]:
        if order["ordered_at"] < START_MS + 6 * HOUR_MS:
            yield order, paid.get(order["order_id"], [])


def about(share: float, of: int) -> Any:
    """A count that is not far from its share: within 4.5 standard deviations."""
    return pytest.approx(share * of, abs=4.5 * (share * (1 - share) * of) ** 0.5)


class TestOrders:
    def test_come_five_times_less_often_than_sales(self, day):
        assert len(day["orders"]) == pytest.approx(len(day["sales"]) / 5, rel=0.05)

    def test_some_amounts_are_missing_some_zero_some_negative(self, day):
        amounts = [order["amount"] for order in day["orders"]]
        known = [amount for amount in amounts if amount is not None]
        assert amounts.count(None) == about(0.02, len(amounts))
        assert known.count(Decimal(0)) == about(0.03, len(amounts))
        assert sum(amount < 0 for amount in known) == about(0.03, len(amounts))
        assert all(amount.as_tuple().exponent == -2 and abs(amount) < 10**8 for amount in known)

    def test_cost_what_the_product_costs_at_that_moment(self):
        rows = happened("products", "orders", hours=1, product_change_every="30 seconds", unlisted=0)
        for order in rows["orders"]:
            price = [
                change["unit_price"]
                for change in rows["products"]
                if change["product_id"] == order["product_id"] and change["changed_at"] <= order["ordered_at"]
            ][-1]
            assert not order["amount"] or abs(order["amount"]) in [price * quantity for quantity in range(1, 6)]

    def test_have_ids_of_their_own(self, day):
        assert len({order["order_id"] for order in day["orders"]}) == len(day["orders"])
        assert len({payment["payment_id"] for payment in day["order_payments"]}) == len(day["order_payments"])


class TestTheirPayments:
    def test_come_after_the_order(self, day):
        for order, payments in old_orders(day):
            assert all(payment["paid_at"] > order["ordered_at"] for payment in payments)

    def test_add_up_to_its_amount(self, day):
        for order, payments in old_orders(day):
            assert len(payments) <= 2
            assert not payments or sum(payment["amount"] for payment in payments) == order["amount"]
            assert all(payment["amount"] > 0 for payment in payments)

    def test_come_soon_late_twice_or_never(self, day):
        plans: Counter[str] = Counter()
        for order, payments in old_orders(day):
            if not order["amount"] or order["amount"] < 0:
                assert payments == []
                continue
            waits = [payment["paid_at"] - order["ordered_at"] for payment in payments]
            if not waits:
                plans["never"] += 1
            elif len(waits) == 2:
                plans["twice"] += 1
            elif waits[0] > HOUR_MS:
                plans["late"] += 1
            else:
                assert waits[0] <= 16 * MINUTE_MS
                plans["soon"] += 1
        total = plans.total()
        assert total > 7_000
        shares = {"soon": 0.78, "late": 0.08, "twice": 0.08, "never": 0.06}
        assert plans == {plan: about(share, total) for plan, share in shares.items()}

    def test_of_two_parts_some_are_not_there_within_the_hour(self, day):
        second = [
            paid[1]["paid_at"] - order["ordered_at"] > HOUR_MS for order, paid in old_orders(day) if len(paid) == 2
        ]
        assert 0.3 < sum(second) / len(second) < 0.8

    def test_sometimes_belong_to_no_order(self, day):
        known = {order["order_id"] for order in day["orders"]}
        strays = [payment for payment in day["order_payments"] if payment["order_id"] not in known]
        assert len(strays) == about(0.015, len(day["orders"]))

    def test_are_the_same_without_the_stream_of_orders(self, day):
        alone = happened("order_payments", hours=3)["order_payments"]
        assert alone == day["order_payments"][: len(alone)]


@pytest.mark.parametrize(("table", "key", "size"), [("products", "product_id", 100), ("customers", "customer_id", 300)])
class TestTables:
    def test_tell_of_everything_that_is_listed_before_the_first_sale(self, day, table, key, size):
        first = min(day["sales"][0]["sold_at"], day["orders"][0]["ordered_at"])
        at_first = [row[key] for row in day[table] if row["changed_at"] < first]
        assert len(at_first) == len(set(at_first)) == size * 96 // 100

    def test_leave_out_a_few_for_a_while_and_a_few_for_ever(self, day, table, key, size):
        seen: dict[str, int] = {}
        for row in day[table]:
            seen.setdefault(row[key], row["changed_at"])
        later = [at - START_MS for at in seen.values() if at > START_MS]
        assert len(later) == size - len(seen) == size * 2 // 100
        assert all(10 * MINUTE_MS <= after <= 6 * HOUR_MS for after in later)

    def test_miss_things_that_are_ordered(self, day, table, key, size):
        missing = Counter(order[key] for order in day["orders"]) - Counter(
            {row[key]: len(day["orders"]) for row in day[table]}
        )
        assert len(missing) == size * 2 // 100
        assert 0 < missing.total() / len(day["orders"]) < 0.15

    def test_change_now_and_then_one_row_at_a_time(self, day, table, key, size):
        versions: dict[str, list[Row]] = {}
        for row in day[table]:
            versions.setdefault(row[key], []).append(row)
        changes = sum(len(rows) - 1 for rows in versions.values())
        assert 40 < changes < 110
        times = {(row[key], row["changed_at"]) for row in day[table]}
        assert len(times) == len(day[table])
        assert all(rows[0]["name"] == row["name"] for rows in versions.values() for row in rows)

    def test_can_list_everything(self, table, key, size):
        rows = happened(table, hours=0.001, unlisted=0)[table]
        assert [row["changed_at"] for row in rows] == [START_MS] * size


def test_categories_prices_segments_and_countries_change(day):
    for table, key, columns in (
        ("products", "product_id", {"category", "unit_price"}),
        ("customers", "customer_id", {"segment", "country"}),
    ):
        latest: dict[str, Row] = {}
        changed: set[str] = set()
        for row in day[table]:
            before = latest.get(row[key], row)
            changed |= {name for name in row if row[name] != before[name]}
            latest[row[key]] = row
        assert changed == columns | {"changed_at"}


class TestCopies:
    """Second copies of orders: most come soon, some within the hour, some after it."""

    def test_come_soon_within_the_hour_and_beyond_it(self, tmp_path: Path):
        rough = Disorder(duplicates=0.2, malformed=0, future=0)
        simulate_files(shop(streams=("orders",), disorder=rough), out=str(tmp_path), rows=5_000)
        rows = read_truth(tmp_path / "_truth", "orders")
        lines = [line for path in sorted((tmp_path / "orders").iterdir()) for line in path.read_text().splitlines()]
        apart: Counter[str] = Counter()
        for row in rows:
            if row.duplicate_of is not None:
                first = rows[row.duplicate_of]
                assert (first.event_id, lines[first.index]) == (row.event_id, lines[row.index])
                delay_s = (
                    datetime.fromisoformat(row.arrival_time) - datetime.fromisoformat(first.arrival_time)
                ).total_seconds()
                assert 0 <= delay_s <= 7_200
                apart["soon" if delay_s <= 90 else "within the hour" if delay_s <= 3_600 else "beyond it"] += 1
        copies = apart.total()
        assert copies == about(0.2, len(rows) - copies)
        assert apart["soon"] == pytest.approx(0.7 * copies, rel=0.1)
        assert min(apart["within the hour"], apart["beyond it"]) > copies // 10

    @pytest.mark.parametrize("stream", [name for name, each in FORMATS.items() if each.late_copies])
    def test_occur_in_every_stream(self, tmp_path: Path, stream: StreamName):
        often = Disorder(duplicates=0.3, malformed=0, future=0)
        simulate_files(shop(streams=(stream,), disorder=often), out=str(tmp_path), rows=400)
        copies = [row for row in read_truth(tmp_path / "_truth", stream) if row.duplicate_of is not None]
        assert {row.arrival for row in copies} == {"disordered", "late"}

    def test_of_sales_stay_near_unless_the_sale_is_late(self, tmp_path: Path):
        often = Disorder(duplicates=0.5, late=0, malformed=0, future=0)
        simulate_files(shop(streams=("sales",), disorder=often), out=str(tmp_path), rows=1_000)
        assert all(row.arrival != "late" for row in read_truth(tmp_path / "_truth", "sales"))


def test_orders_and_readings_are_only_emitted_when_they_are_named(tmp_path: Path):
    simulate_files(shop(), out=str(tmp_path), rows=30_000, rows_per_file=10_000)
    assert {path.name for path in tmp_path.iterdir()} == {*DEFAULT_STREAMS, "_truth"}
    assert shop().streams == ("sales", "products", "clicks", "visits", "payments")


def test_money_is_written_with_two_decimals_and_a_missing_amount_as_null(tmp_path: Path):
    simulate_files(shop(streams=("orders",), disorder=Disorder.none()), out=str(tmp_path), rows=1_000)
    lines = [line for path in (tmp_path / "orders").iterdir() for line in path.read_text().splitlines()]
    texts = [json.loads(line, parse_float=str)["amount"] for line in lines]
    assert None in texts
    assert "0.00" in texts
    assert all(text is None or len(text.partition(".")[2]) == 2 for text in texts)
    assert all(list(json.loads(line)) == list(FORMATS["orders"].columns) for line in lines)
