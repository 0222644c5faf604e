"""What a window may look like."""

from datetime import timedelta

import pytest

from spark_jobs.spec import DefinitionError, Hopping, Session, Tumbling


def test_a_tumbling_window_comes_as_often_as_it_is_long():
    assert Tumbling("1 hour").every == timedelta(hours=1)


def test_an_offset_starts_days_at_another_hour():
    assert Tumbling("1 day", offset="6 hours").offset == timedelta(hours=6)


def test_a_hopping_window_may_be_as_long_as_it_is_apart():
    assert Hopping("10 minutes", "10 minutes").every == timedelta(minutes=10)


@pytest.mark.parametrize(
    ("define", "field", "value", "way_out"),
    [
        (lambda: Tumbling("0 seconds"), "size", "0 seconds", "longer than zero"),
        (lambda: Tumbling("1 month"), "size", "1 month", "months and years have no fixed length"),
        (lambda: Tumbling("1 hour", offset="1 hour"), "offset", "1 hour", "less than 1 hour"),
        (lambda: Tumbling("1 hour", offset="-1 hour"), "offset", "-1 hour", "expected a duration"),
        (lambda: Tumbling(timedelta(microseconds=1)), "size", "microseconds=1", "whole number of milliseconds"),
        (lambda: Tumbling("9999999 weeks"), "size", "9999999 weeks", "at most 365000 days"),
        (lambda: Hopping("1 hour", "2 hours"), "every", "2 hours", "at most the size (1 hour)"),
        (lambda: Hopping("1 hour", "30 minutes", offset="45 minutes"), "offset", "45 minutes", "less than 30 minutes"),
        (lambda: Hopping("1 hour", "0 seconds"), "every", "0 seconds", "longer than zero"),
        (lambda: Hopping("365 days", "1 ms"), "every", "1 millisecond", "at least size / 10,000"),
        (lambda: Session("0 ms"), "gap", "0 ms", "longer than zero"),
        (lambda: Tumbling("1 hour", every="5 minutes"), "every", "5 minutes", "expected one of"),
    ],
)
def test_a_wrong_window_is_refused_with_its_field_its_value_and_a_way_out(define, field, value, way_out):
    with pytest.raises(DefinitionError) as refused:
        define()
    message = str(refused.value)
    assert f": {field}: " in message
    assert value in message
    assert way_out in message


def test_windows_with_gaps_are_refused_because_events_would_be_lost():
    with pytest.raises(DefinitionError, match="events between two windows would belong to none"):
        Hopping("5 minutes", "6 minutes")


def test_windows_are_values():
    assert Hopping("1 hour", "30 minutes") == Hopping("60 minutes", "1800 seconds")
    assert hash(Session("1 minute")) == hash(Session("60 seconds"))
    assert Tumbling("1 hour") != Tumbling("1 hour", offset="1 minute")
