"""Deployed streams under their supervisor: drivers and supervisors that die, broken pipelines; one after the other."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_jobs.control.desired import deployment, orders
from spark_jobs.control.desired.awaiting import DeployError, await_running, failed_generations, job_now, refuse_deployed
from spark_jobs.control.monitoring import health
from spark_jobs.control.monitoring.monitor import Report, look, mark_reported
from spark_jobs.control.supervision import reconcile, terms
from spark_jobs.control.supervision import supervisor as control_supervisor
from spark_jobs.control.supervision.launchers import LocalProcess, StartedTask, Task
from spark_jobs.control.supervision.pulse import Pulse
from spark_jobs.control.supervision.supervisor import Supervisor
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.savepoints import savepoints
from spark_jobs.operations.deploy.execute import order, watch
from spark_jobs.operations.shadow import execute as shadows
from spark_jobs.operations.shadow.plan import plan_drop, plan_shadows
from spark_jobs.spec import Definition, Sink
from spark_jobs.spec.shadows import shadow
from tests.chaos import pipelines
from tests.control import streams
from tests.control.streams import JOB, READERS, WatchedLauncher, batches, beat, deploy, launching, supervisor, until
from tests.support.calm import CalmRun

TWO = (pipelines.top_products_live, pipelines.first_sales)
"""A live ranking and first events; the other kinds: tests/chaos/test_kills.py, on MinIO."""
FIRST = TWO[0]
NAMES = sorted(reader.name for reader in TWO)
BROKEN = pipelines.shop_totals.model_copy(update={"name": "broken", "sink": Sink("gold.broken", mode="update")})


def java_of(launched: StartedTask) -> psutil.Process:
    (java,) = [p for p in psutil.Process(launched.process.pid).children(recursive=True) if p.name() == "java"]
    return java


@dataclass
class Stage:
    """One lake on which one driver after the other dies.

    Attributes:
        lake: with all of bronze; the readers read it file by file.
        launcher: of all drivers.
        supervisor: the active one.
        clock: of the supervisors.
    """

    lake: Lake
    logs: Path
    launcher: WatchedLauncher
    clock: streams.Clock = field(default_factory=streams.Clock)

    def __post_init__(self) -> None:
        self.supervisor = self.another_supervisor()

    def another_supervisor(self) -> Supervisor:
        return supervisor(self.lake, self.logs, self.launcher, clock=self.clock)

    def await_running(self, *definitions: Definition) -> None:
        """Deploys, and waits for the first progress."""
        ordered = deploy(self.lake, definitions)
        await_running(self.lake, ordered, timeout=streams.PATIENCE, sleep=lambda _: self.supervisor.look())

    def pulse(self) -> Pulse:
        """Of the driver that lives."""
        found = beat(self.lake)
        assert found is not None
        return found

    def report(self) -> Report:
        """What the monitor says of the first reader."""
        seen = look(self.lake, now=datetime.now(UTC))
        return next(report for report in seen.reports if report.pipeline == FIRST.name)

    def goes_on_in(self, term: int) -> bool:
        """Whether the driver of a term runs all readers."""
        found = beat(self.lake)
        return found is not None and found.term == term and len(found.pipelines) == len(NAMES)


@pytest.fixture(scope="module")
def stage(calm: CalmRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("supervised")
    lake = Lake(str(folder / "lake")).ensure_exists()
    streams.copy_bronze(calm.bronze, lake)
    with launching(WatchedLauncher()) as launcher:
        yield Stage(lake, folder / "logs", launcher)


def test_a_broken_pipeline_fails_with_its_error_and_stops_no_other(stage: Stage) -> None:
    lake = stage.lake
    # What only Spark knows: else the deploy would be refused.
    measures = {**BROKEN.steps[0].measures, "longest": "max(size(product_id))"}
    broken = BROKEN.model_copy(update={"steps": (BROKEN.steps[0].model_copy(update={"measures": measures}),)})
    with pytest.raises(DeployError, match=r"broken: failed: .*size\(product_id"):
        stage.await_running(broken)
    assert failed_generations(lake) == {"broken": 1}

    # Fixed under the same name, it runs in the same driver, as do others meanwhile.
    stage.await_running(BROKEN)
    # In this order: a driver ends when it has nothing to run.
    deploy(lake, TWO)
    orders.stop(lake, ["broken"], by="a test")
    until(lambda: batches(lake, FIRST) >= 1, stage.supervisor)
    assert terms.records(lake, JOB).newest_number() == 1


def test_a_driver_that_is_killed_comes_back_and_its_silence_is_told(stage: Stage) -> None:
    """Killed at a seeded moment within the batches of its pipelines."""
    lake, first = stage.lake, stage.launcher.launched[0]
    with suppress(subprocess.TimeoutExpired):
        first.process.wait(random.Random(5).uniform(0.0, 1.0))
    os.killpg(first.process.pid, signal.SIGKILL)
    # Where no supervisor sees that, the monitor tells of its silence.
    silent = look(lake, now=datetime.now(UTC) + timedelta(minutes=1))
    told_of = sorted((change.pipeline, change.kind, change.began) for change in silent.changes)
    both = ("no-supervisor", "not-running")
    assert told_of == [(name, kind, True) for name in NAMES for kind in both]
    dead = [change.message for change in silent.changes if change.kind == "not-running"]
    assert all("no sign of life" in message for message in dead)
    mark_reported(lake, silent)

    until(lambda: stage.goes_on_in(2), stage.supervisor)
    heard = [change for change in look(lake, now=datetime.now(UTC)).changes if change.kind == "not-running"]
    assert sorted((c.pipeline, c.began) for c in heard) == [(name, False) for name in NAMES]
    assert len(job_now(lake, JOB).status.ends) == 1
    # Before its first batch it tells how far the one before it had come, which it measures beside.
    until(lambda: stage.pulse().pipelines[FIRST.name].figures.batch_id is not None, stage.supervisor)


def test_a_driver_whose_spark_hangs_is_told_of_and_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its Python lives on and gives signs of life."""
    lake, hung = stage.lake, stage.launcher.launched[1]
    assert "Spark has not" not in "".join(stage.report().breaches)
    with monkeypatch.context() as patch:
        patch.setattr(health, "STALE", timedelta(seconds=4))
        patch.setattr(reconcile, "HUNG_S", 8.0)
        patch.setattr(control_supervisor, "HUNG_S", 8.0)
        java_of(hung).suspend()
        until(lambda: "Spark has not" in "".join(stage.report().breaches))
        assert stage.pulse().term == 2
        assert "events/s" not in stage.report().summary
        until(lambda: hung.exit_code() == -signal.SIGKILL, stage.supervisor)
    until(lambda: stage.goes_on_in(3), stage.supervisor)
    end = job_now(lake, JOB).status.last_end
    assert (end.term, end.exit_code, end.log) == (2, -signal.SIGKILL, str(hung.log))
    assert "its supervisor ended it: Spark has not answered" in end.cause


def test_another_supervisor_adopts_the_driver_once_the_lease_is_over(stage: Stage) -> None:
    lake, first = stage.lake, stage.supervisor
    second = stage.another_supervisor()
    second.look()
    assert not second.active
    stage.clock.passed += 60
    until(lambda: second.active, second)
    stage.supervisor = second
    until(lambda: streams.read_all(lake, readers=TWO), second)
    assert terms.records(lake, JOB).newest_number() == 3
    assert [each.exit_code() is None for each in stage.launcher.launched] == [False, False, True]

    # The first one was only asleep: it sees that it is not the active one any more.
    first.look()
    assert not first.active


def test_what_is_ordered_again_as_it_runs_changes_nothing(stage: Stage) -> None:
    lake = stage.lake
    with pytest.raises(DeployError, match=f"tidemark stop {FIRST.name}"):
        refuse_deployed(lake, [FIRST.name])
    before = orders.records(lake, JOB).newest_number()
    assert not any(ordered.changed for ordered in deploy(lake, TWO))
    assert orders.records(lake, JOB).newest_number() == before


def test_a_shadow_in_a_driver_that_lives_is_dropped_and_begun_again(stage: Stage) -> None:
    lake, said, term = stage.lake, list[str](), stage.pulse().term
    changed = FIRST.model_copy(update={"trigger_interval": timedelta(seconds=2)})
    for generation in (1, 2):
        ordered = order(lake, plan_shadows(lake, [changed])[0], by="a test", say=said.append)
        watch(
            lake,
            ordered,
            mode="shadow",
            timeout=streams.PATIENCE,
            by="a test",
            say=said.append,
            sleep=lambda _: stage.supervisor.look(),
        )
        seen = stage.pulse().pipelines
        assert (seen[shadow(changed).name].generation, seen[FIRST.name].generation) == (generation, 1)
        shadows.drop(lake, plan_drop(lake, FIRST.name), by="a test", timeout=streams.PATIENCE, say=said.append)
        assert current_epoch(lake, shadow(changed).name) is None
    assert (stage.pulse().term, stage.pulse().pipelines[FIRST.name].state) == (term, "running")


def test_a_version_without_progress_gives_way_to_the_one_before(stage: Stage) -> None:
    lake, said = stage.lake, list[str]()
    changed = FIRST.model_copy(update={"trigger_interval": timedelta(seconds=2)})
    driver = psutil.Process(stage.pulse().pid)

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("Does not run as ordered"):
            driver.resume()

    driver.suspend()  # else it might make progress at once
    try:
        ordered = order(lake, deployment.plan(lake, [changed]), by="a test", say=say)
        assert [each.kind for each in savepoints(lake, FIRST.name)] == ["deploy"]
        with pytest.raises(DeployError, match=r"no progress within 0 s\.[^;]*\n.*The versions before run again"):
            watch(
                lake,
                ordered,
                mode="guarded",
                timeout=timedelta(0),
                by="a test",
                say=say,
                sleep=lambda _: stage.supervisor.look(),
            )
    finally:
        driver.resume()
    desired = orders.records(lake, JOB).newest()[1]
    assert desired is not None
    assert desired.pipelines[FIRST.name].parsed() == FIRST
    assert desired.pipelines[FIRST.name].generation == 3
    assert stage.pulse().pipelines[FIRST.name].generation == 3


def test_a_driver_does_not_outlive_its_jvm_and_its_end_has_a_cause(stage: Stage) -> None:
    lake, last = stage.lake, stage.launcher.launched[2]
    java_of(last).kill()
    until(lambda: last.exit_code() == 1)
    assert "Spark has ended in this driver" in last.log.read_text()
    until(lambda: job_now(lake, JOB).status.last_end.term == 3, stage.supervisor)
    end = job_now(lake, JOB).status.last_end
    assert end.log == str(last.log)
    assert "its JVM was ended by signal 9" in end.cause


def test_killed_drivers_and_a_killed_supervisor_have_changed_no_table(
    stage: Stage, calm: CalmRun, spark: SparkSession
) -> None:
    assert len(job_now(stage.lake, JOB).status.ends) == 3
    stage.launcher.kill_all()
    streams.close(stage.lake, spark, TWO)
    assert streams.results(stage.lake, TWO) == streams.results(calm.lake, TWO)


class FifthInEarnest(LocalProcess):
    """Starts processes that fail at once, in place of drivers: all but the fifth, which is a driver."""

    def __init__(self) -> None:
        super().__init__()
        self._others, self._count = LocalProcess((sys.executable, "-c", "raise SystemExit(1)")), 0

    def launch(self, task: Task) -> StartedTask:
        self._count += 1
        return super().launch(task) if self._count == 5 else self._others.launch(task)


def test_a_driver_that_cannot_start_is_given_up_and_says_why(calm: CalmRun, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    streams.copy_bronze(calm.bronze, lake)
    clock = streams.Clock()
    with launching(WatchedLauncher(FifthInEarnest(), {"TIDEMARK_DRIVER_MEMORY": "2 parsecs"})) as launcher:
        watching = supervisor(lake, tmp_path / "logs", launcher, now=clock.now)
        ordered = deploy(lake, [READERS[2]])

        def look_a_while_later(_: float) -> None:
            if launcher.launched and launcher.launched[-1].exit_code() is not None:
                watching.look()
                # The pause before the next one.
                clock.passed += 60
            watching.look()

        with pytest.raises(DeployError, match=r"(?s)ended 5 times.*2 parsecs"):
            await_running(lake, ordered, timeout=streams.PATIENCE, sleep=look_a_while_later)
        clock.passed += 3600
        watching.look()
        assert len(launcher.launched) == 5

        assert failed_generations(lake) == {READERS[2].name: 1}

        # Another supervisor, whose environment may have been fixed, tries it again.
        sleeper = LocalProcess((sys.executable, "-c", "import time; time.sleep(600)"))
        watching._lease.release()
        with launching(WatchedLauncher(sleeper)) as fixed:
            supervisor(lake, tmp_path / "logs", fixed, now=clock.now).look()
            assert len(fixed.launched) == 1
