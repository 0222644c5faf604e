"""Drives an operation in this process: a session, its progress and its words, a confirmation, a report.

What is done, and whether it may be, is for `spark_jobs/operations` to say: here it is only shown and started. Spark is
imported by what starts it: a plan that is only shown waits for none of it.
"""

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import UNREADABLE, exists, file_statistics, open_table
from spark_jobs.operations import reports
from spark_jobs.operations.reports import BatchReport
from spark_jobs.operations.shape import Plan, Say
from spark_jobs.plan.logical import build
from spark_jobs.spec import Definition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.engine.driver import Driver
    from spark_jobs.operations.bootstrap.execute import Watch

_EVERY_S = 0.5
_INTERRUPTED = 130

BRIEF_BYTES = 32 * 1024**2
"""Of tables that are no larger, all is computed before code that Java compiles a second time pays for that."""

Done = TypeVar("Done")


@dataclass(frozen=True)
class Operation:
    """One operation, as the command line drives it.

    Attributes:
        out: takes what a person reads.
        err: takes progress, and what went wrong.
        lake: where.
    """

    out: Console
    err: Console
    lake: Lake

    def say(self, text: str) -> None:
        """Tells something, as it is."""
        self.out.print(text, highlight=False, markup=False, soft_wrap=True)

    def ends_here(self, plan: Plan, *, dry_run: bool, force: str | None = None) -> bool:
        """Whether nothing is to be executed, and says why.

        Args:
            plan: what would be done.
            dry_run: whether only the plan was asked for.
            force: says how to execute it all the same, where that is possible.
        """
        if dry_run:
            self.say(NOTHING_WRITTEN)
        elif plan.nothing_to_do is not None:
            self.say("Nothing to do." + (f" {force}" if force else ""))
        return dry_run or plan.nothing_to_do is not None

    def execute(self, what: str, about: Sequence[Definition], work: Callable[["SparkSession", Say], Done]) -> Done:
        """Executes something in a session, with a bar of Spark's tasks.

        Args:
            what: is done, such as `repair of hourly_sales`.
            about: whose rows it computes with.
            work: does it, and tells what it has done.
        """
        from spark_jobs.console.running import session

        brief = bytes_of(self.lake, about) <= BRIEF_BYTES
        with (
            session(self.lake, self.err, about=about, brief=brief) as spark,
            showing_tasks(spark, self.err, what),
        ):
            return work(spark, self.say)

    def confirmed(self, question: str, *, yes: bool) -> bool:
        """Whether a person agrees; without a terminal, only who has said so before does."""
        return yes or (sys.stdin.isatty() and typer.confirm(question))

    def report(self, path: Path | None, found: Sequence[BatchReport]) -> None:
        """Leaves what has changed for whoever has started this process."""
        if path is not None:
            reports.write(path, found)

    def with_streams(self, about: Definition, work: "Callable[[SparkSession, Say, Watch], Driver | None]") -> int:
        """Executes something that runs streams to their end, with their live progress.

        Args:
            about: whose rows it computes with.
            work: does it; is given what shows a driver while it runs, and gives back the driver that has run.

        Returns:
            The exit code.
        """
        from spark_jobs.console import live
        from spark_jobs.console.running import report_failures, session

        with session(self.lake, self.err, about=(about,)) as spark:
            driver = work(spark, self.say, self._watching)
        if driver is None:
            return 0
        live.tell_set_aside(self.out, driver)
        if code := report_failures(self.err, driver.outcomes):
            return code
        return 0 if about.name in driver.histories else _INTERRUPTED

    @contextmanager
    def _watching(self, driver: "Driver") -> Iterator[None]:
        from spark_jobs.console import live

        with live.Progress(self.out) as progress:
            driver.on_tick = progress.tick
            yield


def bytes_of(lake: Lake, about: Sequence[Definition]) -> float:
    """How large the tables are that some pipelines read, look up and write, by their logs; infinite: nobody can say.

    Args:
        lake: where.
        about: the pipelines.
    """
    plans = [build(each) for each in about]
    names = {source.name for plan in plans for source in plan.reads}
    names |= {ref.name for plan in plans for ref in plan.tables}
    names |= {step.table for plan in plans for step in plan.lookups}
    try:
        tables = [open_table(lake, name) for name in names if exists(lake, name)]
    except UNREADABLE:
        return math.inf
    return sum(sum(file_statistics(table)["size_bytes"].to_pylist()) for table in tables)


NOTHING_WRITTEN = "Nothing was written: --dry-run."


@contextmanager
def showing_tasks(spark: "SparkSession", err: Console, what: str) -> Iterator[None]:
    """Shows a bar with the tasks of the stage at work, for the length of the block; nothing where no terminal is.

    Args:
        spark: the session.
        err: where the bar is shown; it leaves no trace.
        what: is done.
    """
    if not err.is_terminal:
        yield
        return
    ended = threading.Event()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task(what, total=None)

        def follow() -> None:
            while not ended.wait(_EVERY_S):
                done, total = tasks_at_work(spark)
                progress.update(bar, completed=done, total=total or None)

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


def tasks_at_work(spark: "SparkSession") -> tuple[int, int]:
    """Tasks of Spark's stages at work: how many are done, and how many there are."""
    from py4j.protocol import Py4JError

    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except (Py4JError, OSError):
        return 0, 0  # the session is ending
    found = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)
