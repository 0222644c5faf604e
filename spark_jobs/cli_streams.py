"""The commands of `tidemark` for deployed streams: the same verbs as the DAGs."""

import getpass
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from spark_jobs.console import streams
from spark_jobs.control import acknowledgements, awaiting, mutes, orders
from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.pipelines import problems, registered_readers, resolve, with_sources
from spark_jobs.spec import Definition, DefinitionError
from spark_jobs.spec.durations import parse_duration

log = logging.getLogger("tidemark.driver")

LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake", help="Folder or s3a://bucket/prefix. [default: TIDEMARK_LAKE, or ./lake]", show_default=False
    ),
]
Names = Annotated[
    list[str], typer.Argument(help="Registered names, or paths of pipeline files.", metavar="PIPELINE...")
]
Deployed = Annotated[list[str], typer.Argument(help="Names of deployed pipelines.", metavar="PIPELINE...")]


def _lake(text: str | None) -> Lake:
    return Lake.parse(Settings().lake if text is None else text)


def resolved(names: Iterable[str], err: Console) -> tuple[Definition, ...]:
    """The definitions that a user named; tells of the files that cannot be loaded, which concern others."""
    found = resolve(names)
    warn_of_problems(err)
    return found


def warn_of_problems(err: Console) -> None:
    """Tells what is left out of the registered pipelines, and why."""
    for problem in problems():
        text = f" {problem.told}. What it defines is left out; the other pipelines are not concerned."
        err.print(Text.assemble(("warning:", "yellow"), text), soft_wrap=True, highlight=False)


def register(app: typer.Typer, out: Console, err: Console) -> None:
    """Adds the commands to the application."""

    @app.command()
    def deploy(
        names: Names,
        lake: LakeOption = None,
        with_ingests: Annotated[
            bool, typer.Option("--with-sources", help="Also the ingests that fill the tables these pipelines read.")
        ] = False,
        wait: Annotated[str, typer.Option(help='How long to wait for the first progress; "0 seconds": not at all.')] = (
            "3 minutes"
        ),
    ) -> None:
        """Order that pipelines run, and wait for their first progress. What already runs so is left alone."""
        timeout = _duration("--wait", wait)
        definitions = list(resolved(names, err))
        if with_ingests:
            definitions = list(with_sources(definitions))
        where = _lake(lake).made()
        ordered = orders.deploy(where, definitions, by=_person(), failed=awaiting.failed_generations(where))
        for each in ordered:
            told = f"generation {each.generation} ordered" if each.changed else "runs so already, left alone"
            out.print(f"{each.pipeline}: {told} (job {each.job})", highlight=False)
        if timeout:
            tell: Callable[[str], None] = lambda text: out.print(text, highlight=False)  # noqa: E731
            awaiting.await_running(where, ordered, timeout=timeout, tell=tell)

    @app.command()
    def stop(
        names: Deployed,
        lake: LakeOption = None,
        wait: Annotated[str, typer.Option(help="How long to wait until they have.")] = "3 minutes",
    ) -> None:
        """Order that deployed pipelines finish their batch and end."""
        where, timeout = _lake(lake), _duration("--wait", wait)
        ordered = orders.stop(where, names, by=_person())
        if timeout:
            awaiting.await_stopped(where, ordered, timeout=timeout)
        out.print(f"stopped: {', '.join(each.pipeline for each in ordered)}", highlight=False)

    @app.command()
    def status(
        lake: LakeOption = None,
        machine: Annotated[
            bool, typer.Option("--machine", help="Also what `tidemark up` has started on this machine.")
        ] = False,
    ) -> None:
        """Show what is deployed, what runs and how it fares; exit with 1 where something is not as ordered."""
        if machine:
            from spark_jobs.console import laptop

            raise typer.Exit(laptop.status(out, _lake(lake)))
        raise typer.Exit(0 if streams.print_status(out, _lake(lake)) else 1)

    @app.command()
    def up(
        lake: LakeOption = None,
        began: Annotated[float | None, typer.Option(hidden=True)] = None,
    ) -> None:
        """Start Airflow, a supervisor and a simulated shop on this machine, and deploy the demonstration."""
        from spark_jobs.console import laptop

        raise typer.Exit(laptop.up(out, err, _lake(lake), began=began))

    @app.command()
    def down(lake: LakeOption = None) -> None:
        """End what `tidemark up` has started; streams finish their batches."""
        from spark_jobs.console import laptop

        raise typer.Exit(laptop.down(out, _lake(lake)))

    @app.command()
    def mute(
        names: Deployed,
        lake: LakeOption = None,
        during: Annotated[str, typer.Option("--for", help="For how long.")] = "1 hour",
        off: Annotated[bool, typer.Option("--off", help="Alert again.")] = False,
    ) -> None:
        """Keep a pipeline's alerts from failing its task and calling anybody, for a while."""
        until = None if off else datetime.now(UTC) + _duration("--for", during)
        where = _lake(lake)
        _refuse_unknown("mute", where, names)
        mutes.mute(where, names, until=until)
        told = "alerts again" if until is None else f"muted until {until:%Y-%m-%d %H:%M} UTC"
        out.print(f"{', '.join(names)}: {told}", highlight=False)

    @app.command()
    def acknowledge(names: Deployed, lake: LakeOption = None) -> None:
        """Take note of what has happened to pipelines so far: their alert `restarts` clears with the next look."""
        at, where = datetime.now(UTC), _lake(lake)
        _refuse_unknown("acknowledge", where, names)
        acknowledgements.acknowledge(where, names, at=at)
        out.print(
            f"{', '.join(names)}: restarts up to {at:%Y-%m-%d %H:%M:%S} UTC are acknowledged. Only those after it "
            "count for the alert `restarts`.",
            highlight=False,
            soft_wrap=True,
        )

    @app.command()
    def supervise(
        lake: LakeOption = None,
        master: Annotated[
            str | None,
            typer.Option(
                help="spark://host:port for a standalone cluster. [default: TIDEMARK_MASTER, or this machine]"
            ),
        ] = None,
        metrics_port: Annotated[
            int | None, typer.Option(help="Serves metrics; drivers take the next ports. 0: none. [default: 9463]")
        ] = None,
    ) -> None:
        """Keep what runs equal to what is deployed: start drivers, restart them, drain them. Ctrl-C has the drivers
        finish their batches and end; pressed twice it does not wait until they have."""
        _log_to_stderr()
        if master is not None:
            os.environ["TIDEMARK_MASTER"] = master
        if metrics_port is not None:
            os.environ["TIDEMARK_METRICS_PORT"] = str(metrics_port)
        with _two_signals() as (end, leave):
            streams.supervise(_lake(lake).made(), Settings(), end=end, leave=leave)

    @app.command(hidden=True)
    def drive(
        job: str,
        term: Annotated[int, typer.Option()],
        lake: LakeOption = None,
    ) -> None:
        """Drive a job; started by the supervisor."""
        from spark_jobs.job.process import drive as drive_job

        _log_to_stderr()
        # A file that is being edited is no reason for what was deployed to end.
        readers = registered_readers(lambda told: log.warning("left out of the heartbeats: %s", told))
        log_file = os.environ.get("TIDEMARK_LOG_FILE")
        with _two_signals() as (end, _):
            drive_job(_lake(lake), job, term, stop=end, readers=readers, log_file=log_file)

    @app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def submit(
        context: typer.Context,
        master: Annotated[str | None, typer.Option(help="spark://host:port. [default: TIDEMARK_MASTER]")] = None,
    ) -> None:
        """Run one finite command where drivers run, such as: tidemark submit run top_products --until-caught-up"""
        if master is not None:
            os.environ["TIDEMARK_MASTER"] = master
        raise typer.Exit(streams.submit(out, Settings(), tuple(context.args)))


def _duration(option: str, text: str) -> timedelta:
    """What an option says; asked for before anything is done."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise DefinitionError(f"{option}: {error}. Nothing was changed.") from None


def _refuse_unknown(verb: str, lake: Lake, names: list[str]) -> None:
    known = {name for desired in orders.all_desired(lake).values() for name in desired.pipelines}
    unknown = sorted(set(names) - known)
    if unknown:
        raise DefinitionError(
            f"{verb}: {unknown[0]} has not been deployed. Deployed: {', '.join(sorted(known)) or 'nothing'}. Nothing "
            "was changed."
        )


def _person() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # as in a container that runs under a number that has no name
        user = f"user {os.getuid()}"
    return f"{user} at the command line"


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    for noisy in ("py4j", "botocore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextmanager
def _two_signals() -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first Ctrl-C or SIGTERM sets the one, the second the other."""
    first, second = threading.Event(), threading.Event()

    def on_signal(signum: int, frame: object) -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    yield first, second


def log_folder(settings: Settings) -> Path:
    """Where drivers log."""
    return Path(settings.logs).absolute()
