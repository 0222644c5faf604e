"""In which batch a stream has read an event, by the event's number."""

from __future__ import annotations

import pytest

from spark_jobs.batch.batches import NEVER_US, Batches

# Batch 3 has read two files, batch 4 one, batch 6 the last.
BATCHES = Batches(first=(0, 100, 200, 300), batch=(3, 3, 4, 6), closed_us=(10, 10, 20, 30))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0, 0), (10, 3)),
        ((99, 200), (10, 4)),
        ((200, 299), (20, 4)),
        ((250, 1000), (20, 6)),
        (None, (10, 6)),
    ],
)
def test_events_lie_between_a_watermark_and_a_batch(numbers: tuple[int, int] | None, expected: tuple[int, int]) -> None:
    assert BATCHES.of(numbers) == expected


@pytest.mark.parametrize(("batch", "end"), [(2, -1), (3, 200), (4, 300), (5, 300), (6, NEVER_US)])
def test_what_a_batch_and_those_before_it_have_read_ends_at_a_number(batch: int, end: int) -> None:
    assert BATCHES.end_of(batch) == end


def test_a_stream_that_has_read_nothing_of_a_table_has_no_batch_of_it() -> None:
    nothing = Batches((), (), ())
    assert nothing.of((0, 5)) == (NEVER_US, -1)
    assert nothing.end_of(7) == -1
