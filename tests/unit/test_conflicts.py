"""Commits that fail: because others have committed meanwhile, or because they cannot be made at all."""

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_jobs.lake.checkpoints import swapping
from spark_jobs.lake.checkpoints.claims import take_over
from spark_jobs.lake.checkpoints.epochs import begin_epoch
from spark_jobs.lake.checkpoints.reset import empty
from spark_jobs.lake.checkpoints.swapping import Content
from spark_jobs.lake.commit_records import conditional
from spark_jobs.lake.commit_records.basis import OutdatedPlanError
from spark_jobs.lake.commit_records.conflicts import is_of_others
from spark_jobs.lake.commit_records.revisions import Revision
from spark_jobs.lake.errors import ConflictError, LakeUnavailableError
from spark_jobs.lake.tables.opening import open_table, row_count
from tests.support import lakes
from tests.support.builders import a_lake, a_pipeline, write

TABLE, ASIDE = "gold.hourly_sales", "gold.hourly_sales__rebuilt_0123456789ab"
ROWS = pa.table({"n": pa.array([1, 2], pa.int64())})


@pytest.fixture
def lake(tmp_path):
    lake = a_lake(tmp_path)
    write(lake, TABLE, ROWS)
    write(lake, ASIDE, pa.table({"n": pa.array([7], pa.int64())}))
    return lake


@pytest.fixture
def claim(lake):
    return take_over(lake, begin_epoch(lake, a_pipeline(), 1), [TABLE])


def refuse_changes(lake):
    """A table that lets nobody take rows away."""
    open_table(lake, TABLE).alter.set_table_properties({"delta.appendOnly": "true"})


def content():
    return Content(TABLE, ASIDE, Revision(pipeline="hourly_sales", epoch=2, run="rebuild-1", role="result"))


def overwrite(lake, claim):
    swapping._overwrite(lake, content(), claim)


def take_away(lake, claim):
    empty(TABLE, claim)


@pytest.mark.parametrize("change", [overwrite, take_away])
def test_what_a_table_refuses_is_told_with_what_it_said(lake, claim, change):
    refuse_changes(lake)
    with pytest.raises(
        LakeUnavailableError,
        match=r"gold\.hourly_sales: the commit was refused: .*append-only\. pipeline `hourly_sales`: its rows are as",
    ):
        change(lake, claim)
    assert row_count(open_table(lake, TABLE)) == 2


@pytest.mark.parametrize(("change", "left"), [(overwrite, [7]), (take_away, [])])
def test_a_commit_of_maintenance_in_between_is_no_obstacle(lake, claim, change, left, monkeypatch):
    """It has put the rows into other files once the claim was looked at."""
    held, compacted = type(claim).held, []

    def and_then_maintenance(self, table, opened):
        found = held(self, table, opened)
        if not compacted:
            compacted.append(write_deltalake(lake.table_uri(TABLE), ROWS, mode="overwrite"))
        return found

    monkeypatch.setattr(type(claim), "held", and_then_maintenance)
    change(lake, claim)
    assert [row["n"] for row in lakes.rows(lake, TABLE)] == left


@pytest.mark.parametrize("change", [overwrite, take_away])
def test_a_claim_that_is_lost_in_the_middle_of_a_commit_is_told(lake, claim, change, monkeypatch):
    held, taken = type(claim).held, []

    def and_then_another(self, table, opened):
        found = held(self, table, opened)
        if not taken:
            taken.append(take_over(lake, claim.epoch, [TABLE]))
        return found

    monkeypatch.setattr(type(claim), "held", and_then_another)
    with pytest.raises(OutdatedPlanError, match=r"another reset or rebuild has taken gold\.hourly_sales"):
        change(lake, claim)
    assert row_count(open_table(lake, TABLE)) == 2


def test_an_end_of_an_epoch_that_the_store_refuses_is_not_tried_again(lake, monkeypatch):
    tried = []

    def refused(*_, **__):
        tried.append(1)
        raise CommitFailedError("Log storage error: No space left on device")

    monkeypatch.setattr(conditional, "write_deltalake", refused)
    with pytest.raises(LakeUnavailableError, match=r"refused: Log storage error: No space left on device\..*same comm"):
        take_over(lake, begin_epoch(lake, a_pipeline(), 1), [TABLE])
    assert tried == [1]


def test_an_end_of_an_epoch_that_others_overtake_each_time_names_them(lake, monkeypatch):
    def overtaken(*_, **__):
        raise CommitFailedError("Failed to commit transaction: Concurrent transaction failed.")

    monkeypatch.setattr(conditional, "write_deltalake", overtaken)
    with pytest.raises(ConflictError, match=r"others commit to gold\.hourly_sales at the same moments, 20 times"):
        take_over(lake, begin_epoch(lake, a_pipeline(), 1), [TABLE])


def same_files(lake):
    opened = open_table(lake, TABLE)
    open_table(lake, TABLE).delete()
    opened.delete()


def same_transaction(lake):
    opened = open_table(lake, TABLE)
    for table in (open_table(lake, TABLE), opened):
        properties = CommitProperties(app_transactions=[Transaction("app", 1)])
        write_deltalake(table, ROWS, mode="append", commit_properties=properties)


def another_schema(lake):
    opened = open_table(lake, TABLE)
    open_table(lake, TABLE).alter.set_table_properties({"delta.checkpointInterval": "7"})
    write_deltalake(opened, ROWS, mode="append")


def no_second_try(lake):
    opened: DeltaTable = open_table(lake, TABLE)
    write(lake, TABLE, ROWS)
    opened.delete(commit_properties=CommitProperties(max_commit_retries=0))


def refused_by_the_table(lake):
    refuse_changes(lake)
    open_table(lake, TABLE).delete()


@pytest.mark.parametrize(
    ("failing", "others"),
    [
        (same_files, True),
        (same_transaction, True),
        (another_schema, True),
        (no_second_try, True),
        (refused_by_the_table, False),
    ],
)
def test_others_are_told_apart_by_what_deltalake_says(lake, failing, others):
    with pytest.raises(CommitFailedError) as failed:
        failing(lake)
    assert is_of_others(failed.value) is others
