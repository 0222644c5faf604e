"""What one look of the monitor costs: a process of its own that looks at ten pipelines, beside one that looks at one.

Run as ``python -m benchmarks.monitor_look``; it needs no JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from spark_jobs.control.supervision import pulse, status, terms
from spark_jobs.control.supervision.pulse import Figures, PipelinePulse, Pulse
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import open_epoch
from spark_jobs.spec import Pipeline, Sink, Table
from tests.support.builders import a_batch, a_pipeline, a_stamp, write
from tests.support.deploying import deploy

COMMITS = 120
LOOK = """
import sys
from datetime import UTC, datetime

from spark_jobs.control.monitoring.monitor import look
from spark_jobs.lake import Lake

assert len(look(Lake(sys.argv[1]), now=datetime.now(UTC)).reports) == int(sys.argv[2])
"""


def deployed(folder: Path, count: int) -> Lake:
    """A lake on which so many pipelines run, each with a table of its own that has had many commits."""
    lake, now = Lake(str(folder)).ensure_exists(), datetime.now(UTC)
    names = [f"pipeline_{number}" for number in range(count)]
    definitions: list[Pipeline] = [
        a_pipeline(name=name, source=Table("bronze.sales"), sink=Sink(f"gold.{name}")) for name in names
    ]
    deploy(lake, definitions, by="a benchmark")
    term = terms.Term(host=terms.this_host(), supervisor="a benchmark", begun_at=now)
    terms.records(lake, "streams").append(1, term)
    running = status.Status(job="streams", state="running", since=now, term=1, order=1)
    status.records(lake, "streams").append(1, running)
    figures = Figures(batch_id=COMMITS - 1, epoch=1, read=1000, batches=COMMITS)
    seen = {
        name: PipelinePulse(generation=1, state="running", since=now, progressed_at=now, figures=figures)
        for name in names
    }
    pulse.beat(
        lake,
        Pulse(
            job="streams", term=1, host="here", pid=1, pid_created=1.0, pid_born="1",
            started_at=now, at=now, sequence=1,
            pipelines=seen,
        ),
    )  # fmt: skip
    for definition in definitions:
        open_epoch(lake, definition)
        for batch in range(COMMITS):
            stamp = a_stamp(batch, pipeline=definition.name, ledger=a_batch(10))
            write(lake, definition.sink.table, pa.table({"units": [batch]}), stamp=stamp)
    return lake


def cpu_s(lake: Lake, count: int) -> float:
    """CPU seconds of a process that looks once."""
    before = os.times()
    subprocess.run([sys.executable, "-c", LOOK, lake.uri, str(count)], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Prints the medians of five, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        lakes = {count: deployed(Path(folder, str(count)), count) for count in (1, 10)}
        taken: dict[int, list[float]] = {count: [] for count in lakes}
        for _ in range(5):
            for count, lake in lakes.items():
                taken[count].append(cpu_s(lake, count))
    one, ten = (sorted(each)[2] for each in taken.values())
    print(f"one look, CPU of its whole process: one pipeline {one:.2f} s, ten {ten:.2f} s; ratio {ten / one:.2f}")


if __name__ == "__main__":
    main()
