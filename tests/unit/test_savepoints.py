"""Savepoints and what nothing needs any more, on a lake without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.describing import checkpoint_of, describe
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.savepoints import SavepointError, savepoint_named, savepoints
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.maintenance.readers import needs
from spark_jobs.lake.store.durable import create_object
from spark_jobs.operations.prune.execute import carry_out
from spark_jobs.operations.prune.plan import plan_prune
from spark_jobs.operations.restore.plan import RestoreRefusedError, plan_restore
from spark_jobs.operations.savepoint.execute import drop_savepoint, show_savepoint, take_savepoint, thin_out
from spark_jobs.operations.savepoint.schedule import SavepointSchedule
from spark_jobs.spec import Savepoints
from tests import archive

PIPELINES = {each.name: each for each in archive.pipelines()}
NOW = datetime.now(UTC) + timedelta(days=2)


@pytest.fixture
def made(tmp_path: Path) -> Lake:
    """A lake of which every pipeline has run."""
    return archive.open_archive(archive.NEWEST, tmp_path)


def take(lake: Lake, name: str | None = None, pipeline: str = "closed", **options: str) -> str:
    said: list[str] = []
    take_savepoint(lake, pipeline, said.append, name=name, by="tests", **options)  # type: ignore[arg-type]
    return "\n".join(said)


def test_a_savepoint_is_listed_shown_and_removed(made: Lake) -> None:
    assert "savepoint `nightly` of batch" in take(made, "nightly", note="before the fair")
    (found,) = savepoints(made, "closed")
    assert (found.name, found.note, found.by, found.kind) == ("nightly", "before the fair", "tests", "manual")
    said: list[str] = []
    show_savepoint(made, "closed", "nightly", said.append, as_json=False)
    assert "before the fair" in said[0]
    assert said[-1].endswith("yes, all that it needs is there")
    with pytest.raises(SavepointError, match="has a savepoint `nightly` already"):
        take(made, "nightly")
    with pytest.raises(SavepointError, match="expected a name of letters"):
        take(made, "a/b")
    drop_savepoint(made, "closed", "nightly", said.append)
    assert not made.store.list("_savepoints/").collect()
    with pytest.raises(SavepointError, match="no savepoint `nightly`"):
        savepoint_named(made, "closed", "nightly")
    with pytest.raises(MissingTableError, match="has not run"):
        take(made, pipeline="unknown")


def test_nothing_that_could_not_be_restored_is_kept(made: Lake) -> None:
    epoch = current_epoch(made, "closed")
    assert epoch is not None
    changelog = next(
        item["path"]
        for item in made.store.list(f"{epoch.folder}/state/").collect()
        if item["path"].endswith(".changelog")
    )
    Path(made.path(changelog)).write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be saved"):
        take(made)
    assert not made.store.list("_savepoints/").collect()


@pytest.mark.parametrize("damage", ["changed", "gone", "data file"])
def test_a_savepoint_that_was_damaged_since_is_refused(made: Lake, damage: str) -> None:
    take(made, "nightly")
    found = savepoint_named(made, "closed", "nightly")
    file = Path(made.path(found.folder, "metadata"))
    if damage == "changed":
        file.write_text("{}")
    elif damage == "gone":
        file.unlink()
    else:
        next(Path(made.table_path("gold.closed")).glob("*.parquet")).unlink()
    with pytest.raises(CheckpointError, match=r"cannot be gone back to: .*(another one|is gone)"):
        plan_restore(made, PIPELINES["closed"], to="nightly", to_batch=None, by="tests")


def test_maintenance_leaves_what_a_savepoint_names(made: Lake) -> None:
    before = needs(made)
    take(made, "nightly")
    found = savepoint_named(made, "closed", "nightly")
    after = needs(made)
    for table, saved in found.tables.items():
        assert after[table].version <= saved.version
    assert "savepoint nightly of closed" in {need.reader for need in after.values()} - {
        n.reader for n in before.values()
    }


def test_a_restore_says_what_is_wrong_with_what_was_asked(made: Lake) -> None:
    closed = PIPELINES["closed"]
    asked = {"to": None, "to_batch": None, "by": "tests"}
    with pytest.raises(RestoreRefusedError, match="say where to go back to"):
        plan_restore(made, closed, **asked)  # type: ignore[arg-type]
    with pytest.raises(RestoreRefusedError, match=r"got 999\. Kept are"):
        plan_restore(made, closed, **{**asked, "to_batch": 999})  # type: ignore[arg-type]
    with pytest.raises(SavepointError, match="no savepoint `x`"):
        plan_restore(made, closed, **{**asked, "to": "x"})  # type: ignore[arg-type]


def test_savepoints_are_taken_as_time_goes_by_and_the_oldest_go(made: Lake) -> None:
    closed = PIPELINES["closed"].model_copy(update={"savepoints": Savepoints(every="1 hour", keep=2)})
    take(made, "mine")
    schedule, now = SavepointSchedule(made), datetime.now(UTC)
    schedule.look(PIPELINES["closed"], now=now)
    for minutes in (0, 30, 61, 90, 123):
        schedule.look(closed, now=now + timedelta(minutes=minutes))
    kinds = [each.kind for each in savepoints(made, "closed")]
    assert kinds == ["manual", "schedule", "schedule"]
    # A driver that starts again goes by those that are there.
    SavepointSchedule(made).look(closed, now=now + timedelta(minutes=10))
    assert len(savepoints(made, "closed")) == 3


def test_what_nothing_needs_is_pruned_and_nothing_else(made: Lake) -> None:
    take(made, "mine")
    for _ in range(9):
        take(made, kind="deploy")
    epoch = current_epoch(made, "closed")
    assert epoch is not None
    state = next(
        item["path"]
        for item in made.store.list(f"{epoch.folder}/state/").collect()
        if item["path"].endswith(".changelog")
    )
    orphan = f"{state.rpartition('_')[0]}_00000000-0000-0000-0000-000000000000.changelog"
    left = {
        orphan: "state that no batch names",
        "_savepoints/closed/dead/0123/metadata": "savepoint that was never finished",
        f"_checkpoints/closed/epoch-{epoch.number - 1}/metadata": "checkpoint of an epoch that is over",
    }
    for path in left:
        create_object(made, path, b"x")
    young = plan_prune(made, ["closed"])
    assert {each.reason for each in young.remains} == {"savepoint past its retention"}
    before = {item["path"] for item in made.store.list().collect()}
    plan = plan_prune(made, ["closed"], now=NOW)
    assert sorted(each.reason for each in plan.remains) == sorted(
        [*left.values(), *["savepoint past its retention"] * 2]
    )
    carry_out(made, plan, print)
    gone = before - {item["path"] for item in made.store.list().collect()}
    assert {path for path in gone if not path.startswith("_savepoints/closed/deploy-")} == {*left}
    assert len(savepoints(made, "closed")) == 8
    assert plan_prune(made, ["closed"], now=NOW).nothing_to_do is not None


def test_thinning_out_leaves_those_of_other_kinds(made: Lake) -> None:
    kinds: list[Callable[[], str]] = [lambda: take(made, kind="restore"), lambda: take(made, kind="deploy")]
    for each in kinds * 2:
        each()
    assert len(thin_out(made, "closed", "restore", 1)) == 1
    assert [each.kind for each in savepoints(made, "closed")] == ["deploy", "restore", "deploy"]


def test_a_description_tells_what_each_batch_has_cost(made: Lake) -> None:
    found = describe(checkpoint_of(made, "live"), at=2)
    assert [each.batch for each in found.costs] == [0, 1, 2]
    assert all(0 < each.seconds < 60 for each in found.costs)
    files = [each for each in made.store.list("_checkpoints/live/epoch-1/state/").collect() if "/3_" in each["path"]]
    assert found.costs[-1].state_bytes == sum(each["size"] for each in files) > 0
