"""Another version of a pipeline beside the one that runs: its names, its orders, its rows. No JVM."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.control.desired import orders
from spark_jobs.control.monitoring import monitor
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import removing
from spark_jobs.lake.checkpoints.claims import take_over
from spark_jobs.lake.checkpoints.epochs import current_epoch, open_epoch
from spark_jobs.lake.checkpoints.ownership import own, records
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.commit_records.basis import OutdatedPlanError
from spark_jobs.lake.tables.decisions import decisions_of
from spark_jobs.lake.tables.opening import exists, table_folders
from spark_jobs.lake.tables.watermarks import publish, published, withdraw
from spark_jobs.operations.bootstrap.plan import BootstrapRefusedError
from spark_jobs.operations.shadow import execute as shadows
from spark_jobs.operations.shadow.compare import compare, look
from spark_jobs.operations.shadow.plan import ShadowError, plan_drop, plan_promotion, plan_shadows
from spark_jobs.operations.shadow.text import beside_text
from spark_jobs.pipelines import load_file
from spark_jobs.plan.personal import PersonalColumns
from spark_jobs.plan.tables import all_beside, result_of
from spark_jobs.spec import Definition, DefinitionError, Pipeline, Select, Sink, Table, definition_from_json
from spark_jobs.spec.shadows import shadow, shadow_of
from tests.support.builders import a_pipeline, an_aggregate, an_ingest_of_sales
from tests.support.deploying import beside, deploy
from tests.support.lakes import a_file

SALES = a_pipeline()
CHANGED = a_pipeline(steps=(an_aggregate(measures={"units": "max(quantity)", "share": "avg(quantity)"}),))
BESIDE = shadow(CHANGED)
HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def running(lake: Lake) -> Lake:
    """A lake where the pipeline is deployed and has begun, and its changed version runs beside it."""
    deploy(lake, [SALES])
    begin(lake, SALES)
    beside(lake, CHANGED)
    begin(lake, BESIDE)
    return lake


def begin(lake: Lake, definition: Definition) -> None:
    own(lake, definition)
    open_epoch(lake, definition)


def publish_at(lake: Lake, definition: Pipeline, hours: int) -> None:
    publish(
        lake,
        pipeline=definition.name,
        table=definition.sink.table,
        engine_ms=round((BEGIN + hours * HOUR).timestamp() * 1000),
        grace_ms=0,
        epoch=1,
        batch_id=1,
    )


def fill(lake: Lake, table: str, rows: list[tuple[Any, ...]], more: tuple[str, ...] = ()) -> None:
    """A result with these rows: hour, product, units, share, and more columns."""
    found = [
        {
            "window_start": BEGIN + hour * HOUR,
            "window_end": BEGIN + (hour + 1) * HOUR,
            "product_id": product,
            "units": units,
            "share": share,
            "revised_at": datetime.now(UTC),
            **dict(zip(more, rest, strict=True)),
        }
        for hour, product, units, share, *rest in rows
    ]
    write_deltalake(lake.table_uri(table), pa.Table.from_pylist(found))


class TestNames:
    def test_a_shadow_has_names_of_its_own_and_is_read_back_as_it_was(self) -> None:
        assert (BESIDE.name, BESIDE.sink.table) == ("hourly_sales__shadow", f"{SALES.sink.table}__shadow")
        assert definition_from_json(BESIDE.to_json()) == BESIDE
        assert (BESIDE.steps, BESIDE.source, BESIDE.job) == (CHANGED.steps, CHANGED.source, CHANGED.job)
        assert (shadow_of(BESIDE.name), shadow_of(BESIDE.sink.table)) == (SALES.name, SALES.sink.table)
        assert shadow_of(SALES.name) is None

    def test_the_tables_beside_a_shadow_are_found_by_its_result(self) -> None:
        for table in all_beside(BESIDE.sink.table):
            assert result_of(table)[0] == BESIDE.sink.table

    def test_a_name_too_long_for_the_mark_is_refused(self) -> None:
        with pytest.raises(DefinitionError, match="too long for a name by 2 characters"):
            shadow(a_pipeline(name="a" * 57))

    def test_no_file_defines_a_shadow_or_reads_one(self, tmp_path: Path) -> None:
        with pytest.raises(DefinitionError, match="no file defines one"):
            load_file(Path(a_file(tmp_path, BESIDE)))
        with pytest.raises(DefinitionError, match="side table of a shadow"):
            Table(BESIDE.sink.table)
        with pytest.raises(DefinitionError, match="are of shadows"):
            a_pipeline(sink=Sink(BESIDE.sink.table))

    def test_what_is_personal_in_a_table_is_in_its_shadow(self) -> None:
        renamed = a_pipeline(steps=(Select({"who": "product_id"}), an_aggregate(by=("who",))))
        known = PersonalColumns((an_ingest_of_sales(personal=("product_id",)), renamed))
        assert "who" in known.of(SALES.sink.table)
        assert "who" in known.of(BESIDE.sink.table)
        assert "who" not in known.of("gold.another")


class TestOrders:
    def test_a_shadow_is_ordered_and_the_order_of_its_pipeline_is_not_touched(self, running: Lake) -> None:
        ordered = orders.all_desired(running)["streams"].running
        assert ordered[SALES.name].defines(SALES)
        assert ordered[SALES.name].generation == 1
        assert ordered[BESIDE.name].defines(BESIDE)

    def test_what_runs_so_already_has_none(self, running: Lake) -> None:
        planned, told = plan_shadows(running, [SALES])
        assert (planned.steps, told) == ((), (f"{SALES.name}: already runs this way, there is nothing to try.",))

    def test_ingests_and_what_has_not_run_are_refused(self, lake: Lake) -> None:
        with pytest.raises(ShadowError, match="is an ingest"):
            plan_shadows(lake, [an_ingest_of_sales()])
        with pytest.raises(ShadowError, match=r"has not run .*tidemark deploy hourly_sales"):
            plan_shadows(lake, [SALES])

    def test_a_third_version_is_refused_until_the_second_is_dropped(self, running: Lake) -> None:
        third = a_pipeline(steps=(an_aggregate(measures={"units": "min(quantity)"}),))
        with pytest.raises(ShadowError, match=r"another version \(steps\).*tidemark shadow hourly_sales --drop"):
            plan_shadows(running, [third])
        assert orders.all_desired(running)["streams"].running[BESIDE.name].defines(BESIDE)

    def test_the_monitor_calls_it_a_shadow_and_tells_of_none_of_its_tables(self, running: Lake) -> None:
        for definition in (SALES, BESIDE):
            fill(running, definition.sink.table, [(0, "a", 1, 0.5)])
        seen = monitor.look(running, now=datetime.now(UTC))
        (told,) = (each.summary for each in seen.reports if each.pipeline == BESIDE.name)
        assert told.startswith(f"shadow of {SALES.name}: ")
        assert {move.table for move in seen.moves} == {SALES.sink.table}

    def test_the_command_line_orders_it_and_status_says_what_it_is(self, lake: Lake, tmp_path: Path) -> None:
        deploy(lake, [SALES])
        begin(lake, SALES)
        file = a_file(tmp_path, CHANGED)
        done = CliRunner().invoke(
            app, ["deploy", file, "--mode", "shadow", "--wait", "0 seconds", "--lake", lake.uri], terminal_width=200
        )
        assert (done.exit_code, "runs beside it" in done.output) == (0, True)
        shown = CliRunner().invoke(app, ["status", "--lake", lake.uri], env={"COLUMNS": "200"})
        assert f"shadow of {SALES.name}" in shown.output


class TestRowsBesideEachOther:
    def test_rows_are_compared_up_to_the_watermark_that_both_have_passed(self, running: Lake) -> None:
        old = [(0, "a", 1, 0.1 + 0.2), (0, "b", 2, 0.5), (1, "a", 3, 0.5), (1, None, 4, 0.5), (4, "a", 9, 0.5)]
        new = [(0, "a", 1, 0.3, 7), (0, "b", 5, 0.5, 7), (1, None, 4, 0.5, 7), (1, "c", 6, 0.5, 7), (3, "a", 9, 0.5, 7)]
        fill(running, SALES.sink.table, old)
        fill(running, BESIDE.sink.table, new, ("most",))
        publish_at(running, SALES, 2)
        publish_at(running, BESIDE, 3)
        found = look(running, SALES.name)
        assert found.upto == BEGIN + 2 * HOUR
        assert found.changed == ("steps",)
        seen = found.comparison
        assert seen is not None
        # The oracle: by hand, from the two lists above.
        counts = (seen.same, seen.changed, seen.only_pipeline, seen.only_shadow, seen.beyond)
        assert (counts, seen.columns_shadow) == ((2, 1, 1, 1, 2), ("most",))
        assert seen.examples[0].what == "units is 2, in the shadow 5"
        assert [each.what.partition(":")[0] for each in seen.examples[1:]] == [
            "only in the shadow",
            "not in the shadow",
        ]
        assert "2 the same, 1 with other values, 1 only in the table, 1 only in the shadow; 2 beyond" in beside_text(
            found
        )

    def test_personal_columns_are_masked(self, running: Lake) -> None:
        fill(running, SALES.sink.table, [(0, "ada", 1, 0.5)])
        fill(running, BESIDE.sink.table, [(0, "ada", 2, 0.5)])
        mine = (a_pipeline(personal=("product_id",)), shadow(CHANGED.model_copy(update={"personal": ("product_id",)})))
        (shown,) = compare(running, *mine, upto=BEGIN + 2 * HOUR).examples
        assert ("ada" in shown.row, "masked" in shown.row) == (False, True)

    def test_rows_told_apart_by_other_columns_are_only_counted(self, running: Lake) -> None:
        fill(running, SALES.sink.table, [(0, "a", 1, 0.5), (0, "b", 1, 0.5)])
        fill(running, BESIDE.sink.table, [(0, "a", 2, 0.5)])
        other = shadow(a_pipeline(steps=(an_aggregate(by=()),)))
        found = compare(running, SALES, other, upto=BEGIN + 2 * HOUR)
        assert (found.keyed, found.only_pipeline, found.only_shadow) == (False, 2, 1)

    def test_before_both_have_passed_a_watermark_nothing_is_compared(self, running: Lake) -> None:
        fill(running, SALES.sink.table, [(0, "a", 1, 0.5)])
        assert look(running, SALES.name).why == f"{BESIDE.sink.table} does not exist yet"
        fill(running, BESIDE.sink.table, [(0, "a", 1, 0.5)])
        publish_at(running, SALES, 2)
        found = look(running, SALES.name)
        assert (found.comparison, found.upto) == (None, None)
        assert "the version that runs: 2026-01-01 02:00:00 UTC, the shadow: none yet" in found.why

    def test_without_a_shadow_there_is_nothing_to_compare(self, lake: Lake) -> None:
        with pytest.raises(ShadowError, match="tidemark deploy hourly_sales --mode shadow"):
            look(lake, SALES.name)


def drop(lake: Lake) -> None:
    shadows.drop(lake, plan_drop(lake, SALES.name), by="a test", timeout=timedelta(0), say=lambda _: None)


class TestDropped:
    def test_nothing_stays_but_the_generation_and_the_next_one_begins_afresh(self, running: Lake) -> None:
        for table in (SALES.sink.table, BESIDE.sink.table, f"{BESIDE.sink.table}__late"):
            fill(running, table, [(0, "a", 1, 0.5)])
        for each in (SALES, BESIDE):
            publish_at(running, each, 2)
        drop(running)
        assert [name for name in table_folders(running) if exists(running, name)] == [
            SALES.sink.table,
            "ops.decisions",
            "ops.watermarks",
        ]
        (decided,) = decisions_of(running, SALES.name)
        told = decided["action"], decided["decided_by"], decided["subject"]
        assert told == ("drop", "a test", f"{BESIDE.name}, generation 1")
        assert list(published(running)) == [SALES.name]
        assert current_epoch(running, BESIDE.name) is None
        assert records(running, BESIDE.sink.table).newest() == (0, None)
        assert not [path for path in Path(running.uri).rglob("*") if BESIDE.name in path.name], "nor an empty folder"
        assert list(orders.all_desired(running)["streams"].running) == [SALES.name]
        shown = CliRunner().invoke(app, ["status", "--lake", running.uri], env={"COLUMNS": "200"})
        assert BESIDE.name not in shown.output
        with pytest.raises(ShadowError, match="no shadow of it runs"):
            plan_drop(running, SALES.name)

        beside(running, CHANGED)
        # A driver that lives has seen the first: the second is another one.
        assert orders.all_desired(running)["streams"].running[BESIDE.name].generation == 2

    @pytest.mark.parametrize("step", ["take_over", "forget", "savepoints", "remove_folder"])
    def test_an_interrupted_drop_is_finished_by_the_next(self, running: Lake, step: str) -> None:
        fill(running, BESIDE.sink.table, [(0, "a", 1, 0.5)])
        with patch.object(removing, step, side_effect=RuntimeError("killed")), pytest.raises(RuntimeError):
            drop(running)
        drop(running)
        assert (exists(running, BESIDE.sink.table), current_epoch(running, BESIDE.name)) == (False, None)
        assert current_epoch(running, SALES.name) is not None

    def test_it_is_asked_for(self, running: Lake, tmp_path: Path) -> None:
        arguments = ["shadow", a_file(tmp_path, CHANGED), "--drop", "--lake", running.uri]
        asked = CliRunner().invoke(app, arguments)
        assert (asked.exit_code, current_epoch(running, BESIDE.name) is None) == (0, False)
        done = CliRunner().invoke(app, [*arguments, "--yes"])
        assert (done.exit_code, current_epoch(running, BESIDE.name)) == (0, None)


class TestPromotionsThatAreRefused:
    def test_before_both_have_passed_a_watermark(self, running: Lake) -> None:
        with pytest.raises(ShadowError, match="the version that runs: none yet, the shadow: none yet"):
            plan_promotion(running, CHANGED)

    def test_but_not_where_an_interrupted_swap_has_taken_the_watermark_back(self, running: Lake) -> None:
        for definition in (SALES, BESIDE):
            fill(running, definition.sink.table, [(0, "a", 1, 0.5)])
            publish_at(running, definition, 2)
        with patch("spark_jobs.operations.shadow.plan.plan_rebuild"):  # of the rest it says what it says
            assert plan_promotion(running, CHANGED).swaps
            withdraw(running, pipeline=SALES.name, table=SALES.sink.table, epoch=2)
            with pytest.raises(ShadowError, match="the version that runs: none yet"):
                plan_promotion(running, CHANGED)
            take_over(running, current_epoch(running, SALES.name), [SALES.sink.table])
            assert plan_promotion(running, CHANGED).swaps

    def test_of_a_definition_that_the_shadow_does_not_run(self, running: Lake) -> None:
        with pytest.raises(ShadowError, match="its shadow runs another version"):
            plan_promotion(running, SALES)

    def test_of_what_no_batch_can_compute(self, lake: Lake) -> None:
        total = a_pipeline(
            steps=(an_aggregate(window=None),),
            event_time=None,
            watermark=None,
            sink=Sink("gold.hourly_sales", mode="update"),
        )
        deploy(lake, [SALES])
        begin(lake, SALES)
        assert "not promoted: " in plan_shadows(lake, [total])[1][0]
        beside(lake, total)
        for each in (SALES, shadow(total)):
            publish_at(lake, each, 2)
        with pytest.raises(BootstrapRefusedError, match="cannot be computed in batch"):
            plan_promotion(lake, total)
        assert sorted(orders.all_desired(lake)["streams"].running) == [SALES.name, BESIDE.name]


class TestPlansThatOthersHaveOvertaken:
    def test_a_drop_that_was_approved_of_one_shadow_leaves_the_next_alone(self, running: Lake) -> None:
        approved = plan_drop(running, SALES.name)
        drop(running)
        beside(running, CHANGED)
        begin(running, BESIDE)
        with pytest.raises(OutdatedPlanError, match=r"deployed again.*generation 2 .*, 1 then.*Nothing was changed"):
            shadows.drop(running, approved, by="a test", timeout=timedelta(0), say=lambda _: None)
        assert current_epoch(running, BESIDE.name) is not None
        assert len(decisions_of(running, SALES.name)) == 1

    def test_a_promotion_is_of_the_definition_and_the_epochs_that_were_seen(self, running: Lake) -> None:
        for each in (SALES, BESIDE):
            publish_at(running, each, 2)
        with patch("spark_jobs.operations.shadow.plan.plan_rebuild"):
            approved = plan_promotion(running, CHANGED)
        approved.refuse_outdated(running, CHANGED)
        with pytest.raises(OutdatedPlanError, match="its definition has changed since"):
            approved.refuse_outdated(running, SALES)
        orders.stop(running, [SALES.name], by="a test")
        approved.refuse_outdated(running, CHANGED)
        reset(running, SALES, empty_tables=False)
        with pytest.raises(OutdatedPlanError, match=r"epoch 2 of it has begun since.*tidemark shadow hourly_sales"):
            approved.refuse_outdated(running, CHANGED)
