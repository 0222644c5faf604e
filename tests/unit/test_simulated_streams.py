"""The simulator's machines at work, shares, parcels, rides, accounts, cards and services: who, what and when."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise, takewhile
from typing import Any

import pytest

from spark_jobs.simulator import Shop, StreamName
from spark_jobs.simulator.card_payments import STOLEN
from spark_jobs.simulator.request_logs import ERRORS, SERVICES
from spark_jobs.simulator.rides import CENTRE, OFF_DUTY, REACH
from spark_jobs.simulator.shipments import IN_TWO_PARCELS, LONG_AFTER, NEVER, NEXT_DAYS, WITHOUT_ORDER
from spark_jobs.simulator.statuses import STATUSES
from spark_jobs.simulator.timeline import timeline
from spark_jobs.simulator.transfers import INCOMING

START = datetime(2024, 5, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000

Row = Mapping[str, Any]


def happened(stream: StreamName, hours: float, **settings: Any) -> list[Row]:
    """What truly happened within the first hours."""
    a_shop = Shop(**{"seed": 7, "start": START, "rate": None, "density": 2.0, "streams": (stream,), **settings})
    until_ms = START_MS + hours * HOUR_MS
    events = takewhile(lambda event: event.event_time_ms < until_ms, timeline(a_shop, START_MS))
    return [event.values for event in events]


def by(rows: list[Row], column: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[column]].append(row)
    return found


def about(share: float, of: int) -> Any:
    """A count that is not far from its share: within 4.5 standard deviations."""
    return pytest.approx(share * of, abs=4.5 * (share * (1 - share) * of) ** 0.5)


class TestStatuses:
    def test_tell_of_each_machine_at_the_start_and_then_of_changes(self):
        machines = by(happened("statuses", 24), "machine_id")
        assert sorted(machines) == [f"m-{number:02d}" for number in range(1, 11)]
        for rows in machines.values():
            assert (rows[0]["status"], rows[0]["changed_at"]) == ("running", START_MS)
            assert all(a["status"] != b["status"] and a["changed_at"] < b["changed_at"] for a, b in pairwise(rows))
        assert {row["status"] for rows in machines.values() for row in rows} == set(STATUSES)
        assert sum(map(len, machines.values())) == pytest.approx(10 * 24 * 3, rel=0.15)

    def test_change_as_often_as_is_asked_for(self):
        assert len(happened("statuses", 4, status_change_every="1 minute", machines=1)) == pytest.approx(240, rel=0.3)


class TestTicks:
    def test_are_half_as_many_as_sales_and_have_times_of_their_own(self):
        rows = happened("ticks", 4)
        assert len(rows) == pytest.approx(4 * 3_600, rel=0.05)
        symbols = by(rows, "symbol")
        assert len(symbols) == 8
        assert all(a["traded_at"] < b["traded_at"] for rows in symbols.values() for a, b in pairwise(rows))

    def test_have_prices_that_move_a_little_and_are_money(self):
        for rows in by(happened("ticks", 4), "symbol").values():
            prices = [row["price"] for row in rows]
            assert len(set(prices)) > 50
            assert all(price > 0 and price.as_tuple().exponent == -2 for price in prices)
            assert all(abs(b - a) <= a * Decimal("0.006") + Decimal("0.01") for a, b in pairwise(prices))
            assert min(row["volume"] for row in rows) >= 1


class TestShipments:
    def test_come_soon_next_days_long_after_or_never(self):
        # Of the orders of one day, whatever happens to them within the month.
        sent = happened("shipments", 31 * 24, density=0.2)
        orders = {row["order_id"]: row for row in happened("orders", 24, density=0.2)}
        good = {name for name, row in orders.items() if row["amount"] is not None and row["amount"] >= 0}
        parcels = by([row for row in sent if row["order_id"] in good], "order_id")
        plans: Counter[str] = Counter()
        for name in good:
            waits = sorted(row["shipped_at"] - orders[name]["ordered_at"] for row in parcels.get(name, []))
            if not waits:
                plans["never"] += 1
                continue
            assert 10 * MINUTE_MS <= waits[0] <= 29 * DAY_MS
            plans["long after" if waits[0] >= 3 * DAY_MS else "next days" if waits[0] >= 6 * HOUR_MS else "soon"] += 1
            plans["in two"] += len(waits) == 2
        assert len(good) > 3_000
        assert plans["never"] == about(NEVER, len(good))
        assert plans["long after"] == about(LONG_AFTER, len(good))
        assert plans["next days"] == about(NEXT_DAYS, len(good))
        assert plans["in two"] == about(IN_TWO_PARCELS * (1 - NEVER), len(good))

    def test_of_what_was_sent_back_there_are_none_and_some_have_no_order(self):
        sent, orders = happened("shipments", 12), {row["order_id"]: row for row in happened("orders", 12)}
        known = [orders[row["order_id"]]["amount"] for row in sent if row["order_id"] in orders]
        assert all(amount is not None and amount >= 0 for amount in known)
        assert len(sent) - len(known) == about(WITHOUT_ORDER, len(orders))
        assert len({row["shipment_id"] for row in sent}) == len(sent)


class TestRides:
    def test_are_asked_for_in_the_city(self):
        rows = happened("ride_requests", 4)
        assert len(rows) == pytest.approx(4 * 720, rel=0.1)
        for row in rows:
            assert abs(row["latitude"] - CENTRE[0]) <= REACH[0]
            assert abs(row["longitude"] - CENTRE[1]) <= REACH[1]

    def test_drivers_move_a_little_between_two_positions(self):
        for rows in by(happened("driver_positions", 4), "driver_id").values():
            for a, b in pairwise(rows):
                assert b["seen_at"] - a["seen_at"] >= 20_000
                assert max(abs(b["latitude"] - a["latitude"]), abs(b["longitude"] - a["longitude"])) <= 0.002001
            assert len({(row["latitude"], row["longitude"]) for row in rows}) > len(rows) * 0.9

    def test_drivers_are_off_duty_for_a_while_now_and_then(self):
        rows = happened("driver_positions", 24)
        assert len(by(rows, "driver_id")) == 30
        assert len(rows) == pytest.approx(30 * 24 * 180 * (1 - OFF_DUTY), rel=0.04)


class TestTransfers:
    def test_come_and_go_and_are_never_nothing(self):
        rows = happened("transfers", 12)
        amounts = [row["amount"] for row in rows]
        assert sum(amount > 0 for amount in amounts) == about(INCOMING, len(rows))
        assert 0 not in amounts
        assert all(amount.as_tuple().exponent == -2 for amount in amounts)
        assert abs(statistics.mean(amounts)) < 15, "balances do not run away"
        assert len(by(rows, "account")) == 200


class TestCardPayments:
    def test_are_made_at_home_but_by_thieves(self):
        rows = happened("card_payments", 24)
        cards = by(rows, "card")
        homes = {card: Counter(row["country"] for row in rows).most_common(1)[0][0] for card, rows in cards.items()}
        abroad = [row for row in rows if row["country"] != homes[row["card"]]]
        owners = sum(row["payment_id"].endswith("-0") for row in rows)
        assert len(abroad) == pytest.approx(1.5 * STOLEN / 2 * owners, rel=0.3)
        for row in abroad:
            at_home = [each for each in cards[row["card"]] if each["country"] == homes[row["card"]]]
            assert any(0 < row["paid_at"] - each["paid_at"] < 45 * MINUTE_MS for each in at_home)

    def test_of_a_stolen_card_are_many_within_ten_minutes(self):
        rows = happened("card_payments", 24)
        most = 0
        for of_card in by(rows, "card").values():
            times = sorted(row["paid_at"] for row in of_card)
            most += any(b - a <= 8 * MINUTE_MS for a, b in zip(times, times[5:], strict=False))
        assert most > 30
        assert all(row["amount"] > 0 and row["amount"].as_tuple().exponent == -2 for row in rows)


class TestRequestLogs:
    def test_services_fail_for_minutes_every_few_hours(self):
        rows = happened("request_logs", 24)
        assert set(by(rows, "service")) == set(SERVICES)
        bad, usual = [], []
        for of_service in by(rows, "service").values():
            minutes = by([{**row, "minute": row["requested_at"] // MINUTE_MS} for row in of_service], "minute")
            shares = {
                minute: sum(row["status_code"] >= 500 for row in each) / len(each)
                for minute, each in minutes.items()
                if len(each) >= 8
            }
            long = [m for m in shares if all(shares.get(m + step, 0) > 0.15 for step in range(3))]
            assert 1 <= len(long) <= 200
            bad += [row["latency_ms"] for minute in long for row in minutes[minute]]
            usual += [row for minute in shares if shares[minute] < 0.15 for row in minutes[minute]]
        assert sum(row["status_code"] >= 500 for row in usual) / len(usual) == pytest.approx(ERRORS, rel=0.3)
        assert statistics.median(bad) > 4 * statistics.median(row["latency_ms"] for row in usual)

    def test_have_ids_of_their_own(self):
        for stream in ("request_logs", "ride_requests", "transfers", "card_payments"):
            rows = happened(stream, 2)
            ids = {row[name] for row in rows for name in row if name in ("request_id", "transfer_id", "payment_id")}
            assert len(ids) == len(rows) > 0
