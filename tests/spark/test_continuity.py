"""A checkpoint and its tables must hold the same batches: what one of them has lost is never passed over in silence."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.moving import adopt, plan_adoption
from spark_jobs.lake.checkpoints.reset import reset
from spark_jobs.lake.errors import CheckpointError, LedgerError
from spark_jobs.spec import Aggregate, Between, Files, Ingest, Pipeline, Sink, Table
from tests.support import lakes

INGEST_CHECKPOINT = "_checkpoints/ingest_sales/epoch-1"


class InjectedError(Exception):
    """The failure that a test asks for."""


def failing_at(point: str) -> Callable[[str, int], None]:
    def reached(where: str, batch_id: int) -> None:
        if where == point:
            raise InjectedError(point)

    return reached


def an_ingest(folder: Path) -> Ingest:
    return Ingest(
        name="ingest_sales",
        source=Files(str(folder)),
        columns={"k": "STRING", "v": "INT", "t": "TIMESTAMP"},
        event_time="t",
        max_future=timedelta(days=36500),
        rules=(Between("v", min=0),),
        sink=Sink("bronze.sales"),
    )


def totals() -> Pipeline:
    return Pipeline(
        name="totals",
        source=Table("bronze.sales"),
        steps=(Aggregate(by=("k",), measures={"total": "sum(v)"}),),
        sink=Sink("gold.totals", mode="update"),
    )


def land(folder: Path, name: str, *values: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    rows = (json.dumps({"k": name, "v": value, "t": "2026-01-01T00:00:00Z"}) for value in values)
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def ingest(spark: SparkSession, lake: Lake, definition: Ingest, **more: Callable[[str, int], None]) -> None:
    query = IngestQuery(spark, lake, definition, **more)
    handle = query.start(until_caught_up=True)
    try:
        handle.awaitTermination()
    except StreamingQueryException as error:
        raise query.error or error from None


def kept(lake: Lake, table: str = "bronze.sales") -> list[str]:
    return sorted(f"{row['k']}{row['v']}" for row in lakes.rows(lake, table) if not row.get("_heartbeat"))


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    return tmp_path / "landing"


@dataclass(frozen=True)
class PartlyReadIngest:
    """An ingest that has read two of three files.

    Attributes:
        definition: of it.
        lake: its lake.
        older: a copy of its checkpoint that knows the first file only.
    """

    definition: Ingest
    lake: Path
    older: Path


@pytest.fixture(scope="module")
def ingested(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PartlyReadIngest:
    folder = tmp_path_factory.mktemp("ingested")
    found = PartlyReadIngest(an_ingest(folder / "landing"), folder / "lake", folder / "older")
    lake = Lake(str(found.lake)).ensure_exists()
    land(folder / "landing", "a", 1, 2)
    ingest(spark, lake, found.definition)
    shutil.copytree(found.lake / INGEST_CHECKPOINT, found.older)
    land(folder / "landing", "b", 3)
    ingest(spark, lake, found.definition)
    land(folder / "landing", "c", 4)
    return found


@pytest.fixture
def copied(ingested: PartlyReadIngest, tmp_path: Path) -> Lake:
    """A copy of its lake."""
    shutil.copytree(ingested.lake, tmp_path / "copied")
    return Lake(str(tmp_path / "copied"))


# Without the folder above it the checkpoint is as gone: [folder]
@pytest.mark.parametrize(
    "lost", ["folder", "older copy", pytest.param("all checkpoints", marks=pytest.mark.long), "bronze"]
)
def test_an_ingest_that_lost_batches_reads_nothing_and_says_so(
    spark: SparkSession, ingested: PartlyReadIngest, copied: Lake, lost: str
) -> None:
    checkpoint = Path(copied.uri, INGEST_CHECKPOINT)
    match lost:
        case "folder":
            shutil.rmtree(checkpoint)
        case "older copy":
            shutil.rmtree(checkpoint)
            shutil.copytree(ingested.older, checkpoint)
        case "all checkpoints":
            shutil.rmtree(checkpoint.parent)
        case "bronze":
            newest = max(Path(copied.uri, "bronze/sales/_delta_log").glob("*.json"))
            newest.unlink()
    before = kept(copied)

    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"`ingest_sales`: .*Nothing was started or written.*tidemark reset"):
            ingest(spark, copied, ingested.definition)
    assert kept(copied) == before

    # What it tells the operator to run brings all of it back.
    reset(copied, ingested.definition, empty_tables=True)
    ingest(spark, copied, ingested.definition)
    assert kept(copied) == ["a1", "a2", "b3", "c4"]


def test_a_batch_planned_again_is_not_taken_for_the_one_in_the_table(
    spark: SparkSession, ingested: PartlyReadIngest, copied: Lake
) -> None:
    # The older copy of the checkpoint ends just before the batch that the table has: numbers alone tell nothing.
    checkpoint = Path(copied.uri, INGEST_CHECKPOINT)
    shutil.rmtree(checkpoint)
    shutil.copytree(ingested.older, checkpoint)
    # A driver has planned batch 1 on it already.
    shutil.copy(checkpoint / "offsets/0", checkpoint / "offsets/1")
    version, metadata, offset = (checkpoint / "offsets/1").read_text().split("\n")
    clock = json.loads(metadata)
    clock["batchTimestampMs"] += 1
    (checkpoint / "offsets/1").write_text("\n".join((version, json.dumps(clock), offset)))

    with pytest.raises(CheckpointError, match=r"another batch 1 of `ingest_sales`.*planned at .* instead of"):
        ingest(spark, copied, ingested.definition)
    assert kept(copied) == ["a1", "a2", "b3"]


# Another file in its place is noticed by the same comparison: [archived]
@pytest.mark.parametrize(
    "archived",
    [pytest.param(True, id="archived"), pytest.param(False, id="replaced", marks=pytest.mark.long)],
)
def test_a_replay_whose_file_has_moved_writes_nothing_until_it_is_back(
    spark: SparkSession, lake: Lake, landing: Path, tmp_path: Path, archived: bool
) -> None:
    definition = an_ingest(landing)
    path = land(landing, "a", *range(1, 10), -1)
    with pytest.raises(InjectedError):
        ingest(spark, lake, definition, failpoint=failing_at("quarantine_committed"))
    os.rename(path, tmp_path / "archived.json")
    if not archived:  # another file in its place, with as many bad rows
        land(landing, "a", 1, -2)

    told = "unreadable file 1" if archived else r"1 rows \(between\(v, 0\.\.\) 1\) that differ"
    said = rf"was written with 1 rows \(between.*trying it again gives .*{told}.*bring it back"
    with pytest.raises(LedgerError, match=said):
        ingest(spark, lake, definition)
    assert kept(lake) == []

    os.replace(tmp_path / "archived.json", path)
    ingest(spark, lake, definition)
    assert kept(lake) == [f"a{value}" for value in range(1, 10)]
    assert [row["reason"] for row in lakes.rows(lake, "bronze.sales__quarantine")] == ["between(v, 0..)"]


def test_a_pipeline_on_an_older_copy_of_its_checkpoint_writes_nothing(
    spark: SparkSession, lake: Lake, landing: Path
) -> None:
    definition, checkpoint = totals(), Path(lake.uri, "_checkpoints/totals/epoch-1")
    land(landing, "a", 1, 2)
    lakes.run_all(spark, lake, [an_ingest(landing), definition], close=False)
    shutil.copytree(checkpoint, landing.parent / "copy")
    land(landing, "b", 3)
    lakes.run_all(spark, lake, [an_ingest(landing), definition], close=False)
    before = lakes.comparable(lakes.rows(lake, "gold.totals"))
    shutil.rmtree(checkpoint)
    shutil.copytree(landing.parent / "copy", checkpoint)

    with pytest.raises(CheckpointError, match=r"gold\.totals has batch 1 of epoch 1, but its checkpoint .* older copy"):
        lakes.run(spark, lake, definition)
    assert lakes.comparable(lakes.rows(lake, "gold.totals")) == before


# What has no commit does not differ from what was never written. Of a small append, also with an empty one:
# tests/spark/test_commits.py::test_a_small_append_whose_commit_was_lost_with_power_is_made_again
@pytest.mark.parametrize(
    "left",
    [
        pytest.param("no commit", marks=pytest.mark.long),
        pytest.param("empty commit", marks=pytest.mark.long),
        "short data file",
    ],
)
def test_what_a_loss_of_power_leaves_of_an_unfinished_batch_is_no_batch(
    spark: SparkSession, lake: Lake, landing: Path, left: str
) -> None:
    definition = an_ingest(landing)
    land(landing, "a", 1, 2)
    ingest(spark, lake, definition)
    land(landing, "b", 3)
    with pytest.raises(InjectedError):
        ingest(spark, lake, definition, failpoint=failing_at("result_committed"))
    commit = max(Path(lake.uri, "bronze/sales/_delta_log").glob("*.json"))
    match left:
        case "no commit":
            commit.unlink()
        case "empty commit":
            commit.write_bytes(b"")
        case "short data file":
            (added,) = (json.loads(line)["add"] for line in commit.read_text().splitlines() if '"add"' in line)
            data = commit.parents[1] / added["path"]
            data.write_bytes(data.read_bytes()[:100])
            with pytest.raises(CheckpointError, match=r"is not whole, as after a loss of power: .* has 100 of") as told:
                ingest(spark, lake, definition)
            assert f"remove {commit}, then start again" in str(told.value)
            commit.unlink()
    ingest(spark, lake, definition)
    assert kept(lake) == ["a1", "a2", "b3"]


def test_a_moved_lake_reads_nothing_again_and_goes_on_once_it_was_adopted(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    definition = an_ingest(Path("landing"))
    readers = [definition, totals()]
    land(Path(lake.uri, "landing"), "a b", 1, 2)
    lakes.run_all(spark, lake, readers, close=False)
    there = Lake(str(tmp_path / "elsewhere"))
    shutil.copytree(lake.uri, there.uri)
    land(Path(there.uri, "landing"), "c", 3)

    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"landing/a b\.json, and the lake is .*tidemark adopt ingest_sales"):
            ingest(spark, there, definition)
    assert kept(there) == ["a b1", "a b2"]

    for each in readers:
        adopt(there, plan_adoption(there, each))
    lakes.run_all(spark, there, readers, close=False)
    assert kept(there) == ["a b1", "a b2", "c3"]
    assert {row["k"]: row["total"] for row in lakes.rows(there, "gold.totals")} == {"a b": 3, "c": 3}
    lakes.assert_balanced(there, totals())
    # Where it was, it goes on, too.
    ingest(spark, lake, definition)
    assert kept(lake) == ["a b1", "a b2"]


def test_a_second_pipeline_on_a_table_without_rows_is_refused(spark: SparkSession, lake: Lake, landing: Path) -> None:
    landing.mkdir()
    lakes.run_all(spark, lake, [an_ingest(landing), totals()], close=False)
    assert lakes.rows(lake, "gold.totals") == []
    second = totals().model_copy(update={"name": "totals_again"})
    with pytest.raises(CheckpointError, match=r"`totals_again`: its table gold\.totals is written by `totals`"):
        lakes.run(spark, lake, second)
    # A reset that empties the table gives it back.
    reset(lake, totals(), empty_tables=True)
    land(landing, "a", 1, 2)
    lakes.run_all(spark, lake, [an_ingest(landing), second], close=False)
    assert [row["total"] for row in lakes.rows(lake, "gold.totals")] == [3]
