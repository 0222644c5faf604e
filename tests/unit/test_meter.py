"""Rates, shares and pressure of a running pipeline."""

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.job.meter import Counts, Meter, checkpoint_ms, state_bytes

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def minutes(count):
    return NOW + timedelta(minutes=count)


def test_rates_are_of_the_clock_and_of_the_time_that_batches_took():
    meter = Meter()
    meter.take(Counts(), now=NOW)
    meter.take(Counts(read=6000, batches=10, batch_seconds=30), now=minutes(1))
    assert meter.input_rows_per_s == pytest.approx(100)
    assert meter.processed_rows_per_s == pytest.approx(200)


def test_what_is_older_than_ten_minutes_does_not_count():
    meter = Meter()
    for minute in range(31):
        late = 50 if minute >= 1 else 0
        meter.take(Counts(read=100 * minute, late=late, batches=minute), now=minutes(minute))
    assert (meter.recent.read, meter.recent.late) == (1000, 0)


def test_a_driver_that_has_just_started_counts_from_its_start():
    meter = Meter()
    meter.take(Counts(read=100, late=5, batches=1), now=NOW)
    assert (meter.recent.read, meter.recent.late) == (100, 5)


def test_a_query_that_was_started_again_counts_anew():
    meter = Meter()
    meter.take(Counts(read=1000, batches=10), now=NOW)
    meter.take(Counts(read=20, batches=1), now=minutes(1))
    assert meter.recent.read == 20


def press(meter, minute, *, too_long=False, behind=0):
    return meter.press(batch_too_long=too_long, rows_behind=behind, now=minutes(minute))


def test_batches_longer_than_their_interval_press_since_the_first_of_them():
    meter = Meter()
    assert press(meter, 0) is None
    assert press(meter, 1, too_long=True) == minutes(1)
    assert press(meter, 5, too_long=True) == minutes(1)
    assert press(meter, 6) is None


def test_a_backlog_that_never_shrinks_presses_and_one_that_does_begins_anew():
    meter = Meter()
    assert press(meter, 0, behind=100) == minutes(0)
    assert press(meter, 4, behind=150) == minutes(0)
    assert press(meter, 5, behind=90) == minutes(5)
    assert press(meter, 6, behind=0) is None


def test_the_time_of_a_checkpoint_is_that_of_its_logs_and_of_state():
    progress = {
        "durationMs": {"walCommit": 5, "commitOffsets": 7, "addBatch": 900},
        "stateOperators": [{"commitTimeMs": 30, "memoryUsedBytes": 100}, {"commitTimeMs": 1, "memoryUsedBytes": 1}],
    }
    assert (checkpoint_ms(progress), state_bytes(progress)) == (43, 101)
    assert (checkpoint_ms({}), state_bytes({})) == (0, None)
