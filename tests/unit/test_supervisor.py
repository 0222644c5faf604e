"""What a supervisor does about a driver that it cannot reach; with real drivers it is tested in tests/control."""

import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from spark_jobs.control.desired import orders
from spark_jobs.control.supervision import pulse, status, terms
from spark_jobs.control.supervision.launchers import LocalProcess, birth, driver_arguments
from spark_jobs.control.supervision.pulse import Pulse
from spark_jobs.control.supervision.reconcile import DRAIN, HUNG_S
from spark_jobs.control.supervision.supervisor import Supervisor
from spark_jobs.control.supervision.terms import FencedError
from spark_jobs.job.loop import Fence
from tests.support.builders import a_lake, a_pipeline
from tests.support.deploying import deploy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB = "streams"


def test_a_driver_on_another_host_that_does_not_end_is_fenced(tmp_path):
    lake, said, now = a_lake(tmp_path), [], [NOW]
    sequence = iter(range(100))

    def alive():
        at = {"started_at": NOW, "at": NOW}
        pulse.beat(lake, Pulse(job=JOB, term=1, host="there", pid=1, pid_born="", sequence=next(sequence), **at))

    deploy(lake, [a_pipeline()])
    terms.records(lake, JOB).append(1, terms.Term(host="there", supervisor="there/1", begun_at=NOW))
    here = Supervisor(
        lake=lake,
        launcher=LocalProcess(("false",)),
        logs=tmp_path / "logs",
        drive=lambda job, term: (),
        say=said.append,
        now=lambda: now[0],
        host="here",
    )
    orders.stop(lake, [a_pipeline().name], by="a test")
    for passed in (timedelta(0), DRAIN):
        now[0] += passed
        alive()
        here.look()
        Fence(lake, JOB, 1).check_now()
    now[0] += timedelta(seconds=1)
    for _ in range(3):
        here.look()
    with pytest.raises(FencedError):
        Fence(lake, JOB, 1).check_now()
    assert terms.records(lake, JOB).newest_number() == 2
    assert len([line for line in said if "its driver on there is asked to stop" in line]) == 1


def test_a_job_with_unreadable_records_keeps_no_other_job_from_its_driver(tmp_path):
    lake, said = a_lake(tmp_path), []
    for job in ("a_job", "b_job"):
        deploy(lake, [a_pipeline(name=f"in_{job}", job=job)])
    (tmp_path / "_control/a_job/desired/000001.json").write_text('{"pipelines": 7}')
    here = Supervisor(
        lake=lake,
        launcher=LocalProcess(("true",)),
        logs=tmp_path / "logs",
        drive=lambda job, term: (),
        say=said.append,
        now=lambda: NOW,
    )
    for _ in range(3):
        here.look()
    assert terms.records(lake, "b_job").newest_number() == 1
    assert len([line for line in said if line.startswith("a_job: cannot be looked after")]) == 1


@contextmanager
def a_process(*arguments):
    """One that sleeps, in a group of its own."""
    program = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def a_watch(lake, folder, *, pulse_of=None, **parts):
    """A supervisor of one job, the first term of which is said to be driven by a process of this host."""
    deploy(lake, [a_pipeline()])
    terms.records(lake, JOB).append(1, terms.Term(host="here", supervisor="here/1", begun_at=NOW))
    said = {"job": JOB, "term": 1, "host": "here", "started_at": NOW, "at": NOW, "sequence": 1}
    pulse.beat(lake, Pulse(**(said | (pulse_of or {}))))
    return Supervisor(
        lake=lake,
        launcher=LocalProcess(("true",)),
        logs=folder / "logs",
        drive=lambda job, term: driver_arguments(job, term, lake.uri),
        host="here",
        **parts,
    )


def test_a_process_that_a_forged_pulse_names_is_left_alone(tmp_path):
    passed = [0.0]
    for count in range(3):
        lake = a_lake(tmp_path / f"lake{count}")
        arguments = ((), driver_arguments(JOB, 2, lake.uri), driver_arguments("another", 1, lake.uri))[count]
        with a_process(*arguments) as process:
            forged = {"pid": process.pid, "pid_born": birth(process)}
            here = a_watch(lake, tmp_path, pulse_of=forged, clock=lambda: passed[0])
            here.look()
            passed[0] += HUNG_S + 1
            here.look()
            ended = threading.Event()
            ended.set()
            here.run(ended, ended)
            assert process.status() == psutil.STATUS_SLEEPING, arguments


def test_a_supervisor_kills_a_silent_driver_that_it_did_not_start(tmp_path):
    lake, passed = a_lake(tmp_path / "lake"), [0.0]
    with a_process(*driver_arguments(JOB, 1, lake.uri)) as process:
        own = {"pid": process.pid, "pid_born": birth(process)}
        here = a_watch(lake, tmp_path, pulse_of=own, clock=lambda: passed[0])
        here.look()
        passed[0] += HUNG_S + 1
        here.look()
        assert process.wait(timeout=60) == -9


def test_a_driver_with_signs_of_life_is_killed_where_its_spark_hangs(tmp_path):
    lake, said = a_lake(tmp_path / "lake"), []
    with a_process(*driver_arguments(JOB, 1, lake.uri)) as process:
        own = {"pid": process.pid, "pid_born": birth(process)}
        here = a_watch(lake, tmp_path, pulse_of=own | {"spark_silent_s": HUNG_S - 1}, say=said.append)
        here.look()
        assert process.status() == psutil.STATUS_SLEEPING
        pulse.beat(lake, pulse.pulse_of(lake, JOB, 1).model_copy(update={"spark_silent_s": HUNG_S + 1, "sequence": 2}))
        here.look()
        assert process.wait(timeout=60) == -9
    assert "streams: its driver is killed: Spark has not answered in it for 61 s" in said
    here.look()
    end = status.records(lake, JOB).newest()[1].last_end
    assert (end.term, end.cause) == (1, "its supervisor ended it: Spark has not answered in it for 61 s")


def test_a_file_that_a_forged_pulse_names_is_neither_read_nor_cut(tmp_path):
    secret, large = tmp_path / "secret", tmp_path / "large"
    secret.write_text("the password\n")
    with large.open("wb") as file:
        file.truncate(100 * 2**20)
    for count, named in enumerate((secret, large, "/proc/self/environ")):
        lake = a_lake(tmp_path / f"lake{count}")
        here = a_watch(lake, tmp_path / str(count), pulse_of={"pid": 2**30, "pid_born": "", "log": str(named)})
        own = tmp_path / str(count) / "logs" / JOB / "000001.log"
        own.parent.mkdir(parents=True)
        own.write_text("what its driver said\n")
        running = status.Status(job=JOB, state="running", since=NOW, term=1, order=1)
        status.records(lake, JOB).append(1, running)
        here.look()
        found = status.records(lake, JOB).newest()[1]
        assert found.last_lines == ("what its driver said",)
        assert found.last_end.log == str(own)
    assert large.stat().st_size == 100 * 2**20
    assert sorted(path.name for path in tmp_path.glob("large*")) == ["large"]


def test_what_is_no_name_of_a_job_is_looked_after_by_nobody(tmp_path):
    lake = a_lake(tmp_path)
    for name in ("streams", "..%2F..", "Streams", "a job", "probe", "_monitor"):
        (tmp_path / "_control" / name / "desired").mkdir(parents=True)
    assert orders.jobs(lake) == ("streams",)


def test_a_pulse_of_another_job_or_term_is_none(tmp_path):
    lake = a_lake(tmp_path)
    forged = {"host": "h", "pid": 1, "pid_born": "", "started_at": NOW, "at": NOW, "sequence": 1}
    for other in ({"job": JOB, "term": 999_999}, {"job": "..", "term": 1}):
        text = Pulse(**(forged | other)).model_dump_json().encode()
        lake.store.put(f"_control/{JOB}/pulse/000001.json", text)
        assert pulse.pulse_of(lake, JOB, 1) is None
