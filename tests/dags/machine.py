"""A machine on which `make up` has run, for the length of a ``with`` block."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rich.console import Console

from spark_jobs.console import laptop
from spark_jobs.console.laptop.airflow import Airflow
from spark_jobs.console.laptop.ports import free_port
from spark_jobs.console.laptop.processes import Background
from spark_jobs.control.desired import orders
from spark_jobs.control.supervision import pulse, terms
from spark_jobs.control.supervision.pulse import Pulse
from spark_jobs.lake import Lake
from spark_jobs.simulator import Shop, simulate_files

T = TypeVar("T")


@dataclass
class Machine:
    """What runs there.

    Attributes:
        folder: Where `make up` ran.
        lake: Of its streams.
        said: What `make up` said.
    """

    folder: Path
    lake: Lake
    said: str = ""

    def up(self) -> str:
        """Runs `make up`; what it says."""
        out = StringIO()
        console = Console(file=out, width=200)
        code = laptop.up(console, console, self.lake)
        assert code == 0, out.getvalue()
        self.pause_what_comes_by_the_clock()
        return out.getvalue()

    def close_shop(self) -> None:
        """No more events come: streams that have nothing to do leave the processors to the tests beside these."""
        self.process("shop").stop(within_s=10)

    def down(self) -> str:
        """Runs `make down`; what it says."""
        out = StringIO()
        laptop.down(Console(file=out, width=200), self.lake)
        return out.getvalue()

    @property
    def airflow(self) -> Background:
        """The process of Airflow."""
        return self.process("airflow")

    def process(self, name: str) -> Background:
        """A process that `make up` has started: airflow, supervisor or shop."""
        return Background(name, home=self.folder / ".airflow/run", log=self.folder / f"logs/{name}.log")

    @property
    def api(self) -> Airflow:
        """Airflow's REST API."""
        return Airflow(self.folder / ".airflow", int(str(self.airflow.facts()["port"])))

    def run(self, dag: str, within_s: float = 240, **conf: Any) -> Run:
        """Starts a run of a DAG, as the form in the UI does, and waits until it is over."""
        # It would stay queued.
        self.pause(dag, paused=False)
        run_id = self.api.trigger(dag, conf)
        return self.ended(dag, run_id, within_s)

    def look(self) -> Run:
        """One run of the monitor, which then looks no more: each look costs as much as a batch of every stream."""
        run = self.run_that_is_due("monitor_streams")
        self.pause("monitor_streams", paused=True)
        # One that has become due meanwhile would be carried out beside the next.
        for waiting in self.api.get("dags/monitor_streams/dagRuns?state=queued")["dag_runs"]:
            answer = self.api._send("DELETE", f"/api/v2/dags/monitor_streams/dagRuns/{waiting['dag_run_id']}")
            assert answer.status_code in (204, 404), answer.text
        return run

    def run_that_is_due(self, dag: str, within_s: float = 240) -> Run:
        """The run that Airflow starts by the clock once the schedule is switched on; one by hand where none is due."""
        due = self.api.get(f"dags/{dag}")["next_dagrun_run_after"]
        if due is None or datetime.fromisoformat(due) > datetime.now(UTC):
            return self.run(dag, within_s)
        newest = f"dags/{dag}/dagRuns?run_type=scheduled&order_by=-run_after&limit=1"
        known = self.api.get(newest)["dag_runs"]
        self.pause(dag, paused=False)
        found = until(
            lambda: [run for run in self.api.get(newest)["dag_runs"] if run not in known], 60, f"a run of {dag}"
        )
        return self.ended(dag, found[0]["dag_run_id"], within_s)

    def pause(self, dag: str, *, paused: bool) -> None:
        """Switches the schedule of a DAG off or on."""
        answer = self.api._send("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})
        assert answer.status_code == 200, answer.text

    def pause_what_comes_by_the_clock(self) -> None:
        """Else a test would find a look of the monitor beside it each minute, and JVMs at the turn of an hour."""
        for dag in self.api.get("dags?limit=100")["dags"]:
            summary = str(dag["timetable_summary"])
            if summary[0].isdigit() or summary[0] == "*":
                self.pause(dag["dag_id"], paused=True)

    def finish_tasks(self) -> None:
        """Switches all schedules off and waits until no task runs any more."""
        for dag in self.api.get("dags?limit=100")["dags"]:
            self.pause(dag["dag_id"], paused=True)
        self.await_tasks()

    def await_tasks(self) -> None:
        """Waits until no task runs."""
        at_work = "dags/~/dagRuns/~/taskInstances?state=running&state=queued"
        until(lambda: self.api.get(at_work)["total_entries"] == 0, 120, "the end of all tasks")

    def ended(self, dag: str, run_id: str, within_s: float = 240) -> Run:
        """Waits until a run is over."""
        api = self.api
        state = until(lambda: _over(api.state(dag, run_id)), within_s, f"the end of {dag} {run_id}")
        return Run(api, dag, run_id, state)

    def pulse(self, job: str = "streams") -> Pulse | None:
        """The newest sign of life of a job's driver."""
        return pulse.pulse_of(self.lake, job, terms.records(self.lake, job).newest_number())

    def generations(self) -> dict[str, int]:
        """Pipeline -> generation that is wanted."""
        desired = orders.all_desired(self.lake).values()
        return {name: order.generation for job in desired for name, order in job.pipelines.items()}

    def sell(self, stream: Any, *, rows: int, hours_ago: float) -> None:
        """Lets events arrive in the landing folder, one every ten seconds of event time."""
        start = datetime.now(UTC) - timedelta(hours=hours_ago)
        shop = Shop(seed=7, streams=(stream,), start=start, rate=None, density=0.1)
        simulate_files(shop, out=self.lake.path("landing"), rows=rows)


@dataclass(frozen=True)
class Run:
    """A run of a DAG that is over."""

    api: Airflow
    dag: str
    run_id: str
    state: str

    def rows(self, task: str) -> dict[str, str]:
        """State of each mapped row of a task, by the name that the page shows."""
        mapped = [found for found in self._tasks() if found["task_id"] == task]
        return {found["rendered_map_index"]: found["state"] for found in mapped}

    def log(self, task: str, row: str | None = None) -> str:
        """What a task told, by the name of its row if it is mapped; as one line."""
        found = next(t for t in self._tasks() if t["task_id"] == task and t["rendered_map_index"] == row)
        return " ".join(" ".join(self.api.log(self.dag, self.run_id, found)).split())

    def _tasks(self) -> list[dict[str, Any]]:
        return self.api.tasks(self.dag, self.run_id)


def until(look: Callable[[], T | None], within_s: float, what: str) -> T:
    """Looks until there is something; what it is."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"expected {what} within {within_s:.0f} s"
        time.sleep(0.5)
    return found


def _over(state: str) -> str | None:
    return state if state in ("success", "failed") else None


@contextmanager
def machine(folder: Path, *, notifiers: list[Mapping[str, Any]], connections: Mapping[str, str]) -> Iterator[Machine]:
    """Runs `make up` in a folder of its own, on free ports, with a shop that has sold for ten hours."""
    settings = {
        "TIDEMARK_AIRFLOW_PORT": str(free_port()),
        "TIDEMARK_METRICS_PORT": "0",
        "TIDEMARK_DRIVER_MEMORY": "1g",
        "TIDEMARK_SHUFFLE_PARTITIONS": "1",
        "AIRFLOW_VAR_TIDEMARK_NOTIFIERS": json.dumps(notifiers),
        **{f"AIRFLOW_CONN_{name.upper()}": address for name, address in connections.items()},
    }
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        os.chdir(folder)
        this = Machine(folder, Lake(str(folder / "lake")).ensure_exists())
        try:
            this.sell("sales", rows=3600, hours_ago=36)
            this.said = this.up()
            yield this
        finally:
            this.down()
            os.chdir(before)
