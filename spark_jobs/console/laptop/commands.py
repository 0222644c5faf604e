"""`up`, `down` and `status`: what runs on this machine for one lake."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from obstore.exceptions import BaseError
from rich.console import Console
from rich.text import Text

from spark_jobs.console import reports
from spark_jobs.console.laptop.airflow import (
    USER,
    Airflow,
    AirflowError,
    command,
    environment,
    password,
    password_file,
    prepare_home,
    private_folder,
)
from spark_jobs.console.laptop.ports import free_port, is_free
from spark_jobs.console.laptop.processes import Background
from spark_jobs.control.desired import awaiting, orders
from spark_jobs.control.desired.deployment import deploy_again
from spark_jobs.control.desired.orders import OrderOutcome
from spark_jobs.control.supervision import pulse, terms
from spark_jobs.control.supervision.launchers import driver_arguments, is_driver, kill_group, terminate
from spark_jobs.control.supervision.pulse import Pulse
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError, TidemarkError, first_line
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables import opening as tables

PIPELINES = ("ingest_sales", "top_products", "top_products_live", "shop_totals")

PARTS = ("airflow", "supervisor", "shop")

HOME = Path(".airflow")

# An hour of the shop passes in a minute until it has caught up with the clock; then it keeps the clock's pace.
_SHOP = ("--streams", "sales", "--rate", "200", "--speed", "60", "--seed", "1")
_DISORDER = ("--late", "0.01", "--malformed", "0.005", "--future", "0.002")

_READY_S = 300.0
_DEPLOY_S = 240.0
_DRAIN_S = 150.0


class _Times:
    """Where the time went, for a table at the end."""

    def __init__(self, began: float | None) -> None:
        self.rows: list[tuple[str, str]] = []
        if began is not None:
            self.rows.append(("set-up", f"{time.time() - began:.1f} s"))
        self._began = began if began is not None else time.time()

    @contextmanager
    def measure(self, out: Console, what: str) -> Iterator[None]:
        began = time.monotonic()
        with out.status(f"{what} …"):
            yield
        self.rows.append((what, f"{time.monotonic() - began:.1f} s"))

    def table(self) -> list[tuple[str, str]]:
        return [*self.rows, ("together", f"{time.time() - self._began:.1f} s")]


def up(out: Console, err: Console, lake: Lake, *, began: float | None = None) -> int:
    """Starts what does not run yet, deploys the demonstration through Airflow if nothing is deployed, and says so.

    Args:
        out: for people.
        err: for what goes wrong.
        lake: where everything happens.
        began: when the set-up before this began, seconds since 1970; None: there was none.

    Returns:
        The exit code.
    """
    with _alone(HOME.absolute()):
        return _up(out, err, lake, _Times(began), HOME.absolute())


def _up(out: Console, err: Console, lake: Lake, times: _Times, home: Path) -> int:
    processes = _processes(home)
    _refuse_other_lake(lake, *processes)
    port = _port(processes[0])
    for said in _start_missing(lake, home, port, processes):
        out.print(said, highlight=False)
    lake.ensure_exists()
    api = Airflow(home, port)
    with times.measure(out, "Airflow answers"):
        _await(api.is_ready, processes[0], within_s=_READY_S)
    _refuse_ended(processes[1])
    with times.measure(out, "the pipelines make progress"):
        code = _deploy(out, err, lake, api)
    # Until it is there the runs of the day wait that Airflow begins at its first start: the deploy has the processors.
    api.ensure_pool()
    if code:
        _refuse_ended(processes[1])  # where Airflow ran before, the supervisor had not come to its port yet
    _tell(out, times, api, home, lake)
    return code


def down(out: Console, lake: Lake) -> int:
    """Ends what `up` started: streams finish their batches; what is deployed stays ordered for the next `up`.

    Returns:
        The exit code, which is 0.
    """
    with _alone(HOME.absolute()):
        return _down(out, lake, HOME.absolute())


def _down(out: Console, lake: Lake, home: Path) -> int:
    airflow, supervisor, shop = _processes(home)
    out.print(f"shop: {shop.stop(within_s=10)}")
    with out.status("the streams finish their batches …"):
        out.print(f"supervisor and its drivers: {supervisor.stop(within_s=_DRAIN_S)}")
        try:
            left = _end_drivers(lake)
        except (LakeUnavailableError, BaseError) as error:
            left = f"not looked for: {first_line(error)}"
    if left:
        out.print(f"drivers without a supervisor: {left}", highlight=False)
    with out.status("Airflow ends …"):
        out.print(f"Airflow: {airflow.stop(within_s=20)}")
    out.print("What is deployed starts again with `make up`.")
    return 0


def status(out: Console, lake: Lake) -> int:
    """Says what runs on this machine, and how the streams fare.

    Returns:
        The exit code, which is 0.
    """
    from spark_jobs.console.streams import print_status

    rows = []
    for process in _processes(HOME.absolute()):
        facts = process.facts()
        where = f"http://127.0.0.1:{facts['port']}" if "port" in facts else str(facts.get("lake", "-"))
        state = "runs" if process.runs() else "does not run"
        rows.append(
            (process.name, state, str(facts.get("pid", "-")), where if process.runs() else "-", _shown(process.log))
        )
    out.print(reports.rows_table(("what", "state", "process", "where", "log"), rows))
    out.print()
    print_status(out, lake)
    return 0


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Keeps a second command from starting, or ending, the same processes in this folder.

    Raises:
        AirflowError: if one is at work. The lock ends with the process that holds it, however that ends.
    """
    private_folder(home)
    with (home / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise AirflowError(
                f"{home}: `make up` or `make down` is at work here already (process {file.read()}). Nothing was "
                "changed. Wait until it has ended; `make status` says what runs."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _start_missing(
    lake: Lake, home: Path, port: int, processes: tuple[Background, Background, Background]
) -> Iterator[str]:
    """Starts what does not run, and says what that is."""
    airflow, supervisor, shop = processes
    if not airflow.runs():
        airflow.stop(within_s=10)  # parts that outlived a killed one hold its port
        _refuse_taken(port)
        prepare_home(home)
        tasks_port = free_port()
        airflow.start(
            command(home, tasks_port),
            environment=environment(home, port, tasks_port, lake=lake.uri),
            private=True,
            port=port,
            lake=lake.uri,
        )
        yield f"Airflow starts; its log: {_shown(airflow.log)}"
    if supervisor.runs() and (changed := _changed_settings(supervisor)) and (jobs := _given_up(lake)):
        yield f"The supervisor ends and starts again: job {', '.join(jobs)} was given up, and {changed} has changed …"
        supervisor.stop(within_s=_DRAIN_S)
    if not supervisor.runs():
        _start(supervisor, lake, "supervise")
        yield f"The supervisor starts; its log: {_shown(supervisor.log)}"
    if not shop.runs():
        start = _opening_time(lake).replace(tzinfo=None).isoformat(timespec="seconds")
        _start(shop, lake, "simulate", *_SHOP, *_DISORDER, "--start", start)
        yield f"A simulated shop sells from {start} UTC on, an hour a minute until it has caught up with the clock."


def _processes(home: Path) -> tuple[Background, Background, Background]:
    logs = Path(Settings().logs).absolute()
    airflow, supervisor, shop = (Background(name, home=home / "run", log=logs / f"{name}.log") for name in PARTS)
    return airflow, supervisor, shop


def _start(process: Background, lake: Lake, *arguments: str) -> None:
    command = [sys.executable, "-m", "spark_jobs", *arguments, "--lake", lake.uri]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process.start(command, environment=environment, lake=lake.uri, settings=_settings())


def _settings() -> dict[str, object]:
    """What drivers take from the environment; no password is among it."""
    return Settings().model_dump(mode="json", exclude={"lake"})


def _changed_settings(process: Background) -> str:
    """The variables that say something else than when a process was started; empty where none does, or nobody knows."""
    before, now = process.facts().get("settings"), _settings()
    names = [name for name in now if isinstance(before, dict) and before.get(name, now[name]) != now[name]]
    return ", ".join(f"TIDEMARK_{name.upper()}" for name in names)


def _given_up(lake: Lake) -> tuple[str, ...]:
    try:
        return awaiting.given_up(lake)
    except (LakeUnavailableError, BaseError):
        return ()  # whoever needs the lake next says what is wrong with it


def _port(airflow: Background) -> int:
    """The port of the Airflow that runs, else the one to start it on."""
    used = airflow.facts().get("port")
    if airflow.runs() and isinstance(used, int):
        return used
    text = os.environ.get("TIDEMARK_AIRFLOW_PORT", "8080")
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise AirflowError(f"TIDEMARK_AIRFLOW_PORT: expected a port, got {text!r}. Nothing was started.")
    return int(text)


def _refuse_other_lake(lake: Lake, *processes: Background) -> None:
    others = {process.facts().get("lake") for process in processes if process.runs()} - {lake.uri}
    if others:
        raise AirflowError(
            f"lake {lake.uri}: what runs in this folder was started for {others.pop()}. Nothing was changed. End it "
            "first: make down"
        )


def _refuse_taken(port: int) -> None:
    try:
        free = is_free(port)
    except OSError as error:
        raise AirflowError(
            f"port {port}: Airflow cannot listen there ({error.strerror}). Nothing was started. Choose another port: "
            "TIDEMARK_AIRFLOW_PORT=8080 make up"
        ) from error
    if not free:
        raise AirflowError(
            f"port {port}: expected it to be free for Airflow, but something listens there. Nothing was started. End "
            f"that, or choose another port: TIDEMARK_AIRFLOW_PORT={port + 10} make up"
        )


def _opening_time(lake: Lake) -> datetime:
    """Where the shop's sales stopped, but not more than a day ago: it has a day to catch up with at most."""
    now = datetime.now(UTC)
    a_day_ago = (now - timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
    try:
        newest = tables.newest(tables.open_table(lake, "bronze.sales"), "sold_at", beside="_ingest_seq")
    except MissingTableError:
        newest = None
    if not isinstance(newest, datetime):
        return a_day_ago
    return min(max(newest.replace(tzinfo=newest.tzinfo or UTC), a_day_ago), now)


def _await(holds: Callable[[], bool], process: Background, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if not process.runs() or time.monotonic() > deadline:
            ended = "has ended" if not process.runs() else f"does not answer within {within_s:.0f} s"
            raise AirflowError(_said(process, ended))
        time.sleep(0.2)


def _refuse_ended(supervisor: Background) -> None:
    if not supervisor.runs():
        raise TidemarkError(
            f"{_said(supervisor, 'has ended')}\nNo stream is started without it. Fix what it says, then `make up` "
            "again; where its port is in use: TIDEMARK_METRICS_PORT=9563 make up"
        )


def _said(process: Background, what: str) -> str:
    return f"{process.name} {what}. It said last:\n{process.said_last()}\nIts log: {process.log}"


def _deploy(out: Console, err: Console, lake: Lake, api: Airflow) -> int:
    """Deploys what has never been deployed, and waits for all that is to run."""
    desired = orders.all_desired(lake)
    known = {name for job in desired.values() for name in job.pipelines}
    missing = [name for name in PIPELINES if name not in known]
    if missing:
        return _deploy_by_dag(err, api, missing)
    try:
        again = deploy_again(lake, by="make up")
    except TidemarkError as error:
        return _refused(err, error)
    if again:
        out.print(f"Given up before, and ordered again: {', '.join(each.pipeline for each in again)}.", highlight=False)
        desired = orders.all_desired(lake)
    wanted = [
        OrderOutcome(job=job, pipeline=name, generation=order.generation, changed=False)
        for job, now in desired.items()
        for name, order in now.running.items()
    ]
    try:
        awaiting.await_running(lake, wanted, timeout=timedelta(seconds=_DEPLOY_S), on_progress=lambda _: None)
    except TidemarkError as error:
        return _refused(err, error)
    out.print(f"Deployed before, and running: {', '.join(each.pipeline for each in wanted) or 'nothing'}.")
    return 0


def _refused(err: Console, error: TidemarkError) -> int:
    err.print(Text.assemble(("error:", "red"), f" {error}"), soft_wrap=True, highlight=False)
    return 1


def _deploy_by_dag(err: Console, api: Airflow, names: list[str]) -> int:
    dag = "deploy_streams"
    deadline = time.monotonic() + _DEPLOY_S
    while not api.knows(dag) and time.monotonic() < deadline:
        time.sleep(0.3)
    run = api.trigger(dag, {"pipelines": names, "wait_minutes": _DEPLOY_S / 60})
    while (state := api.state(dag, run)) in ("queued", "running") and time.monotonic() < deadline + _DEPLOY_S:
        time.sleep(0.5)
    if state == "success":
        return 0
    failed = [task for task in api.tasks(dag, run) if task["state"] == "failed"]
    said = "\n".join(line for task in failed for line in api.log(dag, run, task))
    err.print(
        Text.assemble(("error:", "red"), f" {dag} {run}: {state}\n{said}\nSee {api.address}/dags/{dag}/runs/{run}"),
        soft_wrap=True,
        highlight=False,
    )
    return 1


def _end_drivers(lake: Lake) -> str:
    """Ends drivers of this host that no supervisor has ended; says how."""

    def runs(beat: Pulse) -> bool:
        return is_driver(beat.pid, beat.pid_born, driver_arguments(beat.job, beat.term, lake.uri))

    beats = {}
    for job in orders.jobs(lake):
        beat = pulse.pulse_of(lake, job, terms.records(lake, job).newest_number())
        if beat is not None and beat.host == terms.this_host() and runs(beat):
            beats[job] = beat
            terminate(beat.pid)
    if not beats:
        return ""
    psutil.wait_procs([psutil.Process(b.pid) for b in beats.values() if psutil.pid_exists(b.pid)], timeout=_DRAIN_S)
    killed = [job for job, beat in beats.items() if runs(beat)]
    for job in killed:
        kill_group(beats[job].pid)
    drained = [job for job in beats if job not in killed]
    return "; ".join(f"{word}: {', '.join(jobs)}" for word, jobs in (("drained", drained), ("killed", killed)) if jobs)


def _tell(out: Console, times: _Times, api: Airflow, home: Path, lake: Lake) -> None:
    # What is not shown to a person stays in a log.
    secret = f"password {password(home)}" if out.is_terminal else f"password in {_shown(password_file(home))}"
    elsewhere = lake.uri != Lake.parse(Settings.model_fields["lake"].default).uri
    out.print()
    out.print(reports.rows_table(("where the time went", ""), times.table()))
    out.print(
        f"\nAirflow: {api.address}   user {USER}   {secret}\n\n"
        "Look at:\n"
        + (f"  export TIDEMARK_LAKE={lake.uri}     so that these commands, too, find this lake\n" if elsewhere else "")
        + f"  {api.address}/dags/monitor_streams    each pipeline's health, every minute\n"
        f"  {api.address}/dags/deploy_streams     run other pipelines: the form behind Trigger\n"
        f"  {api.address}/dags/top_products_report    a DAG that follows a table\n"
        "  .venv/bin/tidemark status                what runs, and its state\n"
        "  .venv/bin/tidemark sql 'SELECT * FROM gold.top_products_live WHERE is_final'\n"
        "  .venv/bin/tidemark ledger top_products   what became of every event\n\n"
        "End it: make down   (what is deployed continues with the next make up)",
        highlight=False,
        soft_wrap=True,
    )


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
