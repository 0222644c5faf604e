"""How a driver becomes a process: on this machine with Spark in it, or as the client of a standalone cluster.

Streams and finite batch jobs are launched in the same way: both are `tidemark …` commands.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

import spark_jobs

_LOOK_S = 0.2


@dataclass(frozen=True)
class Task:
    """A command of Tidemark's that is to run as a process of its own.

    Attributes:
        name: for messages and Spark's own pages.
        arguments: of `tidemark`.
        log: file that takes its output; its folder is made.
        environment: what it has beside this process's own.
    """

    name: str
    arguments: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class Launcher(Protocol):
    """Starts tasks; they outlive whoever started them."""

    def launch(self, task: Task) -> "StartedTask":
        """Starts a task and returns at once."""
        ...


@dataclass(frozen=True)
class StartedTask:
    """A task that was started by this process.

    Attributes:
        process: the task's own.
        log: its output.
        log_start: where its output begins in there; what is before that is of an earlier one.
    """

    process: subprocess.Popen[bytes]
    log: Path
    log_start: int = 0

    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self.process.poll()

    def wait(self) -> int:
        """Waits for its end and gives the exit code."""
        return self.process.wait()

    def lines(self) -> Iterator[str]:
        """The lines of its output as they come, until it has ended."""
        rest = b""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            while True:
                ended = self.exit_code() is not None  # asked first: whatever it has written is then there
                *whole, rest = (rest + log.read()).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
                if ended:
                    break
                time.sleep(_LOOK_S)
        if rest:
            yield rest.decode(errors="replace")

    def kill(self) -> None:
        """Ends it at once, with all that it started."""
        kill_tree(self.process.pid)
        self.process.wait()


class LocalProcess:
    """Spark inside the task's own process (`local[*]`, or what TIDEMARK_MASTER says).

    Args:
        program: what takes the arguments of `tidemark`.
    """

    def __init__(self, program: Sequence[str] = (sys.executable, "-m", "spark_jobs")) -> None:
        self._program = tuple(program)

    def launch(self, task: Task) -> StartedTask:
        """Starts a task and returns at once."""
        return _start([*self._program, *task.arguments], task)


class SparkSubmit:
    """`spark-submit` in client mode against a standalone cluster: the task's process is the driver.

    Args:
        master: such as `spark://host:7077`.
        settings: of Spark, jars and driver's memory among them; they stand on its command line.
        secrets: variables of its environment, which nobody else on the host can read.
    """

    def __init__(self, master: str, settings: Mapping[str, str], secrets: Mapping[str, str] | None = None) -> None:
        self._master = master
        self._settings = dict(settings)
        self._secrets = dict(secrets or {})

    def launch(self, task: Task) -> StartedTask:
        """Starts a task and returns at once."""
        program = Path(spark_jobs.__file__).with_name("__main__.py")
        submit = Path(sys.executable).with_name("spark-submit")
        options = ["--master", self._master, "--deploy-mode", "client", "--name", task.name]
        for key, value in sorted(self._settings.items()):
            options += ["--conf", f"{key}={value}"]
        environment = {"TIDEMARK_MASTER": self._master, "PYSPARK_PYTHON": sys.executable, **self._secrets}
        return _start([str(submit), *options, str(program), *task.arguments], task, environment)


def _start(command: Sequence[str], task: Task, environment: Mapping[str, str] | None = None) -> StartedTask:
    task.log.parent.mkdir(parents=True, exist_ok=True)
    # Appending, so that the file can be cut by whoever rotates it.
    with task.log.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {}), **task.environment},
            # Its own session: what signals the starter's process group does not reach it.
            start_new_session=True,
        )
    return StartedTask(process, task.log, log_start)


def birth(process: psutil.Process) -> str:
    """Tells a process from others of its number: the start of the machine, and the seconds from there to its own.

    A step of the clock changes neither.
    """
    return f"{_start_of_machine()}/{_began_s(process):.2f}"


def seconds_after(born: str, process: psutil.Process) -> float | None:
    """How long after the one that was born then a process began; None where the machine was started in between."""
    start, _, seconds = born.rpartition("/")
    return _began_s(process) - float(seconds) if start == _start_of_machine() and seconds else None


def is_running(pid: int, born: str) -> bool:
    """Whether a process runs: the one that was born then (see `birth`), not another one of the same number."""
    try:
        process = psutil.Process(pid)
        apart_s = seconds_after(born, process)
        return apart_s is not None and abs(apart_s) < 2.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_driver(pid: int, born: str, arguments: Sequence[str]) -> bool:
    """Whether a process runs, and is the driver that these arguments of `tidemark` start.

    A process that a lake names is signalled only then: whoever writes to the lake could name any other.

    Args:
        pid: its number.
        born: when it began, see `birth`.
        arguments: of the driver, see `driver_arguments`; none match nothing.
    """
    wanted, size = list(arguments), len(arguments)
    if not wanted or not is_running(pid, born):
        return False
    try:
        command = psutil.Process(pid).cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(command[start : start + size] == wanted for start in range(len(command) - size + 1))


def driver_arguments(job: str, term: int, lake: str) -> tuple[str, ...]:
    """The arguments of `tidemark` that drive a job in a term; by them its process is known again."""
    return ("drive", job, "--term", str(term), "--lake", lake)


def _began_s(process: psutil.Process) -> float:
    return float(process.create_time() - psutil.boot_time())


def _start_of_machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # not Linux: there the seconds have to do


def kill_group(pid: int) -> None:
    """SIGKILL to a process and all that share its group: a driver's Python and its JVM."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgid(pid), signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all that it started, also what has a session of its own; waits for nothing."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    for each in (pid, *(child.pid for child in children)):
        kill_group(each)


def terminate(pid: int) -> None:
    """Asks a driver to finish its batches and exit."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)


def last_lines(log: Path, count: int = 12) -> tuple[str, ...]:
    """What a task said last; empty where there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    # What is indented is a frame of a stack trace, of Python or Java, and tells an operator nothing.
    return tuple(line for line in lines if line.strip() and not line[0].isspace())[-count:]
