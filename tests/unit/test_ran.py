"""Commands that go through all pipelines go by what has run on the lake, also from a file that is not registered."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.lake.checkpoints.epochs import Starts, begin_epoch, current_epoch, fix_starts
from spark_jobs.lake.checkpoints.ran import Ran, as_it_began, has_finished_a_batch, that_have_run
from spark_jobs.lake.maintenance.readers import needs
from spark_jobs.operations.backfill.plan import plan_backfills
from spark_jobs.operations.backfill.text import summary
from spark_jobs.operations.choosing import revisable
from spark_jobs.operations.reports import BatchReport
from spark_jobs.spec import Late, NotNull, Sink, Watermark
from tests.support.builders import a_batch, a_lake, a_pipeline, a_running_total, a_stamp, an_ingest, write
from tests.support.process import REPOSITORY

FROM_A_FILE = a_pipeline(name="from_a_file", sink=Sink("gold.from_a_file"))


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path)


def ran(lake, definition, **figures):
    """As after one batch that had nothing to count."""
    begin_epoch(lake, definition, 1)
    entry = a_batch(read=0, watermark_ms=0, **figures)
    write(lake, definition.sink.table, {"a": [1]}, stamp=a_stamp(pipeline=definition.name, ledger=entry))


def of_a_later_version(lake, name):
    epoch = current_epoch(lake, name)
    path = f"_checkpoints/{name}/epochs/000001.json"
    unknown = epoch.model_copy(update={"definition": epoch.definition.replace('"pipeline"', '"of a later version"')})
    lake.store.put(path, unknown.model_dump_json().encode())


def told(*arguments):
    done = CliRunner().invoke(app, arguments)
    return done, " ".join(done.output.split())


def test_what_ran_from_a_file_has_run(lake):
    ran(lake, FROM_A_FILE)
    assert that_have_run(lake, []) == Ran((FROM_A_FILE,))
    assert (as_it_began(lake, "from_a_file"), as_it_began(lake, "never_ran")) == (FROM_A_FILE, None)


def test_a_batch_has_ended_also_where_the_table_is_gone(lake):
    begin_epoch(lake, FROM_A_FILE, 1)
    assert not has_finished_a_batch(lake, FROM_A_FILE)
    lake.store.put("_checkpoints/from_a_file/epoch-1/commits/0", b"v1\n{}")
    assert has_finished_a_batch(lake, FROM_A_FILE)
    assert not has_finished_a_batch(lake, a_pipeline(name="never_ran"))


def test_an_audit_of_all_looks_at_what_ran_from_a_file(lake):
    ran(lake, a_pipeline(name="from_a_file", watermark=Watermark(delay="2 minutes", late=Late.DROP)))
    _, said = told("audit", "--lake", lake.uri)
    assert "audit of from_a_file" in said


def test_an_audit_is_not_sound_where_a_result_is_gone_that_had_batches(lake):
    begin_epoch(lake, FROM_A_FILE, 1)
    done, said = told("audit", "--lake", lake.uri)
    assert (done.exit_code, "no batch of it has ended yet" in said) == (0, True)
    lake.store.put("_checkpoints/from_a_file/epoch-1/commits/0", b"v1\n{}")
    done, said = told("audit", "--lake", lake.uri)
    assert done.exit_code == 1
    assert "table gold.from_a_file is not in the lake" in said


@pytest.mark.parametrize("command", [("audit",), ("repair", "--dry-run"), ("check",), ("tables",)])
def test_what_nobody_can_read_is_told_and_ends_with_an_error(lake, command):
    begin_epoch(lake, FROM_A_FILE, 1)
    of_a_later_version(lake, "from_a_file")
    write(lake, "gold.other", {"a": [1]})
    done, said = told(*command, "--lake", lake.uri)
    assert done.exit_code == 1
    assert "pipeline `from_a_file`: it is not registered" in said


def test_one_that_cannot_be_read_does_not_hold_up_the_others(lake):
    begin_epoch(lake, FROM_A_FILE, 1)
    of_a_later_version(lake, "from_a_file")
    begin_epoch(lake, a_pipeline(name="other"), 1)
    _, said = told("audit", "--lake", lake.uri)
    assert "audit of other" in said


@pytest.mark.parametrize("command", ["audit", "repair", "check"])
def test_where_nothing_has_run_that_is_said(lake, command):
    done, said = told(command, "--lake", lake.uri)
    assert (done.exit_code, said) == (0, f"No pipeline has run on {lake.uri} yet.")


def test_a_check_of_all_looks_at_tables_written_from_a_file(lake, monkeypatch):
    checked = an_ingest(name="from_a_file", sink=Sink("bronze.of_a_file"), rules=(NotNull("sale_id"),))
    ran(lake, checked)
    seen = []
    monkeypatch.setattr("spark_jobs.console.checking.run_checks", lambda *_, **__: seen.extend(_[3]) or [])
    told("check", "--lake", lake.uri)
    assert seen == [checked]


def test_a_name_of_what_has_run_on_the_lake_is_understood(lake):
    ran(lake, a_pipeline(name="from_a_file", watermark=Watermark(delay="2 minutes", late=Late.DROP)))
    _, said = told("ledger", "from_a_file", "--lake", lake.uri)
    assert "from_a_file, epoch 1" in said


def test_of_a_file_the_ingest_is_left_out_of_a_repair_and_named(lake):
    chosen, left_out = revisable([an_ingest(), FROM_A_FILE, a_running_total(name="total")])
    assert chosen == (FROM_A_FILE,)
    assert left_out == (
        "ingest_sales is left out: it is an ingest, bronze has every event as it arrived.",
        "total is left out: a part of its results cannot be computed again.",
    )
    assert revisable([an_ingest()]) == ((an_ingest(),), ())


def test_a_repair_says_that_late_events_are_dropped(lake):
    definition = a_pipeline(name="dropping", watermark=Watermark(delay="2 minutes", late=Late.DROP))
    write(lake, "bronze.sales", {"a": [1]})
    ran(lake, definition)
    done, said = told("repair", "dropping", "--dry-run", "--lake", lake.uri)
    assert done.exit_code == 0, done.exception
    assert "it drops late events (Late.DROP): none is kept" in said


def test_a_log_is_kept_for_a_reader_that_this_version_cannot_read(lake):
    begin_epoch(lake, FROM_A_FILE, 1)
    fix_starts(lake, current_epoch(lake, "from_a_file"), Starts(versions={"bronze.sales": 3}))
    of_a_later_version(lake, "from_a_file")
    need = needs(lake)["bronze.sales"]
    assert (need.version, need.reader) == (3, "from_a_file")


def test_backfills_of_several_pipelines_end_with_one_summary(lake):
    write(lake, "bronze.sales", {"sold_at": [datetime(2026, 11, 1, 10, tzinfo=UTC)], "product_id": ["p"]})
    hour_ms = 3_600_000
    for name in ("one", "two"):
        definition = a_pipeline(
            name=name, sink=Sink(f"gold.{name}"), watermark=Watermark(delay="2 minutes", late=Late.DROP)
        )
        begin_epoch(lake, definition, 1)
        row = {"window_start": [datetime(2026, 11, 1, 10, tzinfo=UTC)], "product_id": ["p"], "units": [1]}
        entry = a_batch(read=0, watermark_ms=round(datetime(2026, 11, 1, 20, tzinfo=UTC).timestamp() * 1000) + hour_ms)
        write(lake, definition.sink.table, row, stamp=a_stamp(pipeline=name, ledger=entry))
    begin, end = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)
    definitions = [as_it_began(lake, name) for name in ("one", "two")]
    plan = plan_backfills(lake, [an_ingest(), *definitions], begin, end)
    assert (plan.pipeline, len(plan.notices), plan.nothing_to_do) == ("one, two", 1, None)
    told = summary(plan, [BatchReport(pipeline="two", table="gold.two", version=3, inserted=1, updated=2, repaired=4)])
    assert told.splitlines()[0] == "backfill of 2 pipelines:"
    assert told.splitlines()[2] == "  two: 3 rows of gold.two put right, 4 late events repaired"


def test_a_plan_that_is_only_shown_waits_for_no_spark(lake):
    """Each command in a process of its own would cost seconds: what one imports, the others are blamed for, too."""
    ran(lake, a_pipeline(name="top_products", watermark=Watermark(delay="2 minutes", late=Late.DROP)))
    ran(lake, an_ingest())
    a_range = ["--from", "2026-11-01", "--to", "2026-11-02"]
    commands = [
        ["repair", "--dry-run"],
        ["backfill", "top_products", *a_range, "--dry-run"],
        ["bootstrap", "top_products", "--dry-run"],
        ["replay", "ingest_sales", "--dry-run"],
        ["maintain", "--dry-run"],
        ["adopt", "--dry-run"],
        ["rescale", "top_products", "--partitions", "2", "--dry-run"],
        ["plan"],
    ]
    code = (
        "import sys; from typer.testing import CliRunner; from spark_jobs.cli import app\n"
        f"for each in {commands!r}: CliRunner().invoke(app, [*each, '--lake', {lake.uri!r}])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert {"pyspark", "py4j", "spark_jobs.engine"} & set(done.stdout.split()) == set()
