"""Deployed streams under their supervisor: drivers and supervisors that die, broken pipelines, drains."""

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from spark_jobs.control import health, orders, reconcile, terms
from spark_jobs.control import supervisor as control_supervisor
from spark_jobs.control.awaiting import DeployError, await_running, failed_generations, job_now, refuse_deployed
from spark_jobs.control.launchers import Launched, LocalProcess
from spark_jobs.control.monitor import Report, look, mark_reported
from spark_jobs.lake import Lake
from spark_jobs.spec import Sink
from tests.control import streams
from tests.control.streams import JOB, READERS, WatchedLauncher, batches, beat, deploy, launching, supervisor, until
from tests.support.calm import CalmRun

TWO = READERS[:2]
NAMES = sorted(reader.name for reader in TWO)


def java_of(launched: Launched) -> psutil.Process:
    (java,) = [p for p in psutil.Process(launched.process.pid).children(recursive=True) if p.name() == "java"]
    return java


def test_a_killed_driver_and_a_killed_supervisor_change_no_table(
    calm: CalmRun, spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(str(tmp_path / "lake")).ensure_exists(), tmp_path / "logs"
    streams.copy_bronze(calm.bronze, lake)
    with launching(WatchedLauncher()) as launcher:
        first = supervisor(lake, logs, launcher)
        deploy(lake, TWO)
        until(lambda: batches(lake, READERS[0]) >= 2, first)

        # A driver that is killed comes back, in the next term.
        os.killpg(launcher.launched[0].process.pid, signal.SIGKILL)
        # Where no supervisor sees that, the monitor tells of its silence.
        silent = look(lake, now=datetime.now(UTC) + timedelta(minutes=1))
        told_of = sorted((change.pipeline, change.kind, change.began) for change in silent.changes)
        both = ("no-supervisor", "not-running")
        assert told_of == [(name, kind, True) for name in NAMES for kind in both]
        dead = [change.message for change in silent.changes if change.kind == "not-running"]
        assert all("no sign of life" in message for message in dead)
        mark_reported(lake, silent)
        until(lambda: (found := beat(lake)) and found.term == 2 and len(found.pipelines) == len(NAMES), first)
        heard = [change for change in look(lake, now=datetime.now(UTC)).changes if change.kind == "not-running"]
        assert sorted((c.pipeline, c.began) for c in heard) == [(name, False) for name in NAMES]
        assert len(job_now(lake, JOB).status.ends) == 1
        # Before its first batch it tells how far the one before it had come, which it measures beside.
        until(lambda: (beat(lake).pipelines[READERS[0].name].figures.batch_id or 0) >= 1, first)

        # A supervisor that is killed leaves the driver as it is; the next one adopts it, once the lease is over.
        clock = streams.Clock()
        second = supervisor(lake, logs, launcher, clock=clock)
        second.look()
        assert not second.active
        clock.passed += 60
        until(lambda: second.active, second)
        until(lambda: streams.read_all(lake, readers=TWO), second)
        assert terms.records(lake, JOB).newest_number() == 2
        assert [each.exit_code() is None for each in launcher.launched] == [False, True]

        # The first one was only asleep: it sees that it is not the active one any more.
        first.look()
        assert not first.active

        with pytest.raises(DeployError, match="tidemark stop top_products"):
            refuse_deployed(lake, ["top_products"])

        # What is ordered again as it runs changes nothing.
        before = orders.records(lake, JOB).newest_number()
        assert not any(ordered.changed for ordered in deploy(lake, TWO))
        assert orders.records(lake, JOB).newest_number() == before

        orders.stop(lake, NAMES, by="a test")
        until(lambda: job_now(lake, JOB).status.state == "stopped", second)
        assert launcher.launched[1].exit_code() == 0
    streams.close(lake, spark, TWO)
    assert streams.results(lake, TWO) == streams.results(calm.lake, TWO)


def reports(lake: Lake) -> dict[str, Report]:
    return {report.pipeline: report for report in look(lake, now=datetime.now(UTC)).reports}


def test_a_broken_pipeline_fails_with_its_error_and_stops_no_other(
    calm: CalmRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    streams.copy_bronze(calm.bronze, lake)
    broken = READERS[0].model_copy(update={"name": "broken", "event_time": "shipped_at", "sink": Sink("gold.broken")})
    totals = READERS[2]
    with launching(WatchedLauncher()) as launcher:
        watching = supervisor(lake, tmp_path / "logs", launcher)
        once_more = lambda _: watching.look()  # noqa: E731

        with pytest.raises(DeployError, match=r"broken: failed: .*shipped_at"):
            await_running(lake, deploy(lake, [broken]), timeout=streams.PATIENCE, sleep=once_more)

        good = deploy(lake, [totals])
        await_running(lake, good, timeout=streams.PATIENCE, sleep=once_more)
        assert failed_generations(lake) == {"broken": 1}
        until(lambda: (found := beat(lake)) and found.pipelines[totals.name].figures.read, watching)

        # Spark hangs while Python lives on: the monitor tells so, the supervisor ends both and starts them again.
        assert reports(lake)[totals.name].healthy
        with monkeypatch.context() as patch:
            patch.setattr(health, "STALE", timedelta(seconds=4))
            patch.setattr(reconcile, "HUNG_S", 8.0)
            patch.setattr(control_supervisor, "HUNG_S", 8.0)
            java_of(launcher.launched[0]).suspend()
            until(lambda: not (report := reports(lake)[totals.name]).healthy and "Spark has not" in report.breaches[0])
            assert beat(lake).term == 1
            assert "events/s" not in reports(lake)[totals.name].summary
            until(lambda: launcher.launched[0].exit_code() == -signal.SIGKILL, watching)
        until(lambda: terms.records(lake, JOB).newest_number() == 2, watching)
        end = job_now(lake, JOB).status.last_end
        assert (end.term, end.exit_code, end.log) == (1, -signal.SIGKILL, str(launcher.launched[0].log))
        assert "its supervisor ended it: Spark has not answered" in end.cause

        # Fixed under the same name, it runs in the same driver.
        fixed = broken.model_copy(update={"event_time": "sold_at"})
        await_running(lake, deploy(lake, [fixed]), timeout=streams.PATIENCE, sleep=once_more)
        assert terms.records(lake, JOB).newest_number() == 2
        until(lambda: reports(lake)[totals.name].healthy, watching)

        # Spark is gone: the driver does not live on without it, and the supervisor knows why.
        second = launcher.launched[1]
        java_of(second).kill()
        until(lambda: second.exit_code() == 1)
        assert "Spark has ended in this driver" in second.log.read_text()
        until(lambda: job_now(lake, JOB).status.last_end.term == 2, watching)
        end = job_now(lake, JOB).status.last_end
        assert (end.exit_code, end.log) == (1, str(second.log))
        assert "its JVM was ended by signal 9" in end.cause


def test_a_driver_that_cannot_start_is_given_up_and_says_why(calm: CalmRun, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake")).ensure_exists()
    streams.copy_bronze(calm.bronze, lake)
    clock = streams.Clock()
    with launching(WatchedLauncher(environment={"TIDEMARK_DRIVER_MEMORY": "2 parsecs"})) as launcher:
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
