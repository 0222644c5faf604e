"""Durations as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.spec.durations import duration_ms, format_duration, parse_duration

LONGEST_MS = 365_000 * 24 * 3_600_000
whole_milliseconds = st.integers(0, LONGEST_MS).map(lambda ms: timedelta(milliseconds=ms))


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("30 seconds", timedelta(seconds=30)),
        ("1 second", timedelta(seconds=1)),
        ("1 hour 30 minutes", timedelta(minutes=90)),
        ("1 hour, 30 minutes", timedelta(minutes=90)),
        ("1hour30minutes", timedelta(minutes=90)),
        ("  2 WEEKS ", timedelta(days=14)),
        ("5 ms", timedelta(milliseconds=5)),
        ("5 milliseconds", timedelta(milliseconds=5)),
        ("0 seconds", timedelta(0)),
        ("90 minutes 90 minutes", timedelta(hours=3)),
    ],
)
def test_a_duration_is_a_sum_of_numbers_with_units(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    ["", "   ", "soon", "5", "seconds", "1.5 hours", "-1 hour", "1 h", "5 mss", "1 hour,", "1 ,hour", "1 hour half",
     "٣ days", 5, None, True],
)  # fmt: skip
def test_what_is_no_such_sum_is_refused_with_an_example_and_the_value(text):
    with pytest.raises(ValueError, match="expected a duration such as") as refused:
        parse_duration(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["1 month", "2 years", "3 Months"])
def test_months_and_years_have_no_length_and_the_message_says_so(text):
    with pytest.raises(ValueError, match="months and years have no fixed length"):
        parse_duration(text)


@pytest.mark.parametrize(
    "duration",
    ["365001 days", "9" * 30 + " days", timedelta(days=999_999_999), timedelta(days=365_000, milliseconds=1)],
)
def test_what_no_timestamp_could_be_moved_by_is_refused(duration):
    with pytest.raises(ValueError, match="at most 365000 days"):
        parse_duration(duration)


def test_a_timedelta_passes_through():
    assert parse_duration(timedelta(minutes=3)) == timedelta(minutes=3)


def test_a_negative_timedelta_is_refused():
    with pytest.raises(ValueError, match="negative"):
        parse_duration(timedelta(seconds=-1))


def test_a_part_of_a_millisecond_is_refused_and_not_cut_off():
    with pytest.raises(ValueError, match="whole number of milliseconds"):
        parse_duration(timedelta(microseconds=1500))


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(days=8, hours=1, milliseconds=2), "1 week 1 day 1 hour 2 milliseconds"),
    ],
)
def test_a_duration_is_written_from_large_to_small(duration, text):
    assert format_duration(duration) == text


@given(whole_milliseconds)
def test_what_is_written_is_read_back(duration):
    assert parse_duration(format_duration(duration)) == duration


@given(whole_milliseconds)
def test_milliseconds_are_exact(duration):
    assert duration_ms(duration) * 1000 == duration.days * 86_400_000_000 + duration.seconds * 10**6 + (
        duration.microseconds
    )
