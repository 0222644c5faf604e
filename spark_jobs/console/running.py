"""Runs pipelines in this process, with live progress and a plain account at the end."""

import contextlib
import logging
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.text import Text

from spark_jobs.console.live import Progress, progress_table, tell_failure, tell_set_aside
from spark_jobs.console.plain import PlainConsole
from spark_jobs.console.priority import step_aside
from spark_jobs.engine.driver import Driver, Outcome
from spark_jobs.engine.failures import StoppedError, Words
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import EpochLedger
from spark_jobs.lake.settings import Settings
from spark_jobs.operations.bootstrap.execute import compute_history
from spark_jobs.pipelines import registry
from spark_jobs.plan import logical as plan
from spark_jobs.spark.session import SessionLostError, SessionStartError, build_session, end_session, why_ended
from spark_jobs.spark.state import open_events, open_pairs, rows_in_state
from spark_jobs.spec import Definition, Pipeline

_KEEP_LOGS_S = 30 * 86_400


def run_pipelines(
    out: Console,
    err: Console,
    lake: Lake,
    definitions: Sequence[Definition],
    *,
    until_caught_up: bool,
    close: bool,
    idle_after: timedelta | None,
    stop: threading.Event,
) -> int:
    """Runs pipelines and tells how each ended.

    Returns:
        The exit code: 0, or that of the first pipeline that failed.
    """
    with session(lake, err, streams=True) as spark:
        readers = [d for d in registry().values() if isinstance(d, Pipeline)]
        driver = Driver(spark, lake, definitions, readers=readers, compute_history=compute_history)
        with Progress(out) as progress:
            driver.on_tick = progress.tick
            if until_caught_up:
                outcomes = driver.run_until_caught_up(close=close, stop=stop)
            else:
                out.print(f"Running {', '.join(d.name for d in definitions)} on {lake.uri}. Ctrl-C ends cleanly.")
                outcomes = driver.run_continuously(stop, idle_after=idle_after)
        if any(outcome.error for outcome in outcomes.values()):
            raise_if_lost(spark)
        out.print(progress_table(driver.queries, driver.outcomes, width=out.width))
        tell_set_aside(out, driver)
        for warning in driver.warnings:
            err.print(Text.assemble(("warning:", "yellow"), f" {warning}"), soft_wrap=True, highlight=False)
        return report_failures(err, outcomes)


def report_failures(err: Console, outcomes: Mapping[str, Outcome]) -> int:
    """Tells what stopped each pipeline that failed; the exit code of the first of them."""
    code = 0
    for outcome in outcomes.values():
        if outcome.error is not None:
            tell_failure(err, outcome)
            if isinstance(outcome.error, StoppedError):
                err.print(f"Spark's log: {_log_file()}", soft_wrap=True, highlight=False)
            code = code or outcome.error.exit_code
    return code


@cache
def _log_folder(shared: str, user: int) -> Path:
    """One folder for each user of the host, by number: in a container a user may have no name.

    Anybody may make a folder of that name before its owner does, or a link, and find there what is logged, or have it
    written over a file: such a one is not used.
    """
    folder = Path(shared) / f"tidemark-{user}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not stat.S_IMODE(found.st_mode) & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=shared))


def _log_file() -> Path:
    folder = _log_folder(tempfile.gettempdir(), os.getuid())
    for old in folder.glob("driver-*.log"):
        with contextlib.suppress(FileNotFoundError):  # another one was quicker
            if time.time() - old.stat().st_mtime > _KEEP_LOGS_S:
                old.unlink()
    return folder / f"driver-{os.getpid()}.log"


@contextlib.contextmanager
def session(
    lake: Lake,
    err: Console,
    *,
    streams: bool = False,
    about: Sequence[Definition] = (),
    brief: bool = False,
    here: bool = False,
) -> Iterator[SparkSession]:
    """A Spark session whose own output goes to a log file, so that a person reads only what matters.

    Args:
        lake: where.
        err: takes what went wrong.
        streams: whether it runs streams; everything else leaves the processors to them.
        about: whose rows it computes with: of their personal columns no error quotes a value.
        brief: whether it computes so little that its code is best compiled once, and fast.
        here: whether it reads files of this machine, so that a cluster is of no use.
    """
    settings = Settings().model_copy(update={"master": "local[2]"}) if here else None
    if not streams:
        step_aside()
    log_file = _log_file()
    saved = os.dup(2)
    on_interrupt = signal.getsignal(signal.SIGINT)
    with log_file.open("ab") as log:
        # The JVM inherits this process's standard error when it starts, and keeps it.
        os.dup2(log.fileno(), 2)
        try:
            spark = build_session(lake, settings=settings, brief=brief)
        except Exception as error:
            os.dup2(saved, 2)
            if isinstance(error, SessionStartError):
                for line in _last_words(log_file):
                    err.print(Text(line, style="dim"), soft_wrap=True)
            err.print(f"Spark's log: {log_file}", soft_wrap=True, highlight=False)
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            # Spark takes Ctrl-C for itself when it starts: it would end batches in the middle.
            signal.signal(signal.SIGINT, on_interrupt)
    with _libraries_log_to(log_file):
        try:
            yield spark
        except Exception as error:
            raise_if_lost(spark, error)
            if isinstance(error, PySparkException | Py4JError | duckdb.Error | pa.ArrowException):
                told = Words.about(*about).of(error)
                if told is not None:
                    names = ", ".join(f"`{each.name}`" for each in about)
                    raise StoppedError(
                        f"pipeline {names}: {told}. What was committed before is whole. Spark's log: {log_file}"
                    ) from None
            raise
        finally:
            end_session(spark)


def _last_words(log_file: Path) -> list[str]:
    """What Java said last, without its stacks."""
    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip() and not line.startswith(("\t", " "))][-4:]


@contextlib.contextmanager
def _libraries_log_to(log_file: Path) -> Iterator[None]:
    """What libraries log goes to a file, as py4j's traces of a JVM that died; Tidemark's own warnings to the person."""
    file, person = logging.FileHandler(log_file), logging.StreamHandler()
    person.setLevel(logging.WARNING)
    root, own = logging.getLogger(), logging.getLogger("tidemark")
    root.addHandler(file)
    own.addHandler(person)
    try:
        yield
    finally:
        own.removeHandler(person)
        root.removeHandler(file)
        file.close()


def raise_if_lost(spark: SparkSession, error: BaseException | None = None) -> None:
    """Says so where Spark has died; what each pipeline then says of itself is misleading.

    Args:
        spark: the session.
        error: what was seen of it.

    Raises:
        SessionLostError: if it has.
    """
    if why := why_ended(spark):
        raise SessionLostError(
            f"Spark has ended in this process ({why}), usually out of memory: of its own heap, which has "
            f"{Settings().driver_memory} (TIDEMARK_DRIVER_MEMORY), or of the host. Every batch that was committed is "
            f"whole. Spark's log: {_log_file()}. Fix that, then run the same command again."
        ) from error


def state_check(
    lake: Lake, pipeline: Pipeline, epoch: int, ledger: EpochLedger, *, err: Console | None = None
) -> tuple[bool, str]:
    """Counts what is in Spark's own state and holds it against what the ledger says is open, or in state."""
    planned = plan.build(pipeline)
    operator = planned.operator
    if operator is None or not operator.state.operators:
        return True, "state: no step of this pipeline remembers events"
    with session(lake, err or PlainConsole(stderr=True)) as spark:
        if operator.state.counts_events:
            found = open_pairs(spark, lake, pipeline)
            expected = audit.open_pairs(lake, pipeline, epoch, ledger) or 0
            return found == expected, f"state: {expected:,} still open by the ledger, {found:,} in Spark's state"
        if operator.state.packs_events:
            if not (places := operator.state.open_in):
                return True, f"state: `{command('state', pipeline.name)}` shows it"
            found = open_events(spark, lake, pipeline, places)
            expected = audit.open_pairs(lake, pipeline, epoch, ledger) or 0
            return found == expected, f"state: {expected:,} events open by the ledger, {found:,} in Spark's state"
        counts = {side.name: rows_in_state(spark, lake, pipeline, side.name) for side in planned.sides}
    shown = ", ".join(f"{name} {count:,}" if name else f"{count:,}" for name, count in counts.items())
    by_ledger = ledger.rows[-1][1]["state_rows"] if ledger.rows else 0
    # With several operators the ledger has the sum of them; here only the first is read.
    holds = sum(counts.values()) == by_ledger if len(operator.state.operators) == 1 else True
    return holds, f"state: {by_ledger:,} rows by the ledger, in Spark's state: {shown}"
