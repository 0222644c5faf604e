"""A failure at a point of a batch, once and twice in a row: afterwards the tables equal those of a run without.

Each point with each mode is `long`:
tests/control/test_zombies.py::test_a_driver_that_is_killed_and_one_that_wakes_change_nothing and
tests/control/test_supervised.py::test_killed_drivers_and_a_killed_supervisor_have_changed_no_table kill drivers at
random points, on both kinds of lake.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.commits import changes, merging
from spark_jobs.engine import writing
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.engine.sources import files
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.lake.errors import RepeatedTasksError
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.spark.observed_rows import ObservedRows
from spark_jobs.spec import (
    Aggregate,
    Between,
    Definition,
    Files,
    Ingest,
    Late,
    Pipeline,
    Sink,
    Table,
    TopN,
    Tumbling,
    Watermark,
)
from tests.support import lakes

START = 1_767_225_600_000
MINUTE = 60_000


class InjectedError(Exception):
    """The failure that a test asks for."""


def failing_at(point: str, batch_id: int, times: int) -> Callable[[str, int], None]:
    left = [times]

    def reached(where: str, number: int) -> None:
        if (where, number) == (point, batch_id) and left[0]:
            left[0] -= 1
            raise InjectedError(point)

    return reached


def contents(lake: Lake, definition: Definition) -> dict[str, Any]:
    return {table: lakes.comparable(lakes.rows(lake, table)) for table in tables_of(definition) if exists(lake, table)}


def a_pipeline(mode: str) -> Pipeline:
    update = mode == "update"
    watermark = Watermark(
        delay="1 minute",
        grace="2 minutes" if update else "0 minutes",
        late=Late.UPDATE if update else Late.SIDE_OUTPUT,
    )
    return lakes.one_file_a_batch(
        Pipeline(
            name="top",
            source=Table("bronze.sales"),
            event_time="t",
            watermark=watermark,
            steps=(
                Aggregate(window=Tumbling("5 minutes"), by=("k",), measures={"total": "sum(v)"}),
                TopN(2, order_by="total DESC"),
            ),
            sink=Sink("gold.top", mode=mode),
        )
    )


def land(bronze: lakes.Bronze, minutes: Sequence[int]) -> None:
    for minute in minutes:
        rows = [(f"k{n}", n * minute % 7 + 1, minute + n / 10) for n in range(6)]
        # The third batch brings events that are late for a window that was written.
        rows += [("k1", 50, minute - 21.0), ("k2", 40, minute - 20.5)]
        bronze.append([{"k": k, "v": v, "t": lakes.at(START + int(at * MINUTE))} for k, v, at in rows])


@dataclass(frozen=True)
class CalmRun:
    """A run without a failure.

    Attributes:
        before: its lake when it had read two of three files.
        batch_id: of the batch that came next.
        tables: at its end.
    """

    before: Path
    batch_id: int
    tables: dict[str, Any]


Calm = Callable[[str], CalmRun]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """Gives it by the mode of the sink."""

    @cache
    def of_mode(mode: str) -> CalmRun:
        folder, definition = tmp_path_factory.mktemp(mode), a_pipeline(mode)
        lake = Lake(str(folder / "lake")).ensure_exists()
        columns = {"k": pa.string(), "v": pa.int64(), "t": lakes.TIMESTAMP}
        bronze = lakes.Bronze(lake, "bronze.sales", columns, "t")
        land(bronze, (1, 13))
        lakes.run(spark, lake, definition)
        batch_id = len(lakes.ledger(lake, definition))
        land(bronze, (19,))
        bronze.heartbeat(START + 60 * MINUTE)
        shutil.copytree(folder / "lake", folder / "before")

        lakes.run(spark, lake, definition)
        lakes.assert_balanced(lake, definition)
        tables = contents(lake, definition)
        assert all(tables.values()), "each table has rows that could be lost or doubled"
        row = dict(lakes.ledger(lake, definition))[batch_id]
        assert row["read"] == 8
        return CalmRun(folder / "before", batch_id, tables)

    return of_mode


@pytest.mark.parametrize(
    ("mode", "point", "times"),
    [
        # Between the points of those that are not `long` nothing is written, and drivers die at random ones:
        # tests/control/test_zombies.py::test_a_driver_that_is_killed_and_one_that_wakes_change_nothing
        pytest.param("append", "planned", 1, marks=pytest.mark.long),
        pytest.param("append", "materialised", 1, marks=pytest.mark.long),
        # tests/spark/test_deduplicate.py::test_a_batch_that_is_cut_off_ends_as_if_it_had_not_been[late_committed]
        pytest.param("append", "late_committed", 2, marks=pytest.mark.long),
        pytest.param("append", "result_committed", 1, marks=pytest.mark.long),
        pytest.param("append", "processed", 2, marks=pytest.mark.long),
        pytest.param("update", "late_committed", 1, marks=pytest.mark.long),
        ("update", "groups_committed", 2),
        # tests/spark/test_written_results.py::test_a_batch_that_is_cut_off_is_written_once[result_committed]
        pytest.param("update", "result_committed", 1, marks=pytest.mark.long),
        pytest.param("update", "processed", 1, marks=pytest.mark.long),
    ],
)
def test_a_pipeline_that_fails_goes_on_as_if_it_had_not(
    spark: SparkSession, tmp_path: Path, undisturbed: Calm, mode: str, point: str, times: int
) -> None:
    calm = undisturbed(mode)
    shutil.copytree(calm.before, tmp_path / "lake")
    lake, definition = Lake(str(tmp_path / "lake")).ensure_exists(), a_pipeline(mode)
    reached = failing_at(point, calm.batch_id, times)

    for _ in range(times):
        with pytest.raises(InjectedError):
            lakes.run(spark, lake, definition, failpoint=reached)
    lakes.run(spark, lake, definition, failpoint=reached)

    assert contents(lake, definition) == calm.tables
    lakes.assert_balanced(lake, definition)


# It is noticed before any table is written, in which the modes differ: [update]
@pytest.mark.parametrize("mode", ["update", pytest.param("append", marks=pytest.mark.long)])
def test_a_batch_with_repeated_tasks_writes_nothing_and_runs_again(
    spark: SparkSession, tmp_path: Path, undisturbed: Calm, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    calm = undisturbed(mode)
    shutil.copytree(calm.before, tmp_path / "lake")
    lake, definition = Lake(str(tmp_path / "lake")).ensure_exists(), a_pipeline(mode)
    before = contents(lake, definition)
    with monkeypatch.context() as patched:
        # As when a worker was lost: tests/spark/test_observed_rows.py provokes it.
        patched.setattr(ObservedRows, "repeated_tasks", 1)
        with pytest.raises(RepeatedTasksError, match=f"1 tasks of batch {calm.batch_id} ran twice"):
            lakes.run(spark, lake, definition)
    assert contents(lake, definition) == before
    lakes.run(spark, lake, definition)
    assert contents(lake, definition) == calm.tables
    lakes.assert_balanced(lake, definition)


@pytest.mark.parametrize(
    ("bounds", "by_spark"),
    [
        # Each of them taken to be exceeded.
        # tests/spark/test_commits.py::test_the_rows_of_the_windows_of_a_batch_are_replaced_and_no_others asks it of the
        # windows alone.
        pytest.param([(merging, "FEW_WINDOWS"), (writing, "FEW_WINDOWS")], False, id="windows", marks=pytest.mark.long),
        pytest.param([(changes, "_FEW_BYTES"), (writing, "FEW_BYTES")], True, id="bytes"),
    ],
)
def test_the_tables_are_the_same_whichever_way_a_batch_is_written(
    spark: SparkSession,
    tmp_path: Path,
    undisturbed: Calm,
    monkeypatch: pytest.MonkeyPatch,
    bounds: Sequence[tuple[ModuleType, str]],
    by_spark: bool,
) -> None:
    calm = undisturbed("update")
    shutil.copytree(calm.before, tmp_path / "lake")
    lake, definition = Lake(str(tmp_path / "lake")).ensure_exists(), a_pipeline("update")
    for module, bound in bounds:
        monkeypatch.setattr(module, bound, 0)
    lakes.run(spark, lake, definition)
    assert contents(lake, definition) == calm.tables
    for table in (definition.sink.table, f"{definition.sink.table}__groups"):
        writers = [commit["engineInfo"] for commit in open_table(lake, table).history()]
        assert any(writer.startswith("Apache-Spark") for writer in writers) == by_spark


def an_ingest(folder: Path) -> Ingest:
    return Ingest(
        name="ingest_sales",
        source=Files(str(folder), max_files_per_trigger=1),
        columns={"k": "STRING", "v": "INT", "t": "TIMESTAMP"},
        event_time="t",
        max_future=timedelta(days=36500),
        rules=(Between("v", min=0),),
        sink=Sink("bronze.sales"),
    )


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing")
    for number in range(3):
        good = f'{{"k": "a", "v": {number}, "t": "2026-01-01T00:0{number}:00Z"}}\n'
        (folder / f"{number}.json").write_text(good * 2 + '{"k": "a", "v": -1, "t": "2026-01-01T00:00:00Z"}\n')
    return folder


@pytest.fixture(scope="module")
def ingested(spark: SparkSession, landing: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The tables of an ingest that did not fail."""
    lake, definition = Lake(str(tmp_path_factory.mktemp("calm"))).ensure_exists(), an_ingest(landing)
    IngestQuery(spark, lake, definition).start(until_caught_up=True).awaitTermination()
    tables = contents(lake, definition)
    assert [len(rows) for rows in tables.values()] == [3, 6]
    return tables


@pytest.mark.parametrize(
    ("point", "times"),
    [
        # Nothing is written before: [quarantine_committed]
        pytest.param("materialised", 1, marks=pytest.mark.long),
        ("quarantine_committed", 2),
        # test_after_a_take_over_no_number_of_bronze_is_given_twice
        pytest.param("result_committed", 2, marks=pytest.mark.long),
    ],
)
def test_an_ingest_that_fails_goes_on_as_if_it_had_not(
    spark: SparkSession, lake: Lake, landing: Path, ingested: dict[str, Any], point: str, times: int
) -> None:
    definition, reached = an_ingest(landing), failing_at(point, 1, times)
    for _ in range(times):
        with pytest.raises(Exception, match=point):
            IngestQuery(spark, lake, definition, failpoint=reached).start(until_caught_up=True).awaitTermination()
    IngestQuery(spark, lake, definition, failpoint=reached).start(until_caught_up=True).awaitTermination()
    assert contents(lake, definition) == ingested


def test_an_ingest_writes_the_same_whichever_way_its_batches_are_written(
    spark: SparkSession, lake: Lake, landing: Path, ingested: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_FEW_BYTES", 0)
    monkeypatch.setattr(files, "ONE_TASK_BYTES", 0)
    definition = an_ingest(landing)
    IngestQuery(spark, lake, definition).start(until_caught_up=True).awaitTermination()
    assert contents(lake, definition) == ingested
    for table in ingested:
        newest = next(iter(open_table(lake, table).history()))
        assert newest["engineInfo"].startswith("Apache-Spark")


class _LookedBefore(IngestQuery):
    """An ingest that has looked for the newest number of bronze before batch 1 of another driver landed there."""

    def create_tables(self) -> None:
        super().create_tables()
        self._next_seq = 3


def test_after_a_take_over_no_number_of_bronze_is_given_twice(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    lake, definition = Lake(str(tmp_path / "lake")).ensure_exists(), an_ingest(landing)
    replaced = IngestQuery(spark, lake, definition, failpoint=failing_at("result_committed", 1, 1))
    with pytest.raises(Exception, match="result_committed"):
        replaced.start(until_caught_up=True).awaitTermination()
    _LookedBefore(spark, lake, definition).start(until_caught_up=True).awaitTermination()
    numbers = [row["_ingest_seq"] for row in lakes.rows(lake, "bronze.sales")]
    # Of the three rows of each file one is set aside, and its number with it.
    assert sorted(numbers) == [0, 1, 3, 4, 6, 7]
