"""One pipeline writes a table, also while it has no rows yet; without a JVM."""

import contextlib
import threading
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from spark_jobs.cli.application import app
from spark_jobs.lake.checkpoints import ownership
from spark_jobs.lake.checkpoints.epochs import begin_epoch, open_epoch
from spark_jobs.lake.checkpoints.ownership import Owner, give_back, own, records, refuse_lost, refuse_others
from spark_jobs.lake.checkpoints.reset import refuse_tables_of_others, reset
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Sink
from tests.support.builders import a_lake, a_pipeline, a_stamp, write

FIRST, SECOND = a_pipeline(), a_pipeline(name="sales_by_hour")
TAKEN = r"`sales_by_hour`: its table gold\.hourly_sales is written by `hourly_sales`.*Nothing was started or written"


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path)


def begun(lake, definition):
    """As a start does it."""
    own(lake, definition)
    epoch = open_epoch(lake, definition)
    lake.store.put(f"{epoch.folder}/metadata", b'{"id": "q"}')
    write(lake, definition.sink.table, {"n": [1]}, stamp=a_stamp(pipeline=definition.name))


def owner(lake, table="gold.hourly_sales"):
    return records(lake, table).newest()[1].pipeline


def test_a_second_pipeline_on_an_empty_table_is_refused(lake):
    own(lake, FIRST)
    open_epoch(lake, FIRST)
    for refuses in (own, refuse_others, refuse_tables_of_others):
        with pytest.raises(CheckpointError, match=TAKEN):
            refuses(lake, SECOND)
    own(lake, FIRST)
    own(lake, a_pipeline(name="another", sink=Sink("gold.another")))
    assert owner(lake) == "hourly_sales"


def test_a_lake_from_before_owners_knows_them_by_checkpoints(lake):
    epoch = begin_epoch(lake, FIRST, 1)
    refuse_others(lake, SECOND)
    lake.store.put(f"{epoch.folder}/metadata", b'{"id": "q"}')
    with pytest.raises(CheckpointError, match=TAKEN):
        own(lake, SECOND)


def test_of_many_that_begin_at_once_one_gets_the_table(lake):
    names, got, refused, together = [f"p{n}" for n in range(8)], [], [], threading.Barrier(8)

    def start(definition):
        together.wait()
        try:
            own(lake, definition)
            open_epoch(lake, definition)
            refuse_lost(lake, definition)
            got.append(definition.name)
        except CheckpointError:
            refused.append(definition.name)

    threads = [threading.Thread(target=start, args=[a_pipeline(name=name)]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), sorted(got + refused)) == (1, names)
    assert got == [owner(lake)]


def test_a_reset_that_empties_a_table_gives_it_back(lake):
    begun(lake, FIRST)
    reset(lake, FIRST, empty_tables=False)
    with pytest.raises(CheckpointError, match=TAKEN):
        own(lake, SECOND)
    reset(lake, FIRST, empty_tables=True)
    own(lake, SECOND)
    open_epoch(lake, SECOND)
    with pytest.raises(CheckpointError, match=r"gold\.hourly_sales is written by `sales_by_hour`"):
        own(lake, FIRST)


def test_a_table_that_a_pipeline_has_left_is_nobodys(lake):
    begun(lake, FIRST)
    reset(lake, a_pipeline(sink=Sink("gold.elsewhere")), empty_tables=False)
    assert owner(lake) is None


def test_one_that_died_before_its_first_epoch_keeps_nobody_out(lake):
    took(lake, FIRST, ago=timedelta(hours=1))
    own(lake, SECOND)
    open_epoch(lake, SECOND)
    open_epoch(lake, FIRST)
    # It goes on after all: the look after its epoch tells it.
    with pytest.raises(CheckpointError, match="is written by `sales_by_hour`"):
        refuse_lost(lake, FIRST)
    refuse_lost(lake, SECOND)


def test_one_that_is_about_to_begin_is_not_robbed(lake):
    took(lake, FIRST, ago=timedelta(seconds=30))
    with pytest.raises(CheckpointError, match=TAKEN):
        own(lake, SECOND)


def test_one_that_begins_while_it_is_robbed_gets_its_table_back(lake, monkeypatch):
    took(lake, FIRST, ago=timedelta(hours=1))
    create = ownership.Records.append

    def begins_first(kept, number, value):
        open_epoch(lake, FIRST)
        monkeypatch.undo()
        create(kept, number, value)

    monkeypatch.setattr(ownership.Records, "append", begins_first)
    with pytest.raises(CheckpointError, match=TAKEN):
        own(lake, SECOND)
    refuse_lost(lake, FIRST)


def took(lake, definition, *, ago):
    """As a start that died, or goes on later, has left it."""
    since = datetime.now(UTC) - ago
    records(lake, definition.sink.table).append(1, Owner(pipeline=definition.name, since=since))


def test_only_its_owner_gives_a_table_back(lake):
    give_back(lake, "gold.hourly_sales", "hourly_sales")
    assert records(lake, "gold.hourly_sales").newest() == (0, None)
    records(lake, "gold.hourly_sales").append(1, Owner(pipeline="hourly_sales", since=datetime.now(UTC)))
    give_back(lake, "gold.hourly_sales", "sales_by_hour")
    assert owner(lake) == "hourly_sales"


def test_a_reset_that_died_before_it_gave_a_table_back_keeps_nobody_out(lake, monkeypatch):
    took(lake, FIRST, ago=timedelta(hours=1))
    begun(lake, FIRST)
    open_table(lake, "gold.hourly_sales").delete()
    with monkeypatch.context() as patch:
        patch.setattr(
            "spark_jobs.lake.checkpoints.reset.give_back", lambda *_: (_ for _ in ()).throw(OSError("killed"))
        )
        with pytest.raises(OSError, match="killed"):
            reset(lake, a_pipeline(sink=Sink("gold.elsewhere")), empty_tables=False)
    assert owner(lake) == "hourly_sales"
    own(lake, SECOND)
    assert owner(lake) == "sales_by_hour"


def test_a_table_given_back_during_a_start_is_not_said_to_be_anybodys(lake):
    begun(lake, FIRST)
    give_back(lake, "gold.hourly_sales", "hourly_sales")
    with pytest.raises(CheckpointError, match=r"given its table gold\.hourly_sales back.*run hourly_sales"):
        refuse_lost(lake, FIRST)


@pytest.mark.parametrize("sink", ["gold.hourly_sales", "gold.elsewhere"])
def test_a_reset_touches_no_table_that_another_owns_and_has_not_written(lake, sink):
    begun(lake, FIRST)
    reset(lake, FIRST, empty_tables=True)
    own(lake, SECOND)
    open_epoch(lake, SECOND)
    before = open_table(lake, "gold.hourly_sales").version()
    with contextlib.suppress(CheckpointError):
        reset(lake, a_pipeline(sink=Sink(sink)), empty_tables=True)
    assert open_table(lake, "gold.hourly_sales").version() == before


def test_a_pipeline_whose_file_is_gone_gives_its_table_back(lake):
    begun(lake, FIRST)
    with pytest.raises(CheckpointError, match=r"where the file of `hourly_sales` is gone: tidemark reset hourly_sales"):
        refuse_others(lake, SECOND)
    gone = a_pipeline(name="gone", sink=Sink("gold.gone"))
    begun(lake, gone)
    done = CliRunner().invoke(app, ["reset", "gone", "--empty-tables", "--lake", lake.uri])
    assert done.exit_code == 0, done.output
    assert "Another pipeline may have gold.gone now." in " ".join(done.output.split())
    assert owner(lake, "gold.gone") is None
    heir = a_pipeline(name="heir", sink=Sink("gold.gone"))
    refuse_tables_of_others(lake, heir)
    own(lake, heir)
    unknown = CliRunner().invoke(app, ["reset", "never_seen", "--empty-tables", "--lake", lake.uri])
    assert unknown.exit_code != 0


def test_of_two_on_one_table_of_an_old_lake_the_last_writer_goes_on(lake):
    for definition in (SECOND, FIRST):
        epoch = begin_epoch(lake, definition, 1)
        lake.store.put(f"{epoch.folder}/metadata", b'{"id": "q"}')
        write(lake, FIRST.sink.table, {"n": [1]}, stamp=a_stamp(pipeline=definition.name))
    with pytest.raises(CheckpointError, match=TAKEN):
        refuse_others(lake, SECOND)
    own(lake, FIRST)
    # The way out that the error names: the table is emptied, and the other one may begin on it.
    reset(lake, FIRST, empty_tables=True)
    own(lake, SECOND)
    assert owner(lake) == "sales_by_hour"
