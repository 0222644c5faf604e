"""Maintenance beside streams: the same results, the same ledger, and streams that begin where the log has been cut."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.commit_records.history import actions_at
from spark_jobs.lake.maintenance.retention import first_version
from spark_jobs.lake.settings import Retention
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.audit.execute import recount
from spark_jobs.operations.audit.plan import Audit, look, plan_recount
from spark_jobs.operations.maintain.execute import Maintenance
from spark_jobs.operations.maintain.plan import MaintenanceOutcome, Pace
from spark_jobs.spec import Pipeline
from tests.support import lakes
from tests.support.clicks import (
    BEGIN,
    END,
    HOPPING,
    assert_same,
    by_duckdb,
    closed_ms,
    events,
    feed,
    pipeline,
    run_backfill,
    run_repair,
    table,
)


def maintain(lake: Lake) -> dict[str, MaintenanceOutcome]:
    """As months later, and with less to keep."""
    hour = timedelta(hours=1)
    pace = Pace(now=datetime.now(UTC) + 48 * hour, quiet=timedelta(0), in_flight=hour, fewest_commits=2, fewest_files=2)
    maintenance = Maintenance(lake, Retention(versions=hour, lookups=hour), pace)
    done = {each.name: maintenance.execute(each) for each in maintenance.tables()}
    assert [each.problem for each in done.values() if each.problem] == []
    return done


def sound(spark: SparkSession, lake: Lake, definition: Pipeline) -> None:
    lakes.assert_balanced(lake, definition)
    found = look(lake, definition)
    planned = plan_recount(lake, definition, None, found)
    assert not isinstance(planned, Audit), planned
    audited = recount(spark, *planned, found)
    assert audited.sound, audited
    assert audited.rows > 10


# That a stream goes on over what was compacted and cut: test_a_stream_reads_compacted_files_in_order_of_arrival and
# test_a_stream_begins_with_all_rows_of_a_table_whose_log_was_cut
@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(pipeline(HOPPING), id="append, hopping"),
        pytest.param(pipeline(mode="update", top=True), id="update, top"),
    ],
)
def test_a_stream_under_constant_maintenance_writes_the_same_rows(
    spark: SparkSession, lake: Lake, tmp_path: Any, kind: Pipeline
) -> None:
    batches = events(11, 6, minutes=20)
    calm = Lake(str(tmp_path / "calm")).ensure_exists()
    for here, keep in ((calm, False), (lake, True)):
        bronze = feed(here, ())
        for part in (batches[:2], batches[2:4], batches[4:]):
            for batch in part:
                bronze.append(batch)
            lakes.run(spark, here, kind)
            if keep:
                maintain(here)
        lakes.assert_balanced(here, kind)
    assert_same(table(lake), table(calm))
    assert first_version(lake, "bronze.clicks") > 0
    assert len(open_table(lake, "bronze.clicks").file_uris()) == 1
    assert lakes.comparable(lakes.rows(lake, "gold.activity__late")) == lakes.comparable(
        lakes.rows(calm, "gold.activity__late")
    )
    sound(spark, lake, kind)
    # What a batch over a range needs is still there.
    assert run_repair(spark, lake, kind) is not None
    sound(spark, lake, kind)
    run_backfill(spark, lake, kind, begin=BEGIN, end=END, mode="as-streamed")
    assert_same(table(lake), table(calm))


# How many files a batch reads makes no difference to where it begins: [a file a batch]
@pytest.mark.parametrize(
    "files", [pytest.param(1, id="a file a batch"), pytest.param(1000, id="all at once", marks=pytest.mark.long)]
)
def test_a_stream_begins_with_all_rows_of_a_table_whose_log_was_cut(
    spark: SparkSession, lake: Lake, files: int
) -> None:
    first, batches = pipeline(), events(12, 4, minutes=20)
    feed(lake, batches[:3])
    maintain(lake)
    # Larger files stay apart, in the order in which they came.
    assert actions_at(lake, "bronze.clicks", 0) is None
    source = first.source.model_copy(update={"max_files_per_trigger": files})
    late = first.model_copy(update={"source": source})
    bronze = _further(lake, batches)
    lakes.run(spark, lake, late)
    for batch in batches[3:]:
        bronze.append(batch)
    lakes.run(spark, lake, late)
    lakes.assert_balanced(lake, late)
    assert sum(entry["read"] for _, entry in lakes.ledger(lake, late)) == sum(map(len, batches))
    run_repair(spark, lake, late)
    assert_same(table(lake), by_duckdb(lake, first.steps[-1].window, closed_ms=closed_ms(lake, late)))


def _further(lake: Lake, batches: Sequence[Sequence[Any]]) -> lakes.Bronze:
    bronze = feed(lake, ())
    bronze = copy.copy(bronze)
    bronze._next = sum(map(len, batches[:3]))
    return bronze


def test_a_stream_reads_compacted_files_in_order_of_arrival(spark: SparkSession, lake: Lake, tmp_path: Any) -> None:
    """Nothing is late that was not: what came in order comes in order again."""
    batches = events(13, 6)
    ordered = [[{**row, "t": lakes.at(lakes.ms(row["t"]))} for row in batch] for batch in batches]
    kind = pipeline()
    bronze = feed(lake, ())
    for part in (ordered[:2], ordered[2:4], ordered[4:]):
        for batch in part:
            bronze.append(batch)
        maintain_in_parts(lake)
    calm = Lake(str(tmp_path / "calm")).ensure_exists()
    as_they_lie = feed(calm, ())
    for part in (ordered[:2], ordered[2:4], ordered[4:]):
        as_they_lie.append([row for batch in part for row in batch])
    for here in (calm, lake):
        lakes.run(spark, here, kind)
        lakes.assert_balanced(here, kind)
    assert_same(table(lake), table(calm))
    late = [lakes.comparable(lakes.rows(here, "gold.activity__late")) for here in (lake, calm)]
    assert late[0] == late[1]
    assert len(late[0]) > 0


def maintain_in_parts(lake: Lake) -> None:
    """Draws together what is new, and cuts the log."""
    from spark_jobs.lake.accounting.ledger_compaction import compact_ledger
    from spark_jobs.lake.maintenance.compaction import compact, data_files_of
    from spark_jobs.lake.maintenance.retention import cut_log

    opened = open_table(lake, "bronze.clicks")
    new = [file for file in data_files_of(opened) if file.rows == 25]
    version = compact(lake, "bronze.clicks", new, ())
    assert version is not None
    compact_ledger(lake, "bronze.clicks")
    cut_log(lake, "bronze.clicks", version)
