"""Marks of late events beside a backfill that takes them out again, over real tables and without a JVM."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from spark_jobs.lake.accounting.repaired import late_rows, replayed_rows
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.checkpoints.lineage import Lineage
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.commit_records.basis import Basis, OutdatedPlanError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.plan import logical
from spark_jobs.recompute.target import Target
from tests.support import lakes
from tests.support.builders import a_lake, a_pipeline, write

TABLE, LATE, QUARANTINE = "gold.hourly_sales", "gold.hourly_sales__late", "gold.hourly_sales__quarantine"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENT = {"_epoch": pa.int32(), "_batch_id": pa.int64(), "_ingest_seq": pa.int64(), "_event_id": pa.string()}
MARK = {"settled_version": pa.int64(), "settled_at": lakes.TIMESTAMP}
MISSED = pa.list_(pa.struct([("window_start", lakes.TIMESTAMP)]))


def an_event(seq, **columns):
    return {"_epoch": 1, "_batch_id": 0, "_ingest_seq": seq, "_event_id": str(seq), "_ingest_time": NOON, **columns}


def events_of(columns, *rows):
    schema = pa.schema([*EVENT.items(), ("_ingest_time", lakes.TIMESTAMP), *MARK.items(), *columns.items()])
    return pa.Table.from_pylist(list(rows), schema=schema)


@pytest.fixture
def lake(tmp_path):
    """One event is late, and one was looked up again; the result counts neither."""
    lake = a_lake(tmp_path / "lake")
    begin_epoch(lake, a_pipeline(), 1)
    write(lake, TABLE, {"units": [1]})
    write(lake, LATE, events_of({"missed_windows": MISSED}, an_event(1, missed_windows=[{"window_start": NOON}])))
    replayed = {"replayed_batch": pa.int64(), "changes_from": lakes.TIMESTAMP, "changes_upto": lakes.TIMESTAMP}
    row = an_event(2, replayed_batch=3, changes_from=NOON, changes_upto=NOON)
    write(lake, QUARANTINE, events_of(replayed, row))
    return lake


class Run(Target):
    """A backfill or a repair, as far as it marks events: what is computed is no matter here."""

    def __init__(self, lake):
        self.lake, self.pipeline = lake, a_pipeline()
        self.logical = logical.build(self.pipeline)
        self.operator = self.logical.operator
        self.basis = Basis.of(lake, self.name, 1, (TABLE, LATE, QUARANTINE))

    def late(self, version=None, quarantine_version=None):
        _, late = late_rows(self.lake, LATE, Lineage((1,)), times=["sold_at"], in_windows=True)
        return pa.concat_tables([late, replayed_rows(self.lake, QUARANTINE, Lineage((1,)))[1]])

    def revise(self):
        """What it commits to the result, under the number that is next."""
        opened = open_table(self.lake, TABLE)
        writer, number = self.basis.revision(self.lake, TABLE, opened)
        said = CommitProperties(app_transactions=[Transaction(writer, number)])
        write_deltalake(opened, pa.table({"units": [2]}), mode="append", commit_properties=said)
        self.basis = self.basis.after(TABLE, number)
        return opened.version()


def take_out(lake):
    """A whole backfill as streamed, and how many events it has found marked."""
    run = Run(lake)
    for table in (LATE, QUARANTINE):
        run.basis.take_out(lake, table, TABLE)
    marked = run.late().filter(run.late()["repaired"])
    run.mark_repaired(marked, None)
    run.revise()
    return marked.num_rows


def repaired(lake):
    found = (row["settled_version"] for table in (LATE, QUARANTINE) for row in lakes.rows(lake, table))
    return [version for version in found if version is not None]


def test_a_slow_run_marks_nothing_that_was_taken_out_since(lake):
    slow = Run(lake)
    version = slow.revise()
    assert take_out(lake) == 0
    with pytest.raises(OutdatedPlanError, match=r"--as-streamed has taken.*out of gold\.hourly_sales.*run the same"):
        slow.mark_repaired(slow.late(), version)
    assert repaired(lake) == []
    again = Run(lake)
    again.mark_repaired(again.late(), again.revise())
    assert len(repaired(lake)) == 2


def test_a_mark_loses_against_a_take_out_in_the_middle_of_its_commit(lake, monkeypatch):
    slow = Run(lake)
    version, marking, taken = slow.revise(), Basis.marking, []

    def taken_out_once_all_is_checked(*arguments, **named):
        held = marking(*arguments, **named)
        if not taken:
            taken.append(take_out(lake))
        return held

    monkeypatch.setattr(Basis, "marking", taken_out_once_all_is_checked)
    with pytest.raises(OutdatedPlanError, match="has taken late or replayed events out"):
        slow.mark_repaired(slow.late(), version)
    assert (taken, repaired(lake)) == ([0], [])


def test_what_was_marked_before_it_was_taken_out_is_found_and_unmarked(lake):
    first = Run(lake)
    first.mark_repaired(first.late(), first.revise())
    assert take_out(lake) == 2
    assert repaired(lake) == []


def test_another_run_that_counts_does_not_disturb_a_mark(lake):
    first = Run(lake)
    version = first.revise()
    second = Run(lake)
    second.mark_repaired(second.late().slice(1), second.revise())
    first.mark_repaired(first.late().slice(0, 1), version)
    assert len(repaired(lake)) == 2


def test_after_an_interrupted_take_out_marks_wait_for_a_revision(lake):
    Run(lake).basis.take_out(lake, LATE, TABLE)
    run = Run(lake)
    assert run.basis.is_behind(TABLE)
    with pytest.raises(OutdatedPlanError, match="has taken"):
        run.mark_repaired(run.late(), 0)
    version = run.revise()
    assert not run.basis.is_behind(TABLE)
    run.mark_repaired(run.late(), version)
    assert len(repaired(lake)) == 2


def test_a_slow_run_marks_nothing_in_the_next_epoch(lake):
    slow = Run(lake)
    version, late = slow.revise(), slow.late()
    reset(lake, a_pipeline(), empty_tables=True)
    write(lake, LATE, events_of({"missed_windows": MISSED}, an_event(1)))
    with pytest.raises(OutdatedPlanError, match=r"a reset or a rebuild has taken gold\.hourly_sales__late since"):
        slow.mark_repaired(late, version)
    assert repaired(lake) == []
