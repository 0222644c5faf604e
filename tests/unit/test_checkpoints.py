"""Epochs in a real folder: created once, kept with their definition."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import (
    Epoch,
    begin_epoch,
    current_epoch,
    delete_checkpoint,
    open_epoch,
)
from spark_jobs.lake.checkpoints.spark_log import newest_batch, query_id
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.spec import Files, Sink, Table, Watermark
from tests.support.builders import a_lake, a_pipeline, an_ingest


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path)


def test_before_the_first_run_there_is_no_epoch(lake):
    assert current_epoch(lake, "hourly_sales") is None


def test_the_first_run_begins_epoch_one(lake):
    before = datetime.now(UTC)
    epoch = open_epoch(lake, a_pipeline())
    assert (epoch.pipeline, epoch.number) == ("hourly_sales", 1)
    assert before <= epoch.begun_at <= datetime.now(UTC)
    assert epoch.folder == "_checkpoints/hourly_sales/epoch-1"
    assert json.loads(epoch.definition)["sink"]["table"] == "gold.hourly_sales"


def test_the_same_definition_runs_on_the_same_epoch_again(lake):
    assert open_epoch(lake, a_pipeline()) == open_epoch(lake, a_pipeline())


def test_an_epoch_is_one_small_file_beside_sparks_checkpoint(lake):
    open_epoch(lake, a_pipeline())
    folder = Path(lake.uri, "_checkpoints", "hourly_sales", "epochs")
    assert [path.name for path in folder.iterdir()] == ["000001.json"]


def test_the_newest_epoch_is_the_current_one_also_with_two_digits(lake):
    for number in range(1, 12):
        begin_epoch(lake, a_pipeline(), number)
    assert current_epoch(lake, "hourly_sales").number == 11


def test_pipelines_whose_names_begin_alike_have_epochs_of_their_own(lake):
    begin_epoch(lake, a_pipeline(name="sales"), 3)
    open_epoch(lake, a_pipeline(name="sales_daily"))
    assert current_epoch(lake, "sales").number == 3
    assert current_epoch(lake, "sales_daily").number == 1


def test_a_definition_that_was_once_hashed_otherwise_is_still_the_same(lake):
    epoch = open_epoch(lake, a_pipeline())
    path = Path(lake.uri, "_checkpoints", "hourly_sales", "epochs", "000001.json")
    path.write_text(epoch.model_copy(update={"fingerprint": "0" * 16}).model_dump_json())
    assert open_epoch(lake, a_pipeline()).number == 1


def test_a_batch_counts_as_planned_once_its_entry_is_whole(lake):
    epoch = open_epoch(lake, a_pipeline())
    assert newest_batch(lake, epoch.folder, "offsets") is None
    lake.store.put(f"{epoch.folder}/offsets/.0.1a2b.tmp", b"v1")
    assert newest_batch(lake, epoch.folder, "offsets") is None
    lake.store.put(f"{epoch.folder}/offsets/0", b"v1")
    assert newest_batch(lake, epoch.folder, "offsets") == 0


def test_rate_limits_and_intervals_may_change(lake):
    first = open_epoch(lake, an_ingest())
    changed = an_ingest(source=Files("landing/sales", max_files_per_trigger=3), trigger_interval="10 seconds")
    assert open_epoch(lake, changed) == first


def test_a_changed_definition_is_refused_with_its_changes_and_how_to_reset(lake):
    open_epoch(lake, a_pipeline())
    changed = a_pipeline(
        watermark=Watermark(delay="1 hour"),
        sink=Sink("gold.other"),
        source=Table("bronze.sales", max_files_per_trigger=3),
        trigger_interval="1 minute",
    )
    with pytest.raises(CheckpointError) as refused:
        open_epoch(lake, changed)
    message = str(refused.value)
    assert message.startswith("pipeline `hourly_sales`: its definition has changed (sink, watermark) since epoch 1 ")
    assert "Nothing was started or written." in message
    assert "`tidemark reset hourly_sales --keep-tables`" in message
    assert "`--empty-tables`" in message


def test_a_refused_definition_leaves_everything_as_it_was(lake):
    first = open_epoch(lake, a_pipeline())
    with pytest.raises(CheckpointError):
        open_epoch(lake, a_pipeline(sink=Sink("gold.other")))
    assert open_epoch(lake, a_pipeline()) == first


def test_a_new_epoch_takes_the_new_definition(lake):
    open_epoch(lake, a_pipeline())
    changed = a_pipeline(sink=Sink("gold.other"))
    second = begin_epoch(lake, changed, 2)
    assert open_epoch(lake, changed) == second
    with pytest.raises(CheckpointError, match="since epoch 2"):
        open_epoch(lake, a_pipeline())


def test_an_epoch_that_another_driver_began_with_this_definition_is_shared(lake):
    first = begin_epoch(lake, a_pipeline(), 1)
    assert begin_epoch(lake, a_pipeline(), 1) == first


def test_an_epoch_that_a_driver_began_with_another_definition_is_refused(lake):
    first = begin_epoch(lake, a_pipeline(), 1)
    with pytest.raises(CheckpointError, match=r"has changed \(sink\)"):
        begin_epoch(lake, a_pipeline(sink=Sink("gold.other")), 1)
    assert current_epoch(lake, "hourly_sales") == first


def test_of_many_drivers_that_begin_an_epoch_at_once_only_one_does(lake):
    drivers = 8
    for number in range(1, 4):
        together = Barrier(drivers)

        def begin(driver, number=number, together=together) -> Epoch | CheckpointError:
            mine = Lake(lake.uri)  # its own connection, as another process has
            definition = a_pipeline(sink=Sink(f"gold.sales_{driver % 2}"))
            together.wait()
            try:
                return begin_epoch(mine, definition, number)
            except CheckpointError as error:
                return error

        with ThreadPoolExecutor(drivers) as pool:
            outcomes = list(pool.map(begin, range(drivers)))
        epochs = [outcome for outcome in outcomes if isinstance(outcome, Epoch)]
        assert len(epochs) == drivers / 2  # the others run the other definition
        assert len(set(epochs)) == 1
        assert current_epoch(lake, "hourly_sales") == epochs[0]


def test_a_checkpoint_that_never_started_has_no_query_id(lake):
    assert query_id(lake, open_epoch(lake, a_pipeline()).folder) is None


def test_the_query_id_is_sparks_own(lake):
    epoch = open_epoch(lake, a_pipeline())
    lake.store.put(f"{epoch.folder}/metadata", b'{"id":"5c1f"}')
    assert query_id(lake, epoch.folder) == "5c1f"


def test_deleting_a_checkpoint_keeps_its_epoch_record_and_other_epochs(lake):
    first, second = begin_epoch(lake, a_pipeline(), 1), begin_epoch(lake, a_pipeline(), 2)
    tenth = begin_epoch(lake, a_pipeline(), 10)
    for epoch in (first, second, tenth):
        lake.store.put(f"{epoch.folder}/offsets/0", b"v1")
        lake.store.put(f"{epoch.folder}/metadata", b'{"id":"5c1f"}')
    delete_checkpoint(lake, first)
    assert query_id(lake, first.folder) is None
    assert query_id(lake, second.folder) == query_id(lake, tenth.folder) == "5c1f"
    left = {path.name for path in Path(lake.uri, "_checkpoints/hourly_sales/epochs").iterdir()}
    assert left == {"000001.json", "000002.json", "000010.json"}
