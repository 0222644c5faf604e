"""In which batch a stream has read an event, by the event's number."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.recompute import recorded_batches as batches
from spark_jobs.recompute.recorded_batches import NEVER_US, Batches, batches_of
from spark_jobs.recompute.target import Target
from spark_jobs.spec import Deduplicate, Watermark
from tests.support import lakes
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, write

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


def test_a_stream_may_stand_in_the_middle_of_a_version(tmp_path, monkeypatch):
    lake = a_lake(tmp_path / "lake")
    bronze = lakes.Bronze(lake, "bronze.sales", {"product_id": pa.string(), "sold_at": lakes.TIMESTAMP}, "sold_at")
    bronze.append([{"product_id": "a", "sold_at": datetime(2026, 1, 1, tzinfo=UTC)}])
    definition = a_pipeline(steps=(Deduplicate("product_id", within="1 hour"),), watermark=Watermark(delay="2 minutes"))
    begin_epoch(lake, definition, 1)
    for batch, (version, index) in enumerate([(1, 1), (2, 0)]):
        offset = f'{{"reservoirId":"x","reservoirVersion":{version},"index":{index},"isStartingVersion":false}}'
        sources = {f"DeltaSource[{lake.table_uri('bronze.sales')}]": offset}
        entry = a_batch(2, sources=sources).model_copy(update={"late_watermark_ms": batch})
        rows = pa.table({"sold_at": pa.array([], lakes.TIMESTAMP)})
        write(lake, definition.sink.table, rows, stamp=a_stamp(batch, ledger=entry))
    # The last batch has read the first of three files.
    files = [(0, []), (1, [(0, 4), (5, 9)]), (2, [(10, 11), (12, 13), (14, 20)])]
    monkeypatch.setattr(batches, "numbers_between", lambda target, table, first, last: files[first : last + 1])
    found = batches_of(Target(lake, definition), "bronze.sales")
    assert found == Batches(first=(0, 5, 10), batch=(0, 0, 1), closed_us=(0, 0, 1000))
