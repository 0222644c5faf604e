"""Which times of events are believed: one that is not would move the watermark, and make all honest events late."""

from datetime import timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.plan.columns import HEARTBEAT, INGEST_TIME
from spark_jobs.spec.durations import duration_ms

FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 of the calendar, in microseconds since 1970: what DATE and TIMESTAMP are defined for."""


def outside_years(us: Column) -> Column:
    """Whether an instant lies outside the years 1 to 9999.

    Args:
        us: microseconds since 1970.
    """
    return (us < F.lit(FIRST_US)) | (us > F.lit(LAST_US))


def too_far_ahead(time: Column, arrival: Column, max_future: timedelta) -> Column:
    """Whether an event claims to be from later than its arrival allows.

    Args:
        time: of the event.
        arrival: when it came.
        max_future: how far ahead of its arrival its time may be.
    """
    # Compared without a difference, which could overflow: a stream would stop at such a row for ever.
    latest_us = F.least(F.unix_micros(arrival), F.lit(LAST_US)) + F.lit(duration_ms(max_future) * 1000)
    return F.unix_micros(time) > latest_us


def believed(time: Column, max_future: timedelta) -> Column:
    """The time of an event of bronze; null where it is not believed. That of a heartbeat is Tidemark's own.

    Args:
        time: of the event, by a column that its ingest may not have judged.
        max_future: how far ahead of its arrival it may be.
    """
    wrong = outside_years(F.unix_micros(time)) | too_far_ahead(time, F.col(INGEST_TIME), max_future)
    return F.when(F.col(HEARTBEAT) | ~F.coalesce(wrong, F.lit(False)), time)
