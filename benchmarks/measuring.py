"""What measurements have in common: runs in turns, what a run takes of the machine, medians in a table."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from rich.table import Table as TextTable

CACHE = Path(".cache/bench")
"""Where inputs lie that are made once."""

Figures = dict[str, float]
"""Of a run: what was measured -> seconds, gigabytes or a count."""

_LOOK_EVERY_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36


class Watcher:
    """Looks a few times a second at processes while they run.

    Attributes:
        peak_gb: the most memory that they had together.
        reached_s: when something had happened; 0: it has not.

    Args:
        processes: those that run now.
        reached: whether it has happened.
        since: moment of `time.monotonic()` from which `reached_s` counts.
    """

    def __init__(
        self, processes: Callable[[], Sequence[psutil.Process]], *, reached: Callable[[], bool], since: float
    ) -> None:
        self.peak_gb = self.reached_s = 0.0
        self._processes, self._reached, self._since = processes, reached, since
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self.peak_gb = max(self.peak_gb, sum(resident(process) for process in self._processes()) / 1e9)
            if not self.reached_s and self._reached():
                self.reached_s = time.monotonic() - self._since


def family() -> list[psutil.Process]:
    """This process and all below it."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def resident(process: psutil.Process) -> int:
    """Bytes of a process. Libraries that two of them share count twice: some 50 MB of what is measured here.

    To ask for each one's share takes the system 50 ms for a JVM, which would be measured too.
    """
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def processor_seconds() -> float:
    """What this process and those below it that still run have used so far."""
    times = [process.cpu_times() for process in family()]
    return float(sum(each.user + each.system for each in times))


def run_to_its_end(command: Sequence[str], environment: Mapping[str, str], *, reached: Callable[[], bool]) -> Figures:
    """Runs a program and waits for all processes that it has started. Linux only.

    Args:
        command: of the program.
        environment: variables beside those of this process.
        reached: whether that has happened of which the time is told.

    Returns:
        `seconds`: from its start to the end of its last process. `processor`: of all its processes, also of those
        that ended on the way. `peak_gb`: the most memory of them together. `reached`: seconds.

    Raises:
        CalledProcessError: if it fails; what it said is on standard error.
    """
    # Java outlives the Python that started it by a moment: it becomes a child of this process, which can wait for it.
    if not sys.platform.startswith("linux") or ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("This measurement needs Linux: elsewhere processor time of processes that ended is not known.")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile() as said, Watcher(lambda: family()[1:], reached=reached, since=began) as watcher:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=said, stderr=subprocess.STDOUT)
        code = process.wait()
        _wait_for_all()
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        said.seek(0)
        words = said.read().decode(errors="replace")
    if code:
        print(words, file=sys.stderr)
        raise subprocess.CalledProcessError(code, command)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processor": used, "peak_gb": watcher.peak_gb, "reached": watcher.reached_s}


def _wait_for_all() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def in_turns(names: Sequence[str], repeats: int, run: Callable[[str, Path], Figures]) -> dict[str, list[Figures]]:
    """Runs each, then each again: what slows the machine down for a while slows down all.

    Args:
        names: what to run.
        repeats: how often.
        run: given a name and an empty folder, which is removed afterwards, measures one run.
    """
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, runs in found.items():
            folder = Path(tempfile.mkdtemp(prefix="tidemark-bench-"))
            try:
                runs.append(run(name, folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return found


def medians(runs: Sequence[Figures]) -> Figures:
    """Of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


@dataclass(frozen=True)
class Column:
    """One of a table.

    Attributes:
        heading: above it.
        figure: which of the runs' figures it shows.
        digits: after the point.
        ratio: whether ratios of it are shown.
    """

    heading: str
    figure: str
    digits: int = 1
    ratio: bool = True


def compared(
    title: str,
    columns: Sequence[Column],
    found: Mapping[str, Sequence[Figures]],
    ratios: Mapping[str, tuple[str, str]],
) -> TextTable:
    """Medians of each, ratios of medians, and the wall time of each run.

    Args:
        title: above the table.
        columns: what to show.
        found: name -> its runs.
        ratios: label of a row -> the two names, that which is divided first.
    """
    table = TextTable(title=title, box=None)
    for heading in ("", *(column.heading for column in columns), "wall s of each run"):
        table.add_column(heading, justify="right")
    of = {name: medians(runs) for name, runs in found.items()}
    for name, runs in found.items():
        shown = (f"{of[name][column.figure]:.{column.digits}f}" for column in columns)
        table.add_row(name, *shown, " ".join(f"{run['seconds']:.1f}" for run in runs))
    for label, (above, below) in ratios.items():
        shown = (
            f"{of[above][column.figure] / of[below][column.figure]:.2f}" if column.ratio else "" for column in columns
        )
        table.add_row(label, *shown)
    return table
