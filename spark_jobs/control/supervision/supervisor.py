"""The supervisor: keeps what runs equal to what is wanted, one driver per job.

It holds no state that matters: killed and started again, or on another host, it finds what runs and goes on.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from spark_jobs.control.desired import orders
from spark_jobs.control.supervision import pulse, status, terms
from spark_jobs.control.supervision.causes import cause_of_end
from spark_jobs.control.supervision.launchers import (
    Launcher,
    StartedTask,
    Task,
    is_driver,
    kill_group,
    last_lines,
    terminate,
)
from spark_jobs.control.supervision.lease import Lease
from spark_jobs.control.supervision.pulse import Pulse
from spark_jobs.control.supervision.reconcile import HUNG_S, JobState, decide
from spark_jobs.control.supervision.status import Status
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import first_line
from spark_jobs.lake.store.health import trouble
from spark_jobs.lake.store.records import RecordTakenError

log = logging.getLogger("tidemark.supervisor")

_LOOK_EVERY_S = 1.0
_REMOTE_S = 20.0
_FIRST_PULSE_S = 90.0
_DRAIN_S = 120.0
_LOGS_KEPT = 10
_LINES_KEPT = 12
_LINES_OF_CAUSE = 500
_LOG_BYTES = 50 * 2**20


@dataclass
class _WatchedJob:
    """What the supervisor remembers of one job between two looks."""

    launched: StartedTask | None = None
    launched_term: int = 0
    term: int = 0
    sequence: int = -1
    changed_at: float = 0.0
    beat: Pulse | None = None
    killed: tuple[int, str] = (0, "")


@dataclass
class Supervisor:
    """Watches one lake.

    Attributes:
        lake: which.
        launcher: starts the drivers.
        logs: folder of their logs.
        drive: the arguments of `tidemark` that drive a job in a term.
        say: tells a person what happens.
        clock: seconds that only grow.
        now: the time.
        host: how the host calls itself.
        active: whether it holds the lease, by its last look.
        restarts: job -> unplanned ends of its drivers.
        alive: job that is to run -> whether its driver lives.
    """

    lake: Lake
    launcher: Launcher
    logs: Path
    drive: Callable[[str, int], tuple[str, ...]]
    say: Callable[[str], None] = log.info
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    host: str = field(default_factory=terms.this_host)
    active: bool = False
    restarts: dict[str, int] = field(default_factory=dict)
    alive: dict[str, bool] = field(default_factory=dict)
    _watched: dict[str, _WatchedJob] = field(default_factory=dict)
    _troubles: dict[str, str] = field(default_factory=dict)
    _held: bool = False
    _stands_by: bool = False

    def __post_init__(self) -> None:
        self._lease = Lease(self.lake, host=self.host, pid=os.getpid(), clock=self.clock)

    def run(self, stop: threading.Event, leave: threading.Event) -> None:
        """Supervises until told to stop; then drains the drivers of this host.

        Args:
            stop: when set, drivers finish their batches and end, and then the supervisor does.
            leave: when set as well, it does not wait for them.
        """
        failed, told = 0, ""
        while not stop.wait(_LOOK_EVERY_S if failed == 0 else min(30.0, 2.0**failed)):
            try:
                if failed:
                    # No pulse could be seen meanwhile: silence counts from now.
                    for watched in self._watched.values():
                        watched.changed_at = self.clock()
                self.look()
                if failed:
                    self.say(f"the lake {self.lake.uri} can be used again")
                failed, told = 0, ""
            except Exception as error:  # noqa: BLE001 (a lake that is unreachable comes back; drivers run on meanwhile)
                failed = min(failed + 1, 5)
                why = trouble(self.lake) or f"{type(error).__name__}: {first_line(error)}"
                if why != told:
                    self.say(f"the lake {self.lake.uri} cannot be looked at ({why}); trying again")
                told = why
                self.alive.clear()  # what was seen before says nothing any more
        self._drain_all(leave)
        try:
            self._lease.release()
        except Exception as error:  # noqa: BLE001 (it runs out by itself)
            self.say(f"the lease could not be given back ({first_line(error)}); another supervisor waits until it ends")

    def look(self) -> None:
        """One look at everything: takes what steps are due."""
        was, self.active = self._held, False  # where the lake does not answer, it is not known to hold the lease
        self.active = self._held = self._lease.hold()
        if self.active and not was:
            self.say(f"active on {self.lake.uri}")
        elif not self.active and not self._stands_by:
            self.say("another supervisor is active: standing by")
        self._stands_by = not self.active
        if not self.active:
            self.alive.clear()
            return
        for job in orders.jobs(self.lake):
            try:
                self._look_at(job)
            except RecordTakenError:
                continue  # another supervisor has just become active: the next look tells
            except (OSError, ValueError) as error:
                # Of this host, such as a full disk for logs, or of this job's records; the others are looked after.
                if self._troubles.get(job) != str(error):
                    self.say(f"{job}: cannot be looked after on this host ({error}); trying again")
                self._troubles[job] = str(error)
            else:
                self._troubles.pop(job, None)

    def _look_at(self, job: str) -> None:
        order, desired = orders.records(self.lake, job).newest()
        if desired is None:
            return
        watched = self._watched.setdefault(job, _WatchedJob())
        term = terms.records(self.lake, job).newest_number()
        beat = pulse.pulse_of(self.lake, job, term) if term else None
        seen = self._seen(job, watched, term, beat, order=order, wanted=bool(desired.running))
        if seen.wanted:
            self.alive[job] = seen.alive
        else:
            self.alive.pop(job, None)
        statuses = status.records(self.lake, job)
        number, newest = statuses.newest()
        before = newest or Status(job=job, state="stopped", since=seen.now)
        action, after = decide(seen, before)
        if len(after.ends) > len(before.ends):
            self.restarts[job] = self.restarts.get(job, 0) + 1
        if action == "start":
            after = after.model_copy(update={"term": term + 1})
        if after != before:
            after = after.model_copy(update={"supervisor": self._lease.id})
            statuses.append(number + 1, after)
            self._tell(job, before, after)
        if action == "start":
            self._start(job, term + 1, watched)
        elif action == "kill":
            self._kill(job, watched, beat, seen.silent_s)
        self._rotate(job, term)

    def _seen(
        self, job: str, watched: _WatchedJob, term: int, beat: Pulse | None, *, order: int, wanted: bool
    ) -> JobState:
        now = self.clock()
        sequence = beat.sequence if beat else -1
        if (term, sequence) != (watched.term, watched.sequence):
            watched.term, watched.sequence, watched.changed_at = term, sequence, now
        watched.beat = beat
        silent_s = now - watched.changed_at
        mine = watched.launched if watched.launched_term == term else None
        # Of a process of its own it waits for the exit code: one that is ending has no command line any more.
        exit_code = mine.exit_code() if mine else None
        alive = term > 0 and (exit_code is None if mine else self._is_alive(beat, silent_s))
        here = mine is not None or beat is None or beat.host == self.host
        log_file = self._log_file(job, term)
        lines = last_lines(log_file, _LINES_OF_CAUSE) if here and not alive and term else ()
        return JobState(
            now=self.now(),
            order=order,
            wanted=wanted,
            alive=alive,
            spoke=beat is not None,
            silent_s=max(0.0, silent_s - _FIRST_PULSE_S + HUNG_S)
            if beat is None
            else max(silent_s, beat.spark_silent_s),
            term=term,
            drained=beat is not None and beat.ending == pulse.DRAINED,
            exit_code=exit_code,
            last_lines=lines[-_LINES_KEPT:],
            cause=cause_of_end(
                killed=watched.killed[1] if watched.killed[0] == term else None,
                ending=beat.ending if beat else None,
                exit_code=exit_code,
                lines=lines,
            ),
            host=beat.host if beat else self.host,
            log=str(log_file) if here else None,
            supervisor=self._lease.id,
        )

    def _is_alive(self, beat: Pulse | None, silent_s: float) -> bool:
        if beat is None:
            # Started a moment ago, by a supervisor that has died since.
            return silent_s < _FIRST_PULSE_S
        if beat.host == self.host:
            return self._is_driver(beat)
        return beat.ending is None and silent_s < _REMOTE_S

    def _start(self, job: str, term: int, watched: _WatchedJob) -> None:
        # The term first: whoever drove the job until now stops, before or after the new driver is there.
        self._take_term(job, term)
        path = self._log_file(job, term)
        task = Task(
            f"tidemark-{job}",
            self.drive(job, term),
            path,
            environment={"TIDEMARK_LOG_FILE": str(path), "TIDEMARK_HOST": self.host},
        )
        watched.launched, watched.launched_term = self.launcher.launch(task), term
        self.alive[job] = True
        self.say(f"{job}: driver of term {term} started; its log: {task.log}")
        pulse.forget(self.lake, job, before=term - _LOGS_KEPT)
        for old in sorted(path.parent.glob("*.log*"))[: -2 * _LOGS_KEPT]:
            old.unlink(missing_ok=True)

    def _kill(self, job: str, watched: _WatchedJob, beat: Pulse | None, silent_s: float) -> None:
        why = f"no sign of life for {silent_s:.0f} s, or it took too long to end"
        if beat is not None and beat.spark_silent_s > HUNG_S:
            why = f"Spark has not answered in it for {beat.spark_silent_s:.0f} s"
        watched.killed = watched.term, why
        if watched.launched is not None and watched.launched.exit_code() is None:
            self.say(f"{job}: its driver is killed: {why}")
            watched.launched.kill()
        elif beat is None:
            return
        elif beat.host != self.host:
            self.say(f"{job}: its driver on {beat.host} is asked to stop, by a newer term: {why}")
            self._take_term(job, beat.term + 1)
        elif self._is_driver(beat):
            self.say(f"{job}: its driver is killed: {why}")
            kill_group(beat.pid)

    def _take_term(self, job: str, term: int) -> None:
        mine = terms.Term(host=self.host, supervisor=self._lease.id, begun_at=self.now())
        terms.records(self.lake, job).append(term, mine)

    def _tell(self, job: str, before: Status, after: Status) -> None:
        if len(after.ends) > len(before.ends):
            cause = f" with {after.last_end.cause_in_words}" if after.last_end else ""
            self.say(f"{job}: its driver ended{cause}" + "".join(f"\n    {line}" for line in after.last_lines[-4:]))
        if after.state != before.state and after.state in ("failed", "stopped", "draining"):
            self.say(f"{job}: {_IN_WORDS[after.state]}")

    def _drain_all(self, leave: threading.Event) -> None:
        """Asks every driver of this host to finish, and kills only what has not after the time-out."""
        drivers = self._drivers_here() if self._held else {}
        for job, beat in drivers.items():
            self.say(f"{job}: draining")
            terminate(beat.pid)
        deadline = self.clock() + _DRAIN_S
        while any(self._is_driver(beat) for beat in drivers.values()):
            if leave.is_set():
                self.say("not waited for; they finish their batches and end: " + ", ".join(drivers))
                return
            if self.clock() > deadline:
                for beat in drivers.values():
                    if self._is_driver(beat):
                        kill_group(beat.pid)
                return
            time.sleep(0.1)

    def _drivers_here(self) -> Mapping[str, Pulse]:
        """By what the last look has seen: the lake may be unreachable by now."""
        found = {}
        for job, watched in self._watched.items():
            beat, mine = watched.beat, watched.launched
            if beat is not None and beat.host == self.host and self._is_driver(beat):
                found[job] = beat
            elif mine is not None and mine.exit_code() is None:
                mine.kill()  # it has not begun anything yet
        return found

    def _is_driver(self, beat: Pulse) -> bool:
        """Whether the process that a pulse names runs, and is the driver of its job and term: pulses can be forged."""
        return is_driver(beat.pid, beat.pid_born, self.drive(beat.job, beat.term))

    def _log_file(self, job: str, term: int) -> Path:
        """Where a driver of this host logs. Never what its pulse says: that could name any file of the host."""
        return self.logs / job / f"{term:06d}.log"

    def _rotate(self, job: str, term: int) -> None:
        """Cuts a long log: the driver appends to the same file, so that it need not know."""
        path = self._log_file(job, term)
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)


_IN_WORDS = {
    "failed": "its driver has ended too often; it is not started again until somebody deploys it",
    "stopped": "stopped",
    "draining": "draining: its driver finishes what it is in, and ends",
}
