"""The processors of registered pipelines without a JVM: what they say at the edges of their rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from spark_jobs.pipelines import registry
from spark_jobs.spec import Pipeline
from tidemark.testing import ProcessorTest

START = datetime(2026, 3, 1, 8, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def begin(name: str, **columns: str) -> ProcessorTest:
    definition = registry()[name]
    assert isinstance(definition, Pipeline)
    return ProcessorTest(definition, columns)


def picked(test: ProcessorTest, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in test.rows]


READING = {
    "machine_id": "STRING", "temperature": "DOUBLE", "vibration": "DOUBLE", "pressure": "DOUBLE",
    "read_at": "TIMESTAMP",
}  # fmt: skip


def reading(minutes: float, temperature: float | None = 60.0, **more: float | None) -> dict[str, Any]:
    sensors = {"vibration": None, "pressure": None, **more}
    return {"machine_id": "m", "read_at": at(minutes), "temperature": temperature, **sensors}


class TestSilence:
    def test_ten_minutes_by_the_clock_are_told_and_so_is_the_return(self) -> None:
        test = begin("silent_machines", **READING).clock(at(0)).events(reading(-60))
        assert test.clock(at(9.99)).rows == []
        test.clock(at(25))
        assert picked(test, "silent", "heard_at", "noticed_at") == [(True, at(0), at(10))]
        # It was read long before: what counts is that it arrives.
        test.events(reading(-30))
        assert picked(test, "silent", "heard_at", "noticed_at")[1:] == [(False, at(0), at(25))]
        assert test.timers(machine_id="m") == {"silence": at(35)}

    def test_a_machine_that_stays_silent_is_told_once(self) -> None:
        test = begin("silent_machines", **READING).clock(at(0)).events(reading(0)).clock(at(600))
        assert picked(test, "silent") == [(True,)]

    def test_readings_in_time_put_the_alert_off(self) -> None:
        test = begin("silent_machines", **READING).clock(at(0)).events(reading(0))
        for minutes in (9, 18, 27):
            test.clock(at(minutes)).events(reading(minutes))
        assert test.clock(at(36.9)).rows == []
        assert picked(test.clock(at(37)), "noticed_at") == [(at(37),)]


class TestHealth:
    def learned(self) -> ProcessorTest:
        """A machine whose thirty readings have the mean 60 and a deviation of about one."""
        return begin("machine_health", **READING).events(*(reading(n, 59.0 + 2 * (n % 2)) for n in range(30)))

    def test_three_readings_in_a_row_open_an_incident_and_three_end_it(self) -> None:
        test = self.learned().events(reading(30, 70), reading(31, 70), reading(32, 60))
        assert test.watermark(at(32)).rows == []
        test.events(*(reading(n, 70) for n in range(33, 40)), *(reading(n, 60) for n in range(40, 50)))
        found = picked(test.watermark(at(60)), "change", "read_at", "since", "sensor", "readings")
        # What was off was not learned; what is usual was.
        assert found == [
            ("opened", at(35), at(33), "temperature", 31), ("closed", at(42), at(33), "temperature", 34),
        ]  # fmt: skip

    def test_nothing_is_off_before_thirty_readings(self) -> None:
        few = [reading(n, 59.0 + 2 * (n % 2)) for n in range(27)]
        test = begin("machine_health", **READING).events(*few, *(reading(n, 90) for n in (27, 28, 29)))
        assert test.watermark(at(60)).rows == []

    def test_a_sensor_that_says_nothing_is_passed_over(self) -> None:
        test = self.learned().events(
            *(reading(n, None) for n in range(30, 40)), *(reading(n, 80) for n in (40, 41, 42))
        )
        assert picked(test.watermark(at(60)), "change", "since") == [("opened", at(40))]

    def test_a_sensor_that_has_never_moved_is_not_off_when_it_does(self) -> None:
        still = [reading(n, None, pressure=6.0) for n in range(40)]
        test = begin("machine_health", **READING).events(
            *still, *(reading(n, None, pressure=9.0) for n in (40, 41, 42))
        )
        assert test.watermark(at(60)).rows == []


PAYMENT = {
    "payment_id": "STRING", "card": "STRING", "country": "STRING", "amount": "DECIMAL(10, 2)", "paid_at": "TIMESTAMP",
}  # fmt: skip


def payment(number: int, minutes: float, amount: int = 10, country: str = "DE") -> dict[str, Any]:
    return {
        "payment_id": f"p{number}", "card": "c", "country": country, "amount": Decimal(amount), "paid_at": at(minutes),
    }  # fmt: skip


def cases(*payments: dict[str, Any]) -> list[tuple[Any, ...]]:
    return picked(begin("card_fraud", **PAYMENT).events(*payments).watermark(at(600)), "reason", "payment_id")


class TestFraud:
    def test_the_sixth_payment_in_ten_minutes_is_a_case(self) -> None:
        assert cases(*(payment(n, n * 1.99) for n in range(6))) == [("count", "p5")]
        # The first is ten minutes old by then.
        assert cases(*(payment(n, n * 2) for n in range(6))) == []

    def test_a_payment_that_is_told_twice_counts_once(self) -> None:
        assert cases(*(payment(n, n) for n in range(5)), *(payment(n, n) for n in range(5))) == []

    def test_a_case_is_told_once_until_a_payment_is_none(self) -> None:
        first, later = (payment(n, n) for n in range(8)), (payment(20 + n, 30 + n) for n in range(6))
        assert cases(*first, *later) == [("count", "p5"), ("count", "p25")]

    def test_more_than_a_thousand_in_ten_minutes_is_a_case(self) -> None:
        assert cases(payment(0, 0, 400), payment(1, 1, 600), payment(2, 2, 1)) == [("sum", "p2")]

    @pytest.mark.parametrize(("minutes", "is_case"), [(60, True), (60.001, False)])
    def test_two_countries_within_an_hour_are_a_case(self, minutes: float, is_case: bool) -> None:
        found = cases(payment(0, 0), payment(1, minutes, country="FR"))
        assert found == ([("countries", "p1")] if is_case else [])

    def test_a_card_is_forgotten_after_an_hour(self) -> None:
        test = begin("card_fraud", **PAYMENT).events(payment(0, 0)).watermark(at(59))
        assert test.state(card="c") is not None
        assert test.watermark(at(60)).state(card="c") is None


LOG = {"service": "STRING", "status_code": "INT", "requested_at": "TIMESTAMP"}


def minutes_of(*codes: int | None) -> list[dict[str, Any]]:
    """A request in each minute; None: no request."""
    return [
        {"service": "s", "status_code": code, "requested_at": at(minute + 0.5)}
        for minute, code in enumerate(codes)
        if code is not None
    ]


def incidents(*events: dict[str, Any]) -> list[tuple[Any, ...]]:
    test = begin("service_incidents", **LOG).events(*events).watermark(at(600))
    return picked(test, "change", "requested_at", "since", "requests", "errors")


class TestIncidents:
    def test_three_bad_minutes_open_an_incident_and_three_good_ones_close_it(self) -> None:
        assert incidents(*minutes_of(500, 500, 200, 500, 503, 599, 200, 404, 500, 200, 200, 301)) == [
            ("opened", at(6), at(3), 3, 3), ("closed", at(12), at(3), 3, 0),
        ]  # fmt: skip

    def test_a_minute_without_requests_says_nothing(self) -> None:
        assert incidents(*minutes_of(500, None, 500, None, None, 500)) == [("opened", at(6), at(0), 3, 3)]

    def test_one_error_in_ten_requests_is_not_bad(self) -> None:
        minute = [
            {"service": "s", "status_code": 500 if n == 0 else 200, "requested_at": at(n / 20)} for n in range(10)
        ]
        assert incidents(*minute, *minutes_of(None, 500, 500)) == []

    def test_the_first_request_of_a_minute_is_not_of_the_one_before(self) -> None:
        edge = [{"service": "s", "status_code": 200, "requested_at": at(3)}]
        assert incidents(*minutes_of(500, 500, 500), *edge) == [("opened", at(3), at(0), 3, 3)]


VISIT = {
    "visit_id": "STRING", "guest_id": "STRING", "drink": "STRING", "seated_at": "TIMESTAMP", "served_at": "TIMESTAMP",
    "told_at": "TIMESTAMP",
}  # fmt: skip


def step(told: float, drink: str | None = None, *, served: float | None = None) -> dict[str, Any]:
    served_at = None if served is None else at(served)
    return {
        "visit_id": "v", "guest_id": "g", "drink": drink, "seated_at": at(0), "served_at": served_at,
        "told_at": at(told),
    }  # fmt: skip


class TestService:
    def test_a_drink_after_the_mark_completes_the_row_of_the_mark(self) -> None:
        test = begin("cafe_service", **VISIT).events(step(0), step(2, "tea")).watermark(at(5))
        expected: list[tuple[Any, ...]] = [(at(5), "tea", None, False, False)]
        assert picked(test, "told_at", "drink", "minutes", "in_time", "is_complete") == expected
        test.events(step(7.5, "tea", served=7.5)).watermark(at(8))
        expected += [(at(7.5), "tea", 7.5, False, True)]
        assert picked(test, "told_at", "drink", "minutes", "in_time", "is_complete") == expected

    @pytest.mark.parametrize(("minutes", "in_time"), [(4, True), (5, True), (5.01, False)])
    def test_a_visit_that_is_told_as_a_whole_has_one_row(self, minutes: float, in_time: bool) -> None:
        test = begin("cafe_service", **VISIT).events(step(minutes, "tea", served=minutes)).watermark(at(100))
        assert picked(test, "minutes", "in_time", "is_complete") == [(minutes, in_time, True)]

    def test_a_drink_at_the_mark_is_in_time_and_has_one_row(self) -> None:
        test = begin("cafe_service", **VISIT).events(step(0), step(5, "tea", served=5)).watermark(at(100))
        assert picked(test, "told_at", "in_time", "is_complete") == [(at(5), True, True)]

    def test_what_is_told_again_gives_no_second_row(self) -> None:
        served = step(4, "tea", served=4)
        test = begin("cafe_service", **VISIT).events(step(0), step(0), served, served).watermark(at(100))
        assert len(test.rows) == 1


STREET = {
    "zone": "STRING", "latitude": "DOUBLE", "longitude": "DOUBLE", "asked_at": "TIMESTAMP", "request_id": "STRING",
    "rider_id": "STRING", "driver_id": "STRING",
}  # fmt: skip


def place(minutes: float, latitude: float, *, driver: str | None = None) -> dict[str, Any]:
    request = {"request_id": "r", "rider_id": "a"} if driver is None else {"driver_id": driver}
    zone = f"{int(latitude)}/13"
    return {"zone": zone, "latitude": latitude, "longitude": 13.4, "asked_at": at(minutes), **request}


def matched(*events: dict[str, Any]) -> list[tuple[Any, ...]]:
    return picked(begin("ride_matching", **STREET).events(*events).watermark(at(30)), "driver_id")


class TestMatching:
    def test_the_nearest_of_the_places_where_drivers_are_now_is_taken(self) -> None:
        # The first driver has gone away since.
        drivers = place(0, 52.5, driver="d1"), place(0.2, 52.9, driver="d1"), place(0.1, 52.6, driver="d2")
        test = begin("ride_matching", **STREET).events(*drivers, place(0.5, 52.51)).watermark(at(1))
        assert picked(test, "driver_id", "seen_at") == [("d2", at(0.1))]
        # A degree of latitude is 111.2 km.
        assert test.rows[0]["km"] == pytest.approx(0.09 * 111.195, rel=1e-4)

    @pytest.mark.parametrize(("minutes", "driver"), [(1, "d"), (1.001, None)])
    def test_a_place_is_forgotten_after_a_minute(self, minutes: float, driver: str | None) -> None:
        assert matched(place(0, 52.5, driver="d"), place(minutes, 52.5)) == [(driver,)]

    def test_a_place_of_the_same_instant_counts_whichever_came_first(self) -> None:
        assert matched(place(1, 52.5), place(1, 52.5, driver="d")) == [("d",)]

    def test_a_driver_of_another_zone_is_not_seen(self) -> None:
        assert matched(place(0, 53.001, driver="d"), place(0.5, 52.999)) == [(None,)]

    def test_a_zone_without_anything_for_an_hour_is_forgotten(self) -> None:
        test = begin("ride_matching", **STREET).events(place(0, 52.5, driver="d")).watermark(at(61))
        assert test.state(zone="52/13") is None


INTEREST = {"user_id": "STRING", "happened_at": "TIMESTAMP", "category": "STRING", "bought": "BOOLEAN"}
DAY = 24 * 60


def viewed(minutes: float, category: str, *, bought: bool = False) -> dict[str, Any]:
    return {"user_id": "u", "happened_at": at(minutes), "category": category, "bought": bought}


def offered(*events: dict[str, Any], upto: float = 10 * DAY) -> list[tuple[Any, ...]]:
    test = begin("personal_offers", **INTEREST).events(*events).watermark(at(upto))
    return picked(test, "happened_at", "offers", "views")


class TestOffers:
    def test_a_row_is_told_when_the_three_change(self) -> None:
        views = [viewed(n, category) for n, category in enumerate(("tea", "tea", "toys", "books", "garden", "garden"))]
        assert offered(*views, upto=10) == [
            (at(0), ["tea"], [1]),
            (at(2), ["tea", "toys"], [2, 1]),
            (at(3), ["tea", "books", "toys"], [2, 1, 1]),
            # As often as others: by name.
            (at(4), ["tea", "books", "garden"], [2, 1, 1]),
            (at(5), ["garden", "tea", "books"], [2, 2, 1]),
        ]

    def test_what_was_bought_is_offered_again_a_day_later(self) -> None:
        events = viewed(0, "tea"), viewed(1, "tea", bought=True), viewed(DAY, "tea")
        assert offered(*events, upto=DAY + 1) == [(at(0), ["tea"], [1]), (at(1), [], []), (at(DAY + 1), ["tea"], [1])]

    def test_a_view_is_forgotten_after_a_day_and_then_the_user(self) -> None:
        assert offered(viewed(0, "tea"), upto=2 * DAY) == [(at(0), ["tea"], [1]), (at(DAY), [], [])]
        test = begin("personal_offers", **INTEREST).events(viewed(0, "tea")).watermark(at(DAY))
        assert (test.state(user_id="u"), test.timers(user_id="u")) == (None, {})

    def test_a_click_that_is_told_twice_counts_once(self) -> None:
        assert offered(viewed(0, "tea"), viewed(0, "tea"), upto=1) == [(at(0), ["tea"], [1])]


class TestAWindowByHand:
    COLUMNS: ClassVar = {
        "hour": "TIMESTAMP", "product_id": "STRING", "quantity": "INT", "unit_price": "DECIMAL(10, 2)",
        "sold_at": "TIMESTAMP",
    }  # fmt: skip

    def sale(self, minutes: float, product: str, quantity: int = 1) -> dict[str, Any]:
        hour = at(60 * (minutes // 60))
        return {
            "hour": hour, "product_id": product, "quantity": quantity, "unit_price": Decimal("2.50"),
            "sold_at": at(minutes),
        }  # fmt: skip

    def test_an_hour_is_told_when_it_is_over_and_forgotten(self) -> None:
        test = begin("tumbling_by_hand", **self.COLUMNS)
        test.events(self.sale(1, "b"), self.sale(2, "a"), self.sale(59.9, "b", 2), self.sale(60, "a"))
        assert test.watermark(at(59.99)).rows == []
        assert picked(test.watermark(at(60)), "sold_at", "place", "product_id", "units", "revenue") == [
            (at(60), 1, "b", 3, Decimal("7.50")), (at(60), 2, "a", 1, Decimal("2.50")),
        ]  # fmt: skip
        assert test.state(hour=at(0)) is None
        assert test.ledger["remembered"] == 1

    def test_ten_products_are_told_and_equal_ones_in_order_of_their_name(self) -> None:
        test = begin("tumbling_by_hand", **self.COLUMNS).events(*(self.sale(1, f"p{n:02}") for n in range(12, 0, -1)))
        assert picked(test.watermark(at(60)), "product_id") == [(f"p{n:02}",) for n in range(1, 11)]
