"""Sessions as the stream has made them, of events in their batches."""

import pyarrow as pa

from spark_jobs.plan.columns import BATCH, CLOSED
from spark_jobs.transforms.recorded_batches import _sessions


def sessions(*events):
    """From and up to, of events with batch, closed, time and gap."""
    columns = zip(*events, strict=True)
    found = _sessions(pa.table(dict(zip((BATCH, CLOSED, "__at_us", "__gap_of_event_us"), columns, strict=True))))
    return list(zip(found["__session_from_us"].to_pylist(), found["__session_upto_us"].to_pylist(), strict=True))


def test_an_event_draws_together_what_it_touches():
    assert sessions((1, 0, 30, 10), (1, 0, 10, 10), (2, 5, 20, 10)) == [(10, 40)] * 3


def test_a_session_that_has_left_the_state_is_as_it_was():
    # The third event would touch the first session, which the watermark has closed.
    assert sessions((1, 0, 10, 10), (1, 0, 15, 10), (2, 25, 25, 10), (2, 25, 30, 5)) == [(10, 25)] * 2 + [(25, 35)] * 2


def test_a_long_session_is_not_copied_for_each_of_its_events():
    count = 30_000
    events = ((number // 100, 0, number, 10) for number in range(count))
    assert set(sessions(*events)) == {(0, count + 9)}
