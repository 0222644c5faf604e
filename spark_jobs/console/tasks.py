"""How far the tasks of a command are in Spark, on the terminal, while it runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_EVERY_S = 0.5


@contextmanager
def showing_tasks(spark: SparkSession, err: Console, what: str) -> Iterator[None]:
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


def tasks_at_work(spark: SparkSession) -> tuple[int, int]:
    """Tasks of Spark's stages at work: how many are done, and how many there are."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Py4JError:
        return 0, 0  # the session is ending
    found = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)
