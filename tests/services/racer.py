"""Processes that write to one store at once: the Python end of ``tests/java/…/StorageRacer``."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from infra.setup_jars import Layout, compile_java, find_java, pyspark_jars
from tests.support.process import REPOSITORY

_HEAD_START_MS = 700


class Racer:
    """One Java process that obeys one command at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def send(self, *words: str | int) -> None:
        """Start a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[str]:
        """Wait for the command's end and return its lines."""
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            if line == "done\n":
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the racer died: {self._log.read_text()[-3000:]}")

    def ask(self, *words: str | int) -> list[str]:
        """Run a command and return its lines."""
        self.send(*words)
        return self.answer()


@contextmanager
def start_racers(count: int, root: Path, settings: Mapping[str, str]) -> Iterator[list[Racer]]:
    """Run racers for the length of a ``with`` block.

    Args:
        count: How many processes.
        root: Folder for the compiled class and the logs.
        settings: Hadoop settings of all of them.
    """
    layout = Layout(REPOSITORY)
    java, spark = find_java(), pyspark_jars()
    classes = root / "classes"
    classes.mkdir()
    compile_java(
        sorted((REPOSITORY / "tests/java").rglob("*.java")),
        classes,
        class_path=[*spark.glob("*.jar"), *layout.runtime.folder.glob("*.jar")],
        java=java,
        compiler=next(layout.tools.folder.glob("ecj-*.jar")),
    )
    class_path = os.pathsep.join([str(classes), f"{layout.runtime.folder}/*", f"{spark}/*"])
    quick = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [str(java), *quick, "-cp", class_path, "io.tidemark.storage.StorageRacer"]
    with ExitStack() as stack:
        racers: list[Racer] = []
        for number in range(count):
            log = root / f"racer-{number}.log"
            process = subprocess.Popen(
                [*command, *(f"{key}={value}" for key, value in settings.items())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("w")),
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            racers.append(Racer(process, log))
        yield racers


def race_commits(racers: list[Racer], store: str, log: str, *, writers: int, commits: int) -> dict[int, list[str]]:
    """Let all racers append to one log; return for each version what was acknowledged as written there."""
    start_ms = int(time.time() * 1000) + _HEAD_START_MS
    for number, racer in enumerate(racers):
        racer.send("commits", store, log, f"process{number}writer", writers, commits, start_ms)
    acknowledged: dict[int, list[str]] = {}
    for answer in [racer.answer() for racer in racers]:
        for line in answer:
            verdict, version, content = line.split()
            assert verdict == "won", line
            acknowledged.setdefault(int(version), []).append(content)
    return acknowledged


def race_rounds(racers: list[Racer], manager: str, folder: str, *, rounds: int, every_ms: int) -> dict[int, list[str]]:
    """Let all racers write entry 0, 1, … at the same instants; return for each entry who was told it won."""
    start_ms = int(time.time() * 1000) + _HEAD_START_MS
    for number, racer in enumerate(racers):
        racer.send("rounds", manager, folder, f"driver{number}", rounds, start_ms, every_ms)
    winners: dict[int, list[str]] = {entry: [] for entry in range(rounds)}
    for number, answer in enumerate([racer.answer() for racer in racers]):
        for line in answer:
            entry, _, verdict = line.partition(" ")
            assert verdict in ("won", "lost"), line
            if verdict == "won":
                winners[int(entry)].append(f"driver{number}")
    return winners
