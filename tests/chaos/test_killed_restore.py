"""Savepoints and restores that are killed for real, after each of their steps: finished, or as if never begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.contents import Checkpoint
from spark_jobs.lake.checkpoints.epochs import begun_with, current_epoch
from spark_jobs.lake.checkpoints.restoring import finish_for, open_restore
from spark_jobs.lake.checkpoints.savepoints import savepoints
from spark_jobs.lake.checkpoints.verifying import verify
from spark_jobs.operations.restore.execute import carry_out
from spark_jobs.operations.restore.plan import plan_restore
from tests import archive
from tests.chaos import kills
from tests.support import lakes

DYING = str(Path(__file__).with_name("dying_command.py"))
PIPELINES = {each.name: each for each in archive.pipelines()}
TABLES = ("gold.live", "gold.live__groups")
RESTORING = "lake.checkpoints.restoring"
STEPS = {
    "noted": f"{RESTORING}:begin",
    "ended": f"{RESTORING}:take_over",
    "a table": f"{RESTORING}:_Restoring._put_back",
    "tables": f"{RESTORING}:_Restoring.put_tables_back",
    "checkpoint": f"{RESTORING}:_Restoring.make_checkpoint",
    "ledger": f"{RESTORING}:_Restoring._stamp",
    "epoch": f"{RESTORING}:_Restoring.begin",
    "removed": f"{RESTORING}:delete_checkpoint",
}


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    return {name: lakes.comparable(lakes.rows(lake, name)) for name in TABLES}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """What a restore makes of the tables that nobody has killed."""
    calm = archive.open_archive(archive.NEWEST, tmp_path_factory.mktemp("calm"))
    carry_out(calm, plan_restore(calm, PIPELINES["live"], to=None, to_batch=1, by="tests"), print)
    return contents(calm)


@pytest.mark.parametrize("step", STEPS)
def test_a_restore_killed_after_each_step_is_finished_by_the_next_start(
    tmp_path: Path, step: str, undisturbed: dict[str, list[tuple[Any, ...]]]
) -> None:
    lake = archive.open_archive(archive.NEWEST, tmp_path)
    before = contents(lake)
    arguments = ["restore", "live", "--to-batch", "1", "--yes", "--lake", lake.uri]
    kills.run_until_death([sys.executable, DYING, *arguments], {"DIES_AFTER": STEPS[step]})
    assert open_restore(lake) is not None
    if step == "noted":
        done = subprocess.run(
            [sys.executable, "-m", "spark_jobs", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    else:
        # What a start does first.
        assert finish_for(lake, "live")
    assert open_restore(lake) is None
    assert contents(lake) == undisturbed != before
    epoch = current_epoch(lake, "live")
    assert epoch is not None
    assert epoch.number == 2
    assert verify(Checkpoint(lake, epoch), begun_with(epoch)) == []
    assert lakes.ledger(lake, PIPELINES["live"])[-1][1].kind == "restore"
    lakes.assert_balanced(lake, PIPELINES["live"])


def test_a_savepoint_killed_before_it_is_named_does_not_exist(tmp_path: Path) -> None:
    lake = archive.open_archive(archive.NEWEST, tmp_path)
    before = {item["path"] for item in lake.store.list("_checkpoints/").collect()}
    command = [sys.executable, DYING, "savepoint", "live", "--name", "nightly", "--lake", lake.uri]
    kills.run_until_death(command, {"DIES_AFTER": "lake.checkpoints.savepoints:refuse_missing_files"})
    assert savepoints(lake) == []
    assert lake.store.list("_savepoints/").collect()
    assert {item["path"] for item in lake.store.list("_checkpoints/").collect()} == before
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs", *command[2:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [each.name for each in savepoints(lake)] == ["nightly"]
