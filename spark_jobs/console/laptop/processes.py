"""Processes that outlive the command which starts them, found again by what was written down about them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from spark_jobs.control.supervision.launchers import birth, is_running, last_lines, seconds_after


@dataclass(frozen=True)
class Background:
    """A process in a session of its own, and all that it starts there.

    Attributes:
        name: for people and files.
        home: folder for the file that remembers the process.
        log: file that takes its output.
    """

    name: str
    home: Path
    log: Path

    @property
    def _record(self) -> Path:
        return self.home / f"{self.name}.json"

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], private: bool = False, **facts: object
    ) -> None:
        """Starts it and returns at once.

        Args:
            command: program and arguments.
            environment: the whole of it.
            private: its log and the files that it makes are for nobody else to read.
            facts: what to remember beside the process.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab", opener=_private if private else None) as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                umask=0o077 if private else -1,
            )
        born = birth(psutil.Process(process.pid))
        self._record.write_text(json.dumps({"pid": process.pid, "born": born, **facts}))

    def facts(self) -> dict[str, object]:
        """What was remembered when it was started; empty where it never was, or has been stopped."""
        try:
            found: dict[str, object] = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def runs(self) -> bool:
        """Whether the process that was started runs; another one of the same number does not count."""
        pid, born = self._identity()
        return pid > 0 and is_running(pid, born)

    def stop(self, *, within_s: float) -> str:
        """Asks it to end, and what it leaves behind; kills what has not ended in time; says what happened.

        Args:
            within_s: how long it may take.
        """
        pid, _ = self._identity()
        members = self._members()
        if not members:
            self._record.unlink(missing_ok=True)
            return "was not running"
        began = time.monotonic()
        asked: set[psutil.Process] = set()
        while (left := self._members()) and time.monotonic() - began < within_s:
            # It knows in which order what it has started has to end.
            for member in [each for each in left if each.pid == pid] or left:
                if member not in asked:
                    asked.add(member)
                    _signal(member, signal.SIGTERM)
            psutil.wait_procs(left, timeout=0.2)
        killed = sorted({_program(member) for member in left})
        for member in left:
            _signal(member, signal.SIGKILL)
        psutil.wait_procs(left, timeout=10)
        self._record.unlink(missing_ok=True)
        took = f"{time.monotonic() - began:.0f} s"
        if not left:
            return f"ended in {took}"
        return f"{len(left)} of {len(members)} processes killed after {took}: {', '.join(killed)}"

    def said_last(self, count: int = 12) -> str:
        """The end of its log."""
        return "\n".join(f"    {line}" for line in last_lines(self.log, count))

    def _identity(self) -> tuple[int, str]:
        facts = self.facts()
        pid, born = facts.get("pid"), facts.get("born")
        return (pid, born) if isinstance(pid, int) and isinstance(born, str) else (-1, "")

    def _members(self) -> list[psutil.Process]:
        """The processes of its session. While one lives, the system gives its number to no other session."""
        pid, born = self._identity()
        leader_is_other = pid > 0 and psutil.pid_exists(pid) and not self.runs() and not _is_zombie(pid)
        if pid <= 0 or leader_is_other:
            return []
        return [each for each in psutil.process_iter() if _belongs(each, session=pid, born=born)]


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read, also where it was there before."""
    file = os.open(path, flags, mode=0o600)
    os.fchmod(file, 0o600)
    return file


def _belongs(process: psutil.Process, *, session: int, born: str) -> bool:
    try:
        if os.getsid(process.pid) != session or process.status() == psutil.STATUS_ZOMBIE:
            return False
        after_s = seconds_after(born, process)
        return after_s is not None and after_s > -2.0
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _program(process: psutil.Process) -> str:
    """What a process runs, without the interpreter and its path."""
    try:
        words = [word.rpartition("/")[2] for word in " ".join(process.cmdline()).split()]
    except psutil.Error:
        return "one that has just ended"
    return " ".join(words[1:4] if words and words[0].startswith("python") else words[:3])
