"""`ops.ledger`: the commits of a table are kept, so that history is known when the table's log is cut."""

import shutil
from pathlib import Path

import pytest

from spark_jobs.lake.accounting.ledger_compaction import compact_ledger
from spark_jobs.lake.accounting.ledger_table import KeptCommits
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.checkpoints.offsets import read_between
from spark_jobs.lake.commit_records import history
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.plan.logical import build
from tests.support.builders import a_batch, a_lake, a_pipeline, a_stamp, write

TABLE, NAME = "gold.hourly_sales", "hourly_sales"


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path)


def a_history(lake, batches: int, *, first: int = 0) -> None:
    """Batches of one row; the third is commented by somebody else."""
    for batch_id in range(first, first + batches):
        entry = a_batch(2, pairs=2, pairs_result=2, state_rows=0, reasons={"not_null(a)": 1})
        write(lake, TABLE, {"n": [batch_id]}, stamp=a_stamp(batch_id, ledger=entry))


def cut_log(lake, below: int) -> None:
    """As maintenance does, once a checkpoint of the log has what it said."""
    open_table(lake, TABLE).create_checkpoint()
    for version in range(below):
        Path(lake.table_path(TABLE), "_delta_log", f"{version:020d}.json").unlink()


def test_what_was_kept_is_known_when_the_log_is_cut(lake):
    a_history(lake, 12)
    before = history.ledger_rows(lake, TABLE, NAME, 1)
    commits = [version for version, _ in history.commits_between(lake, TABLE, 0, 11)]
    assert compact_ledger(lake, TABLE) == 12
    assert compact_ledger(lake, TABLE) == 0
    cut_log(lake, 10)
    assert history.ledger_rows(lake, TABLE, NAME, 1) == before
    assert [version for version, _ in history.commits_between(lake, TABLE, 0, 11)] == commits == list(range(12))
    assert history.find_stamp(lake, TABLE, lambda stamp: stamp.batch_id < 3) == a_stamp(2, ledger=before[2][1])
    a_history(lake, 3, first=12)
    assert [batch_id for batch_id, _ in history.ledger_rows(lake, TABLE, NAME, 1)] == list(range(15))


def test_sums_are_those_of_all_entries_however_often_they_are_kept(lake):
    definition = a_pipeline(name=NAME)
    begin_epoch(lake, definition, 1)
    equations = build(definition).equations
    for first in range(0, 9, 3):
        a_history(lake, 3, first=first)
        compact_ledger(lake, TABLE)
    a_history(lake, 2, first=9)
    whole = history.EpochLedger.of(history.ledger_rows(lake, TABLE, NAME, 1), equations)
    found = history.epoch_ledger(lake, TABLE, NAME, 1, equations, last=1)
    assert found.checked == whole.checked
    assert (found.totals["read"], found.totals.batches, found.totals.reasons) == (22, 11, {"not_null(a)": 11})
    assert [batch_id for batch_id, _ in found.rows] == [9, 10]
    assert history.epoch_ledger(lake, TABLE, NAME, 1, equations).rows == whole.rows
    newest = history.epoch_ledger(lake, TABLE, NAME, 1, equations, last=5).rows
    assert [batch_id for batch_id, _ in newest] == [6, 7, 8, 9, 10]


def test_what_does_not_agree_stays_known(lake):
    definition = a_pipeline(name=NAME)
    begin_epoch(lake, definition, 1)
    write(lake, TABLE, {"n": [0]}, stamp=a_stamp(0, ledger=a_batch(5, on_time=4)))
    compact_ledger(lake, TABLE)
    write(lake, TABLE, {"n": [1]}, stamp=a_stamp(2, ledger=a_batch(1)))
    compact_ledger(lake, TABLE)
    found = history.epoch_ledger(lake, TABLE, NAME, 1, build(definition).equations, last=1)
    assert found.checked.discrepancies[0] == "batch 0: read 5 events, accounts for 4"
    assert "batch 2: expected batch 1 next; its ledger row is missing" in found.checked.discrepancies


def test_rows_between_two_places_are_counted_where_the_log_is_cut(lake):
    a_history(lake, 40)
    offset = '{"reservoirVersion": %d, "index": -1}'
    before = read_between(lake, TABLE, 0, "", offset % 40).rows
    compact_ledger(lake, TABLE)
    cut_log(lake, 38)
    assert read_between(lake, TABLE, 0, "", offset % 40).rows == before == 40
    assert read_between(lake, TABLE, 0, offset % 7, offset % 39).rows == 32


def test_of_two_that_keep_the_same_commits_one_does(lake):
    a_history(lake, 3)
    stale = KeptCommits(lake, TABLE)
    compact_ledger(lake, TABLE)
    assert (stale.below, KeptCommits(lake, TABLE).below) == (0, 3)
    assert len(KeptCommits(lake, TABLE).newest_first()) == 3


def test_a_table_that_is_removed_and_made_again_has_a_history_of_its_own(lake):
    a_history(lake, 5)
    compact_ledger(lake, TABLE)
    shutil.rmtree(lake.table_path(TABLE))
    a_history(lake, 2)
    assert len(history.ledger_rows(lake, TABLE, NAME, 1)) == 2
    compact_ledger(lake, TABLE)
    assert len(history.ledger_rows(lake, TABLE, NAME, 1)) == 2
