"""What a rescale refuses before it starts anything, over checkpoints of an archived lake."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.control.desired.awaiting import DeployError
from spark_jobs.control.supervision import terms
from spark_jobs.control.supervision.pulse import PipelinePulse, Pulse, beat
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.claims import take_over
from spark_jobs.lake.checkpoints.continuity import refuse_lost_batches
from spark_jobs.lake.checkpoints.describing import checkpoint_of
from spark_jobs.lake.checkpoints.epochs import begin_epoch, begun_with
from spark_jobs.lake.checkpoints.rescaling import is_rescaled
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.operations.rescale.plan import RescaleRefusedError, plan_rescale
from spark_jobs.spec import DefinitionError
from tests import archive
from tests.support import lakes
from tests.support.builders import a_pipeline, an_ingest
from tests.support.deploying import deploy

NEWEST = 3
"""Batch of the archived checkpoints."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return archive.open_archive(archive.NEWEST, tmp_path)


def _folder(lake: Lake, name: str = "closed") -> Path:
    return Path(lake.uri, "_checkpoints", name, "epoch-1")


def _begun(lake: Lake, partitions: int) -> None:
    """As Spark begins a rescale: the offsets of the newest batch again, with another number."""
    offsets = (_folder(lake) / f"offsets/{NEWEST}").read_text()
    changed = re.sub(r'("spark.sql.shuffle.partitions":)"1"', rf'\1"{partitions}"', offsets)
    assert changed != offsets
    (_folder(lake) / f"offsets/{NEWEST + 1}").write_text(changed)


def test_a_plan_says_what_is_divided_and_which_batch_is_added(lake: Lake) -> None:
    plan = plan_rescale(lake, "closed", 4)
    assert (plan.last, plan.batch, plan.before, plan.partitions, plan.begun) == (NEWEST, NEWEST + 1, 1, 4, False)
    assert plan.nothing_to_do is None
    assert plan.bytes > 0
    shown = CliRunner().invoke(app, ["rescale", "closed", "--partitions", "4", "--dry-run", "--lake", lake.uri])
    assert shown.output.splitlines()[0] == "rescale of closed: its state has 1 partition, 4 are wanted"
    assert shown.output.splitlines()[-1] == "Nothing was written: --dry-run."


@pytest.mark.parametrize(
    "command", [["rescale", "FILE", "--partitions", "1"], ["checkpoints", "verify", "FILE"]], ids=lambda each: each[0]
)
def test_a_pipeline_that_has_run_may_be_named_by_its_file(lake: Lake, tmp_path: Path, command: list[str]) -> None:
    file = f"{lakes.a_file(tmp_path, begun_with(checkpoint_of(lake, 'closed').epoch))}:closed"
    shown = CliRunner().invoke(app, [file if word == "FILE" else word for word in command] + ["--lake", lake.uri])
    assert (shown.exit_code, "closed" in shown.output) == (0, True), shown.output


def test_the_number_that_the_state_has_is_nothing_to_do(lake: Lake) -> None:
    shown = CliRunner().invoke(app, ["rescale", "paid", "--partitions", "1", "--lake", lake.uri])
    assert (shown.exit_code, shown.output.splitlines()[-1]) == (0, "Nothing to do.")


def test_what_has_no_state_that_can_be_divided_is_refused(lake: Lake) -> None:
    begin_epoch(lake, an_ingest(), 1)
    for name, why in (
        ("ingest_sales", "no step of it remembers events"),
        ("large", "no step of it remembers events"),
        ("total", "the total of all events"),
    ):
        with pytest.raises(DefinitionError, match=why):
            plan_rescale(lake, name, 2)
    with pytest.raises(DefinitionError, match="expected 1 or more, got 0"):
        plan_rescale(lake, "closed", 0)


def test_what_has_not_run_is_refused(lake: Lake) -> None:
    with pytest.raises(MissingTableError, match="tidemark run never"):
        plan_rescale(lake, "never", 2)
    begin_epoch(lake, a_pipeline(), 1)
    with pytest.raises(RescaleRefusedError, match="has run no batch yet"):
        plan_rescale(lake, "hourly_sales", 2)


def test_what_a_driver_runs_is_refused(lake: Lake) -> None:
    definition = begun_with(checkpoint_of(lake, "closed").epoch)
    deploy(lake, [definition])
    now, job = datetime.now(UTC), definition.job
    seen = {"closed": PipelinePulse(generation=1, state="running", since=now)}
    terms.records(lake, job).append(1, terms.Term(host="h", supervisor="h/1", begun_at=now))
    who = {"job": job, "term": 1, "host": "h", "pid": 1, "pid_born": "", "sequence": 1}
    beat(lake, Pulse(**who, at=now, started_at=now, pipelines=seen))
    with pytest.raises(DeployError, match="tidemark stop closed"):
        plan_rescale(lake, "closed", 2)


def test_a_batch_that_has_not_ended_has_to_be_run_first(lake: Lake) -> None:
    (_folder(lake) / f"commits/{NEWEST}").unlink()
    with pytest.raises(RescaleRefusedError, match="tidemark run closed --until-caught-up"):
        plan_rescale(lake, "closed", 2)


def test_a_checkpoint_of_which_something_is_missing_is_refused(lake: Lake) -> None:
    next(_folder(lake).glob(f"state/0/0/{NEWEST + 1}_*.changelog")).unlink()
    with pytest.raises(CheckpointError, match=r"not whole: state/0/0/4_\S+ is missing"):
        plan_rescale(lake, "closed", 2)


def test_an_epoch_that_a_reset_is_ending_is_refused(lake: Lake) -> None:
    epoch = checkpoint_of(lake, "closed").epoch
    take_over(lake, epoch, ["gold.closed"])
    with pytest.raises(CheckpointError, match="tidemark reset closed"):
        plan_rescale(lake, "closed", 2)


def test_one_that_was_begun_is_finished_by_the_same_number_only(lake: Lake) -> None:
    _begun(lake, 4)
    plan = plan_rescale(lake, "closed", 4)
    assert (plan.last, plan.begun, plan.repartitioned) == (NEWEST, True, False)
    command = re.escape("tidemark rescale closed --partitions 4")
    for other in (1, 2):
        with pytest.raises(RescaleRefusedError, match=command):
            plan_rescale(lake, "closed", other)
    epoch = checkpoint_of(lake, "closed").epoch
    with pytest.raises(CheckpointError, match=command):
        refuse_lost_batches(lake, begun_with(epoch), epoch)
    shutil.copyfile(_folder(lake) / f"commits/{NEWEST}", _folder(lake) / f"commits/{NEWEST + 1}")
    with pytest.raises(CheckpointError, match=command):
        refuse_lost_batches(lake, begun_with(epoch), epoch)


def test_a_batch_with_other_offsets_or_another_clock_is_no_rescale(lake: Lake) -> None:
    _begun(lake, 4)
    checkpoint = checkpoint_of(lake, "closed")
    before, after = checkpoint.planned(NEWEST), checkpoint.planned(NEWEST + 1)
    assert is_rescaled(before, after)
    assert not is_rescaled(before, before)
    assert not is_rescaled(checkpoint.planned(NEWEST - 1), after)
