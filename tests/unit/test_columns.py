"""A column that a source has renamed is told by the monitor: by the field that nobody takes, and by its nulls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.control.monitoring import monitor
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import begin_epoch, open_epoch
from tests.support.builders import a_batch, a_lake, a_stamp, an_ingest, write
from tests.support.deploying import deploy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Ingest:
    """An ingest whose batches a test writes, and the monitor that looks at it."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.at, self.batches, self.epoch = lake, NOW, 0, 1
        deploy(lake, [an_ingest()])
        open_epoch(lake, an_ingest())

    def batch(self, rows: int = 100, **figures: object) -> None:
        """A batch a minute later."""
        self.at += MINUTE
        ledger = a_batch(rows, started_ms=round(self.at.timestamp() * 1000), rows=rows, **figures)
        names = {"pipeline": "ingest_sales", "epoch": self.epoch, "rows": rows}
        write(self.lake, "bronze.sales", {"n": [self.batches]}, stamp=a_stamp(self.batches, ledger=ledger, **names))
        self.batches += 1

    def wrong(self) -> set[str]:
        """What the monitor says is wrong with columns."""
        (report,) = monitor.look(self.lake, now=self.at).reports
        kinds = {breach.rpartition("#")[2] for breach in report.breaches}
        return kinds & {"unknown-fields", "null-share"}


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    return Ingest(a_lake(tmp_path))


def test_a_column_that_is_suddenly_null_is_told_until_it_holds_values(ingest: Ingest) -> None:
    ingest.batch(nulls={"quantity": 7})
    assert ingest.wrong() == set()
    for _ in range(12):
        ingest.batch(nulls={"quantity": 100})
        told = ingest.wrong()
    assert told == {"null-share"}, "ten minutes later nothing of the newest batches holds a value"
    ingest.batch(nulls={"quantity": 50})
    assert ingest.wrong() == set()


def test_a_column_that_is_null_from_the_first_batch_on_is_not_told(ingest: Ingest) -> None:
    for _ in range(15):
        ingest.batch(nulls={"quantity": 100, "sale_id": 60})
        assert ingest.wrong() == set()


def test_what_a_column_held_in_an_earlier_epoch_counts_no_more(ingest: Ingest) -> None:
    ingest.batch()
    assert ingest.wrong() == set()
    ingest.epoch = begin_epoch(ingest.lake, an_ingest(), 2).number
    ingest.batches = 0
    for _ in range(12):
        ingest.batch(nulls={"quantity": 100})
    assert ingest.wrong() == set()


def test_old_batches_say_nothing_of_now(ingest: Ingest) -> None:
    ingest.batch(searched=100, unknown=100, unknown_fields=("price",))
    assert ingest.wrong() == {"unknown-fields"}
    ingest.at += 11 * MINUTE
    assert ingest.wrong() == set()
