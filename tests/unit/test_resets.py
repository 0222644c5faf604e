"""Resets of pipelines in a real folder, without a JVM; what streams make of them is in tests/spark/test_reset.py."""

import pyarrow as pa
import pytest

from spark_jobs.control.desired import orders
from spark_jobs.lake.checkpoints import reset as module
from spark_jobs.lake.checkpoints.claims import Claim
from spark_jobs.lake.checkpoints.epochs import begin_epoch, current_epoch, open_epoch
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.tables.opening import open_table, row_count
from spark_jobs.spec import Sink
from tests.support.builders import a_lake, a_pipeline, a_stamp, write
from tests.support.deploying import deploy

QUERY = "11111111-2222-3333-4444-555555555555"
LAST = 2**63 - 1


@pytest.fixture
def lake(tmp_path):
    lake = a_lake(tmp_path)
    epoch = open_epoch(lake, a_pipeline())
    lake.store.put(f"{epoch.folder}/metadata", f'{{"id": "{QUERY}"}}'.encode())
    return lake


def a_result(lake, table, pipeline="hourly_sales"):
    write(lake, table, {"n": pa.array([1, 2], pa.int64())}, stamp=a_stamp(pipeline=pipeline, rows=2))


def buried(lake, table, epoch=1):
    return open_table(lake, table).transaction_version(f"hourly_sales/{table}/{QUERY}/{epoch}") == LAST


def rows(lake, table):
    return row_count(open_table(lake, table))


def test_an_interrupted_reset_lets_nothing_commit_and_can_be_repeated(lake, monkeypatch):
    a_result(lake, "gold.hourly_sales")
    with monkeypatch.context() as patch:
        patch.setattr(module, "begin_next_epoch", lambda *_, **__: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            reset(lake, a_pipeline(), empty_tables=True)
    assert current_epoch(lake, "hourly_sales").number == 1
    assert buried(lake, "gold.hourly_sales")

    done = reset(lake, a_pipeline(), empty_tables=True)
    assert (done.after.number, rows(lake, "gold.hourly_sales")) == (2, 0)
    assert buried(lake, "gold.hourly_sales")


def test_a_reset_that_a_rebuild_overtakes_at_its_end_says_so(lake, monkeypatch):
    a_result(lake, "gold.hourly_sales")

    def overtaken(self):
        begin_epoch(lake, a_pipeline(), 2, cut_us=1_000_000)

    monkeypatch.setattr(Claim, "refuse_lost", overtaken)
    with pytest.raises(
        CheckpointError, match=r"another reset, restore or rebuild has begun epoch 2.*reset hourly_sales --empty"
    ):
        reset(lake, a_pipeline(), empty_tables=True)
    monkeypatch.undo()
    assert reset(lake, a_pipeline(), empty_tables=True).after.number == 3


def test_tables_that_only_the_old_definition_wrote_are_reset_too(lake):
    for table in ("gold.hourly_sales", "gold.hourly_sales__late"):
        a_result(lake, table)
    moved = a_pipeline(sink=Sink("gold.sales_by_hour"))
    done = reset(lake, moved, empty_tables=True)
    assert set(done.tables) == {"gold.hourly_sales", "gold.hourly_sales__late"}
    for table in done.tables:
        assert rows(lake, table) == 0
        assert buried(lake, table)


def test_a_new_sink_that_is_another_pipelines_table_is_refused(lake):
    a_result(lake, "gold.other", pipeline="other")
    with pytest.raises(CheckpointError, match=r"gold\.other is written by `other`"):
        reset(lake, a_pipeline(sink=Sink("gold.other")), empty_tables=True)
    assert rows(lake, "gold.other") == 2
    assert current_epoch(lake, "hourly_sales").number == 1


def test_a_table_that_another_pipeline_has_taken_over_is_left_alone(lake):
    a_result(lake, "gold.hourly_sales")
    a_result(lake, "gold.hourly_sales", pipeline="other")
    done = reset(lake, a_pipeline(sink=Sink("gold.sales_by_hour")), empty_tables=True)
    assert done.tables == ()
    assert rows(lake, "gold.hourly_sales") == 4


def test_a_pipeline_that_was_renamed_does_not_begin_beside_its_own_rows(tmp_path):
    lake, renamed = a_lake(tmp_path), a_pipeline(name="sales_by_hour")
    a_result(lake, "gold.hourly_sales")
    with pytest.raises(CheckpointError, match=r"gold\.hourly_sales holds rows of `hourly_sales`.*its old name back"):
        deploy(lake, [renamed])
    assert orders.all_desired(lake) == {}

    open_table(lake, "gold.hourly_sales").delete()
    deploy(lake, [renamed])
