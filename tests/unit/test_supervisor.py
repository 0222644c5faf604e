"""What a supervisor does about a driver that it cannot reach; with real drivers it is tested in tests/control."""

from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.control import orders, pulse, terms
from spark_jobs.control.launchers import LocalProcess
from spark_jobs.control.pulse import Pulse
from spark_jobs.control.reconcile import DRAIN
from spark_jobs.control.supervisor import Supervisor
from spark_jobs.control.terms import FencedError
from spark_jobs.job.loop import Fence
from tests.builders import a_lake, a_pipeline

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB = "streams"


def test_a_driver_on_another_host_that_does_not_end_is_fenced(tmp_path):
    lake, said, now = a_lake(tmp_path), [], [NOW]
    sequence = iter(range(100))

    def alive():
        at = {"started_at": NOW, "at": NOW}
        pulse.beat(lake, Pulse(job=JOB, term=1, host="there", pid=1, pid_born="", sequence=next(sequence), **at))

    orders.deploy(lake, [a_pipeline()], by="a test")
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
    assert len([line for line in said if "its driver on there is told to end" in line]) == 1


def test_a_job_whose_records_cannot_be_read_keeps_no_other_one_from_its_driver(tmp_path):
    lake, said = a_lake(tmp_path), []
    for job in ("a_job", "b_job"):
        orders.deploy(lake, [a_pipeline(name=f"in_{job}", job=job)], by="a test")
    (tmp_path / "_control/a_job/desired/000001.json").write_text('{"pipelines": 7}')
    here = Supervisor(
        lake=lake,
        launcher=LocalProcess(("true",)),
        logs=tmp_path / "logs",
        drive=lambda job, term: (),
        say=said.append,
    )
    for _ in range(3):
        here.look()
    assert terms.records(lake, "b_job").newest_number() == 1
    assert len([line for line in said if line.startswith("a_job: cannot be looked after")]) == 1
