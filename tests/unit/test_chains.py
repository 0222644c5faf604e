"""Pipelines over results: what a definition refuses, in which order they run, what the log of a result says."""

from datetime import datetime

import pyarrow as pa
import pytest

from spark_jobs.control.desired.contracts import differences
from spark_jobs.job.lag import LagMeter
from spark_jobs.lake.checkpoints.caught_up import is_caught_up
from spark_jobs.lake.checkpoints.epochs import Starts, begin_epoch, fix_starts
from spark_jobs.lake.commit_records.row_changes import UnreadableChangesError, all_rows, file_rows
from spark_jobs.lake.maintenance.compaction import compact, data_files_of
from spark_jobs.lake.maintenance.readers import Need, needs
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.reset.plan import plan_reset
from spark_jobs.pipelines import registry
from spark_jobs.plan.changes import Compatibility, changes
from spark_jobs.plan.personal import PersonalColumns
from spark_jobs.spec import Deduplicate, DefinitionError, Ingest, Results, Sink, Table
from spark_jobs.spec.chains import in_order, links
from tests.support.builders import (
    a_lake,
    a_pipeline,
    a_reader_of_results,
    an_aggregate,
    an_ingest,
    an_ingest_of_sales,
    write,
)

RESULT = "gold.hourly_sales"
SECOND = a_pipeline(name="daily", source=Table("bronze.hourly"), event_time="window_start", sink=Sink("gold.daily"))


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path)


def result(lake, *units):
    """One commit of new rows."""
    write(lake, RESULT, {"product_id": [f"p{each}" for each in units], "units": pa.array(units, pa.int64())})


def offset(version, index=-100):
    return f'{{"reservoirVersion": {version}, "index": {index}}}'


class TestDefinitions:
    def test_a_bronze_table_is_no_result(self):
        with pytest.raises(DefinitionError, match=r"expected a silver or gold table, got 'bronze\.sales'"):
            Results("bronze.sales")

    @pytest.mark.parametrize("revised", ["read", "retract"])
    def test_revisions_that_cannot_be_told_from_new_rows_are_refused(self, revised):
        columns = {"window_start": "TIMESTAMP", "units": "BIGINT"}
        parts = {"name": "a", "columns": columns, "event_time": "window_start", "sink": Sink("bronze.a")}
        with pytest.raises(DefinitionError, match=r"'change_kind' \(STRING\) or 'change_weight'.*revised='refuse'"):
            Ingest(source=Results(RESULT, revised=revised), **parts)
        Ingest(source=Results(RESULT, revised="refuse"), **parts)

    def test_what_has_become_of_a_row_has_its_own_type(self):
        with pytest.raises(DefinitionError, match=r"change_weight .* of type INT, got 'BIGINT'"):
            an_ingest(source=Results(RESULT), columns={"sold_at": "TIMESTAMP", "change_weight": "BIGINT"})

    def test_a_second_step_that_remembers_is_refused_with_the_way_out(self):
        with pytest.raises(DefinitionError, match=r"Ingest\(source=Results\('gold\.…'\)\), and go on with deduplicate"):
            a_pipeline(steps=(an_aggregate(), Deduplicate(keys=("product_id",), within="1 hour")))

    def test_only_an_ingest_that_stopped_may_read_revisions_from_now_on(self):
        (change,) = changes(a_reader_of_results("refuse"), a_reader_of_results("read"))
        assert (change.field, change.compatibility) == ("source", Compatibility.SAFE)
        (change,) = changes(a_reader_of_results("read"), a_reader_of_results("retract"))
        assert change.compatibility is Compatibility.REBUILD

    def test_a_personal_column_stays_one_in_what_reads_the_result(self):
        upstream = a_pipeline(personal=("product_id",))
        known = PersonalColumns((upstream, a_reader_of_results()))
        assert "product_id" in known.of("bronze.hourly")


class TestOrder:
    def test_what_reads_a_result_comes_after_what_writes_it(self):
        first, result, second = an_ingest_of_sales(), a_pipeline(), a_reader_of_results()
        given = (SECOND, second, result, first)
        assert [each.name for each in in_order(given)] == ["ingest_sales", "hourly_sales", "ingest_hourly", "daily"]
        assert [(len(link.ingests), len(link.pipelines)) for link in links(given)] == [(1, 1), (1, 1)]

    def test_an_ingest_whose_result_is_there_already_comes_first(self):
        assert [each.name for each in in_order((SECOND, a_reader_of_results()))] == ["ingest_hourly", "daily"]

    def test_a_chain_that_comes_back_to_itself_has_an_order_too(self):
        back = a_pipeline(source=Table("bronze.hourly"))
        assert {each.name for each in in_order((back, a_reader_of_results()))} == {"hourly_sales", "ingest_hourly"}


class TestLogs:
    def test_files_that_come_with_others_that_go_are_compared(self, lake):
        result(lake, 1, 2)
        result(lake, 3)
        open_table(lake, RESULT).delete("units = 1")
        found = file_rows(lake, RESULT, 0, 2)
        assert [(each.version, each.weight, each.revises) for each in found if each.version < 2] == [
            (0, 1, False),
            (1, 1, False),
        ]
        assert sorted((each.weight, each.revises) for each in found if each.version == 2) == [(-1, True), (1, True)]
        assert {each.version for each in all_rows(lake, RESULT, 2)} == {2}
        assert len(all_rows(lake, RESULT, 2)) == 2

    def test_a_compaction_changes_no_row(self, lake):
        result(lake, 1)
        result(lake, 2)
        compact(lake, RESULT, data_files_of(open_table(lake, RESULT)), ())
        assert file_rows(lake, RESULT, 2, 2) == []

    def test_a_version_that_the_log_has_lost_is_told(self, lake):
        result(lake, 1)
        result(lake, 2)
        with pytest.raises(UnreadableChangesError, match=r"versions 1 to 4 .* no version 2 any more"):
            file_rows(lake, RESULT, 1, 4)

    def test_versions_that_a_reader_has_not_read_are_kept(self, lake):
        result(lake, 1)
        result(lake, 2)
        reader = a_reader_of_results()
        fix_starts(lake, begin_epoch(lake, reader, 1), Starts(versions={RESULT: 1}))
        assert needs(lake)[RESULT] == Need(1, "ingest_hourly")

    def test_the_lag_is_the_rows_that_have_come_and_gone(self, lake, tmp_path):
        for units in ((1, 2), (3, 4, 5), (6,)):
            result(lake, *units)
        open_table(lake, RESULT).delete("units = 4")
        meter = LagMeter(lake, a_reader_of_results(), "_checkpoints/x/epoch-1", clock=lambda: 0.0)
        behind = meter.measure({f"DeltaSource[file:{tmp_path}/gold/hourly_sales]": offset(1)})
        assert behind.rows == 5
        assert isinstance(behind.oldest, datetime)

    def test_a_column_that_a_result_does_not_have_is_in_the_plan(self, lake):
        result(lake, 1)
        found = differences(lake, a_reader_of_results())
        assert [(each.kind, each.column) for each in found] == [("missing", "window_start")]
        assert differences(lake, a_reader_of_results(table="gold.nothing")) == ()

    def test_one_that_has_not_begun_is_not_caught_up(self, lake):
        result(lake, 1)
        assert not is_caught_up(lake, a_reader_of_results())


@pytest.mark.parametrize(
    ("revised", "told"), [("retract", "read each row that goes as deleted"), ("refuse", "stop until they are reset")]
)
def test_a_reset_names_the_ingests_that_read_the_rows(lake, monkeypatch, revised, told):
    reader = a_reader_of_results(revised)
    monkeypatch.setattr("spark_jobs.operations.reset.plan.registry", lambda: {**registry(), reader.name: reader})
    planned = plan_reset(lake, a_pipeline(), keep_tables=False)
    assert [told in notice and "ingest_hourly" in notice for notice in planned.notices] == [True]
