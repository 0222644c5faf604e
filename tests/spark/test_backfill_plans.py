"""What a backfill says before it does anything: its plan, what it refuses, and what there is nothing to do for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.console import running
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.files import MissingFilesError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.backfill.plan import plan_backfill, rows_to_compare
from spark_jobs.operations.backfill.text import backfill_text
from spark_jobs.recompute.ranges import RangeError
from spark_jobs.recompute.target import BackfillRefusedError
from tests.support import lakes
from tests.support.clicks import (
    BEGIN,
    COLUMNS,
    END,
    MINUTE,
    RANKING,
    closed_ms,
    contents,
    run_backfill,
)


def test_rows_that_another_program_changed_are_replaced_only_if_asked(spark: SparkSession, copy: Lake) -> None:
    before = contents(copy)
    # One that is closed: what is open the stream itself gives again.
    groups = [row for row in lakes.rows(copy, "gold.activity__groups") if row["k"] is not None]
    oldest = min(groups, key=lambda row: row["window_end"])
    window = f"window_start = '{oldest['window_start']:%Y-%m-%dT%H:%M:%SZ}'"
    open_table(copy, "gold.activity__groups").delete(f"{window} AND k = '{oldest['k']}'")
    assert contents(copy) != before
    with pytest.raises(
        BackfillRefusedError, match=r"another program has changed gold\.activity__groups .*DELETE.*--force"
    ):
        plan_backfill(copy, RANKING, BEGIN, END)
    # Only late events distinguish the two, and none of them is counted here.
    run_backfill(spark, copy, RANKING, mode="as-streamed", force=True)
    assert contents(copy) == before


def test_results_of_events_that_bronze_has_lost_stay(copy: Lake) -> None:
    open_table(copy, "bronze.clicks").delete("v = 50")
    with pytest.raises(BackfillRefusedError, match=r"rows of its source bronze\.clicks were taken away in version 6"):
        plan_backfill(copy, RANKING, BEGIN, END)


def test_bronze_that_was_overwritten_has_lost_events_too(copy: Lake) -> None:
    bronze = open_table(copy, "bronze.clicks")
    write_deltalake(bronze, bronze.to_pyarrow_table().slice(10), mode="overwrite")
    with pytest.raises(BackfillRefusedError, match=r"rows of its source bronze\.clicks .* version 6 \(WRITE\)"):
        plan_backfill(copy, RANKING, BEGIN, END)


def test_a_result_that_was_replaced_is_no_result_of_the_stream(spark: SparkSession, copy: Lake) -> None:
    path = f"delta.`{copy.table_path('gold.activity')}`"
    spark.sql(f"CREATE OR REPLACE TABLE {path} USING delta AS SELECT * FROM {path} WHERE n > 1")
    with pytest.raises(BackfillRefusedError, match=r"has changed gold\.activity .*REPLACE TABLE.*--force"):
        plan_backfill(copy, RANKING, BEGIN, END)
    _, plan = plan_backfill(copy, RANKING, BEGIN, END, force=True)
    assert "conflict gold.activity" in backfill_text(plan)


def test_a_result_that_was_emptied_is_no_result_of_the_stream(copy: Lake) -> None:
    result = open_table(copy, "gold.activity")
    write_deltalake(result, result.to_pyarrow_table().slice(0, 0), mode="overwrite")
    with pytest.raises(BackfillRefusedError, match=r"has changed gold\.activity .*WRITE.*--force"):
        plan_backfill(copy, RANKING, BEGIN, END)


def test_what_others_commit_to_a_result_does_not_hide_its_batches(copy: Lake) -> None:
    for number in range(20):
        open_table(copy, "gold.activity").alter.set_table_properties({"delta.logRetentionDuration": f"{number} days"})
    assert plan_backfill(copy, RANKING, BEGIN, END)[1].nothing_to_do is None


def test_a_day_that_is_still_open_has_nothing_to_do(copy: Lake) -> None:
    _, plan = plan_backfill(copy, RANKING, datetime(2026, 1, 1, 3, tzinfo=UTC), END, allow_empty=True)
    assert plan.nothing_to_do == "no result of the range is closed yet"
    assert "are still open in the stream: the stream writes them itself" in backfill_text(plan)


def test_the_command_shows_its_plan_and_finds_nothing_to_do_without_spark(
    copy: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = copy

    def told(*options: str) -> str:
        asked = [lakes.a_file(tmp_path, RANKING), f"--from={BEGIN:%Y-%m-%d}", f"--to={END.isoformat()}"]
        done = CliRunner().invoke(app, ["backfill", *asked, "--lake", lake.uri, *options], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.output

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    before, unrepaired = contents(lake), len(lakes.rows(lake, "gold.activity__late"))
    with monkeypatch.context() as patched:
        patched.setattr(running, "session", refused)
        plan = told("--dry-run")
    rows = lakes.rows(lake, "gold.activity")
    windows = {(row["window_start"], row["window_end"]) for row in rows}
    events_read = len(lakes.rows(lake, "bronze.clicks"))
    assert f"reads    bronze.clicks, version 5: at most {events_read} rows" in plan
    assert f"late     {unrepaired} late events in the range, {unrepaired} not counted in a result yet" in plan
    closed = [each for each in windows if lakes.ms(each[1]) <= closed_ms(lake, RANKING)]
    counted = len([row for row in rows if (row["window_start"], row["window_end"]) in closed])
    assert f"replaces among {counted} rows of {len(closed)} windows in gold.activity those that differ" in plan
    assert contents(lake) == before

    # Late events are not counted, as in the stream.
    monkeypatch.setattr(running, "session", refused)
    assert "Nothing to do. To compute it all the same: --force." in told("--as-streamed")


def test_bronze_of_which_data_files_are_gone_is_refused(copy: Lake) -> None:
    before = contents(copy)
    lost = Path(open_table(copy, "bronze.clicks").file_uris()[0].removeprefix("file://"))
    lost.unlink()
    with pytest.raises(MissingFilesError, match=rf"table bronze\.clicks, version 5: 1 data file is gone: {lost.name}"):
        plan_backfill(copy, RANKING, BEGIN, END)
    assert contents(copy) == before


def test_a_source_that_is_gone_is_named_and_results_stay(copy: Lake) -> None:
    before = contents(copy)
    bronze = Path(copy.table_path("bronze.clicks"))
    bronze.rename(bronze.with_name("moved"))
    with pytest.raises(BackfillRefusedError, match=r"bronze\.clicks, which it reads, .* Put the table back"):
        plan_backfill(copy, RANKING, BEGIN, END)
    assert contents(copy) == before


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (END, BEGIN, "it is reversed"),
        (BEGIN, BEGIN, "it is empty"),
        (datetime(2999, 1, 1, tzinfo=UTC), datetime(2999, 1, 2, tzinfo=UTC), "it lies in the future"),
        (datetime(1999, 1, 1, tzinfo=UTC), datetime(1999, 1, 2, tzinfo=UTC), r"bronze\.clicks has no event from"),
        (datetime(2026, 1, 1, 3, tzinfo=UTC), END, "results from 2026-01-01 03:00:00 on are still open"),
    ],
)
def test_a_range_of_which_nothing_can_be_computed_is_refused(
    copy: Lake, begin: datetime, end: datetime, said: str
) -> None:
    before = contents(copy)
    with pytest.raises(RangeError, match=said):
        plan_backfill(copy, RANKING, begin, end)
    assert contents(copy) == before


def test_a_range_without_events_between_others_has_nothing_to_do(copy: Lake) -> None:
    first = datetime(1999, 1, 1, tzinfo=UTC)
    lakes.Bronze(copy, "bronze.clicks", COLUMNS, "t", 10_000).append([{"k": "a", "v": 1, "d": 0.5, "t": first}])
    _, plan = plan_backfill(copy, RANKING, first + timedelta(days=1), first + timedelta(days=2))
    assert plan.nothing_to_do
    assert [read.rows for read in plan.reads] == [0]
    with pytest.raises(RangeError, match=r"bronze\.clicks has no event from"):
        plan_backfill(copy, RANKING, first - timedelta(days=2), first - timedelta(days=1))
    _, plan = plan_backfill(copy, RANKING, first - timedelta(days=2), first - timedelta(days=1), allow_empty=True)
    assert plan.nothing_to_do


def test_a_range_that_reaches_into_what_is_open_is_cut_or_refused(copy: Lake) -> None:
    open_ms = closed_ms(copy, RANKING) - 10 * MINUTE
    first_open = lakes.at(open_ms // (10 * MINUTE) * 10 * MINUTE + 10 * MINUTE)
    _, plan = plan_backfill(copy, RANKING, BEGIN, END)
    assert lakes.at(plan.slices[-1].end_us // 1000) == first_open
    assert len(plan.notices) == 1
    target, whole = plan_backfill(copy, RANKING, BEGIN, END, force=True)
    starts = [row["window_start"] for row in lakes.rows(copy, "gold.activity") if row["window_start"] < first_open]
    assert rows_to_compare(target, whole) == (len(starts), len(set(starts)))
    with pytest.raises(RangeError, match="still open in the stream"):
        plan_backfill(copy, RANKING, BEGIN, END, strict=True)
    assert plan_backfill(copy, RANKING, BEGIN, first_open, strict=True)[1].notices == ()
