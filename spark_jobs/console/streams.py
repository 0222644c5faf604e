"""Deployed streams on the terminal: their supervisor, their state."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import JobNow, job_now
from spark_jobs.control.desired.orders import Order
from spark_jobs.control.monitoring import mutes
from spark_jobs.control.monitoring.health import STALE, lost, span
from spark_jobs.control.monitoring.marks import last_look
from spark_jobs.control.supervision.launchers import Launcher, LocalProcess, SparkSubmit, Task, driver_arguments
from spark_jobs.control.supervision.lease import GONE, active_supervisor
from spark_jobs.control.supervision.supervisor import Supervisor
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.halts import Halt
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.store.health import trouble
from spark_jobs.spark.settings import secret_environment, spark_settings
from spark_jobs.spec.shadows import shadow_of

log = logging.getLogger("tidemark.supervisor")


class PortInUseError(TidemarkError):
    """A port that is to serve metrics is somebody else's."""


def launcher(lake: Lake, settings: Settings) -> Launcher:
    """What starts drivers: a process with Spark in it, or the client of a cluster."""
    if settings.master.startswith("spark://"):
        if settings.spark_secret is None:
            log.warning(
                "%s: TIDEMARK_SPARK_SECRET is not set. Whoever reaches this cluster, or a driver of it, can run code "
                "there. Give it to the supervisor, and to master and workers as docs/operate/operating.md says.",
                settings.master,
            )
        return SparkSubmit(settings.master, spark_settings(lake, settings), secret_environment(settings))
    return LocalProcess()


def supervise(lake: Lake, settings: Settings, *, end: threading.Event, leave: threading.Event) -> None:
    """Supervises a lake in this process until `end`; with `leave` it does not wait until its drivers have ended."""
    logs = Path(settings.logs).absolute()
    supervisor = Supervisor(
        lake=lake,
        launcher=launcher(lake, settings),
        logs=logs,
        drive=lambda job, term: driver_arguments(job, term, lake.uri),
    )
    if settings.metrics_port:
        _serve_metrics(supervisor, settings)
    log.info("supervising %s; drivers run on %s, their logs are in %s", lake.uri, settings.master, logs)
    supervisor.run(end, leave)
    log.info("ended")


def submit(out: Console, settings: Settings, arguments: tuple[str, ...]) -> int:
    """Runs a finite command of Tidemark's where drivers run, and gives its exit code."""
    if not arguments:
        raise TidemarkError("submit: expected a command, such as: tidemark submit run top_products --until-caught-up")
    if arguments[-1] == "--lake":
        raise TidemarkError("submit: expected a folder or s3a://bucket/prefix after --lake. Nothing was started.")
    lake = Lake.parse(arguments[arguments.index("--lake") + 1] if "--lake" in arguments else settings.lake)
    name = f"{'-'.join(arguments[:2])}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    task = Task(name=name, arguments=arguments, log=Path(settings.logs).absolute() / "batch" / f"{name}.log")
    out.print(f"{name} runs on {settings.master}; its log: {task.log}", highlight=False)
    launched = launcher(lake, settings).launch(task)
    for line in launched.lines():
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    return launched.wait()


class _SupervisorCollector(Collector):
    """What the supervisor knows, in Prometheus' text format."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._looked: tuple[float, float | None] = (0.0, None)

    def collect(self) -> Iterator[Metric]:
        """Whether it is active, its drivers, and when the monitor has last looked."""
        supervisor = self._supervisor
        yield GaugeMetricFamily(
            "tidemark_supervisor_active", "1 where it holds the lease.", value=int(supervisor.active)
        )
        up = GaugeMetricFamily("tidemark_driver_up", "1 where the job's driver lives.", labels=("job",))
        restarts = CounterMetricFamily("tidemark_driver_restarts", "Unplanned driver exits.", labels=("job",))
        for job, alive in supervisor.alive.items():
            up.add_metric((job,), int(alive))
            restarts.add_metric((job,), supervisor.restarts.get(job, 0))
        yield up
        yield restarts
        if time.monotonic() - self._looked[0] > 10:
            self._looked = time.monotonic(), self._last_look()
        if self._looked[1] is not None:
            yield GaugeMetricFamily(
                "tidemark_monitor_last_look_timestamp_seconds", "When the monitor looked.", value=self._looked[1]
            )

    def _last_look(self) -> float | None:
        """None also where the lake does not answer: that the monitor's time is missing is told by a rule."""
        try:
            at = last_look(self._supervisor.lake)
        except Exception:  # noqa: BLE001 (whatever the store says: the other figures are to be seen)
            return None
        return at.timestamp() if at else None


def _serve_metrics(supervisor: Supervisor, settings: Settings) -> None:
    registry = CollectorRegistry()
    registry.register(_SupervisorCollector(supervisor))
    try:
        start_http_server(settings.metrics_port, addr=settings.metrics_address, registry=registry)
    except OSError as error:
        raise PortInUseError(
            f"supervisor: cannot serve metrics on {settings.metrics_address}:{settings.metrics_port} "
            f"({error.strerror}). Nothing was started. Another supervisor may run here; or choose another port with "
            "--metrics-port, 0 for none."
        ) from error


def print_status(out: Console, lake: Lake) -> bool:
    """`tidemark status`; whether everything is as ordered."""
    wrong = trouble(lake)
    if wrong:
        out.print(f"[red]{escape(f'lake {lake.uri}: {wrong}')}[/red]", highlight=False)
    active = active_supervisor(lake)
    at = datetime.now(UTC)
    fine = active is not None and at - active[1] <= GONE
    if active is None:
        out.print(f"no supervisor watches {lake.uri}: start one with `{command('supervise')}`", highlight=False)
    else:
        told = f"last sign of life {span(at - active[1])} ago"
        told = f"active, {told}" if fine else f"[red]{told}[/red]; start one: `make up`, or `{command('supervise')}`"
        out.print(f"supervisor {active[0].id}: {told}", highlight=False, soft_wrap=True)
    desired = orders.all_desired(lake)
    # Also of pipelines that nobody has deployed.
    halted = halts.all_standing(lake) if wrong is None else {}
    if not desired:
        out.print(f"nothing has been deployed on {lake.uri}: `{command('deploy', 'PIPELINE')}`", highlight=False)
        print_halts(out, halted)
        return not halted
    quiet = mutes.muted(lake, now=at)
    narrow = out.width < _WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0))
    for heading in ("job", "pipeline", "state") if narrow else ("job", "pipeline", "ordered", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in _SHORT_HEADINGS if narrow else _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    now_of = {job: job_now(lake, job) for job in desired}
    at = datetime.now(UTC)
    for job, wanted in desired.items():
        now = now_of[job]
        _print_driver(out, job, now, at=at, wanted=bool(wanted.running))
        for name, order in wanted.pipelines.items():
            beside = shadow_of(name)
            if beside is not None and order.state == "stopped" and current_epoch(lake, name) is None:
                continue  # it was dropped: its order only keeps its generation
            state, good = state_of(now, name, order, at=at)
            fine = fine and good
            note = ", ".join([*([f"shadow of {beside}"] if beside else []), *(["muted"] if name in quiet else [])])
            ordered = () if narrow else (order.state,)
            figures = _figures(now, name, at=at, clock="%m-%d %H:%M" if narrow else "%Y-%m-%d %H:%M:%S")
            table.add_row(job, name, *ordered, _coloured(state, good), *figures, note)
    out.print(table)
    for job in desired:
        _print_troubles(out, job, now_of[job])
    print_halts(out, halted)
    return fine and not halted


def print_halts(out: Console, halted: Mapping[str, Halt]) -> None:
    """Each batch about which a person has to decide, and what to run."""
    for name, halt in halted.items():
        out.print(Text.assemble((f"\n{name} halted", "red"), f" since {halt.since:%Y-%m-%d %H:%M:%S} UTC"))
        out.print(Text(f"    {halt.what}"), soft_wrap=True)
        for sample in halt.samples:
            out.print(Text(f"    such as: {sample}"), soft_wrap=True)
        options = {choice: () if choice == "resume" else (f"--{choice}",) for choice in halt.choices}
        widest = max(len(command("resume", name, *option)) for option in options.values())
        for choice, option in options.items():
            does = halts.WAYS_ON[choice]
            out.print(Text(f"    {command('resume', name, *option):<{widest}}  {does}"), soft_wrap=True)


def _print_driver(out: Console, job: str, now: JobNow, *, at: datetime, wanted: bool) -> None:
    """Who drives a job, and how old what is known of it is."""
    pulse = now.pulse
    if pulse is None or not wanted:
        return
    told = f"last sign of life {span(at - pulse.at)} ago"
    if pulse.ending is not None:
        told += ", as it ended"
    elif found := lost(pulse, now=at):
        told = f"[red]{told if at - pulse.at > STALE else f'it {found[0]}'}[/red]"
    out.print(f"driver of job {job}: term {pulse.term}, on {pulse.host}: {told}", highlight=False, soft_wrap=True)


_WIDE = 115
_HEADINGS = ("events", "events/s", "watermark (UTC)", "behind", "failures")
_SHORT_HEADINGS = ("events", "per s", "final up to", "behind", "fails")


def state_of(now: JobNow, name: str, order: Order, *, at: datetime) -> tuple[str, bool]:
    """What a pipeline does at a time, in a word or two, and whether that is what was ordered."""
    pulse, status = now.pipeline(name), now.status
    driver = status.state if status else "stopped"
    if order.state == "stopped":
        runs = driver in ("running", "draining") and pulse is not None and pulse.state not in ("stopped", "failed")
        return ("stopping", True) if runs else ("stopped", True)
    if status is None:
        return "waits for a supervisor", False
    if driver in ("failed", "backing_off", "stopped"):
        return f"driver {driver.replace('_', ' ')}", False
    if now.pulse is not None and lost(now.pulse, now=at):
        return "no sign of life" if at - now.pulse.at > STALE else "Spark hangs", False
    if driver == "starting" or pulse is None or pulse.generation < order.generation:
        return "starting", True
    return pulse.state, pulse.state in ("running", "starting")


def _coloured(state: str, good: bool) -> Text:
    return Text(state, style="green" if state == "running" else "" if good else "red")


def _figures(now: JobNow, name: str, *, at: datetime, clock: str) -> tuple[str, ...]:
    seen = now.pipeline(name)
    if seen is None:
        return ("-",) * 5
    figures = seen.figures
    watermark = "-"
    if figures.watermark_ms:
        watermark = datetime.fromtimestamp(figures.watermark_ms / 1000, UTC).strftime(clock)
    # That of a driver which is gone is nobody's any more.
    rate = None if now.pulse is None or lost(now.pulse, now=at) else figures.input_rows_per_s
    return (
        f"{figures.read:,}",
        "-" if rate is None else f"{rate:,.0f}",
        watermark,
        "-" if figures.rows_behind is None else f"{figures.rows_behind:,}",
        str(len(seen.failures)),
    )


def _print_troubles(out: Console, job: str, now: JobNow) -> None:
    status = now.status
    if status is not None and status.state in ("failed", "backing_off"):
        told = status.last_end.cause_in_words if status.last_end else f"exit code {status.exit_code}"
        out.print(Text(f"\njob {job}: its driver ended {len(status.ends)} times, last with {told}"), soft_wrap=True)
        if status.last_end:
            out.print(Text(f"its log: {status.last_end.where}; its last lines:"), soft_wrap=True)
        for line in status.last_lines:
            out.print(Text(f"    {line}"), soft_wrap=True)
    for name, seen in (now.pulse.pipelines if now.pulse else {}).items():
        if seen.state in ("failed", "retrying") and seen.error:
            out.print(Text.assemble((f"\n{name} {seen.state}: ", "red"), seen.error), soft_wrap=True)
