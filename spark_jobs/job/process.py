"""A driver as a process: its session, its pulse, its metrics, and how it ends."""

import contextlib
import logging
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil

from spark_jobs.control.supervision import pulse, terms
from spark_jobs.control.supervision.launchers import birth
from spark_jobs.control.supervision.pulse import DRAINED, PULSE_EVERY_S, PipelinePulse, Pulse
from spark_jobs.control.supervision.terms import FencedError
from spark_jobs.job.loop import Fence, JobDriver
from spark_jobs.job.prometheus import PulseCollector, serve
from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables import metrics
from spark_jobs.spark.session import build_session, end_session
from spark_jobs.spec import Pipeline

log = logging.getLogger("tidemark.driver")

_METRICS_EVERY_S = 60.0
# A main loop that has not come round for so long, or not begun, hangs, whatever its other threads do.
_HANGS_AFTER_S = 300.0


class Heart(threading.Thread):
    """Gives a sign of life every two seconds, with the newest figures.

    These are measured in a thread of their own: a source or a store that does not answer makes figures old, and does
    not make a driver look dead. So is Spark asked for a sign of life of its own: the threads of
    Python live on where its JVM hangs.

    Args:
        lake: where.
        job: that is driven.
        term: of this driver.
        log_file: of this driver; None where it has none of its own.
        fence: whether this is still the lake that ordered it: nothing is written into an empty folder in its place.
    """

    def __init__(self, lake: Lake, job: str, term: int, log_file: str | None, fence: Fence) -> None:
        super().__init__(name="pulse", daemon=True)
        self._lake = lake
        self._fence = fence
        self._ended = threading.Event()
        self._measuring = threading.Thread(target=self._measure, name="figures", daemon=True)
        self._asking = threading.Thread(target=self._ask, name="spark", daemon=True)
        self._answered_at = time.monotonic()
        self._unreachable = False
        self.driver: JobDriver | None = None
        self.newest = Pulse(
            job=job,
            term=term,
            host=terms.this_host(),
            pid=os.getpid(),
            pid_born=birth(psutil.Process()),
            started_at=datetime.now(UTC),
            at=datetime.now(UTC),
            sequence=0,
            log=log_file,
        )

    def run(self) -> None:
        """Writes the driver's sign of life until `end` is called."""
        self._measuring.start()
        self._asking.start()
        began = time.monotonic()
        while True:
            came_round = self.driver.alive_at if self.driver is not None else began
            if time.monotonic() - came_round < _HANGS_AFTER_S:
                self._beat(None)
            if self._ended.wait(PULSE_EVERY_S):
                return

    def end(self, why: str) -> None:
        """The last sign of life: says why there is none after it."""
        self._ended.set()
        self.join(timeout=10)
        # What is being measured is told where it comes at once; it is not waited for where a source is slow.
        self._measuring.join(timeout=PULSE_EVERY_S)
        self._beat(why)

    def serve(self, port: int | None) -> None:
        """Says where metrics are."""
        self.newest = self.newest.model_copy(update={"metrics_port": port})

    def _measure(self) -> None:
        while True:
            if self.driver is not None:
                self.driver.measure()
            if self._ended.wait(PULSE_EVERY_S):
                return

    def _ask(self) -> None:
        while not self._ended.wait(PULSE_EVERY_S):
            if self.driver is not None:
                self.driver.ask_spark()
            self._answered_at = time.monotonic()

    def _beat(self, ending: str | None) -> None:
        changes: dict[str, Any] = {
            "at": datetime.now(UTC),
            "sequence": self.newest.sequence + 1,
            "spark_silent_s": round(time.monotonic() - self._answered_at, 1),
            "ending": ending,
        }
        if self.driver is not None:
            changes["pipelines"] = self.driver.pipelines()
        self.newest = self.newest.model_copy(update=changes)
        try:
            # One that has been taken over still says how it ends.
            with contextlib.suppress(FencedError):
                self._fence.check_now()
            pulse.beat(self._lake, self.newest)
        except Exception:
            # The lake is unreachable; the streams notice by themselves. Told once, not every two seconds.
            if not self._unreachable:
                log.warning("no sign of life can be written to %s", self._lake.uri, exc_info=True)
            self._unreachable = True
        else:
            self._unreachable = False


class Recorder(threading.Thread):
    """Appends a row for each pipeline to `ops/metrics` every minute."""

    def __init__(self, lake: Lake, heart: Heart, fence: Fence) -> None:
        super().__init__(name="metrics", daemon=True)
        self._lake = lake
        self._fence = fence
        self._heart = heart
        self._ended = threading.Event()

    def run(self) -> None:
        """Records the figures of each pipeline until `end` is called."""
        while not self._ended.wait(_METRICS_EVERY_S):
            rows = [_row(self._heart.newest, name, seen) for name, seen in self._heart.newest.pipelines.items()]
            try:
                if rows:
                    self._fence.check_now()
                    metrics.publish(self._lake, rows)
            except Exception:
                log.warning("a minute's metrics could not be written", exc_info=True)

    def end(self) -> None:
        """Lets it finish what it writes."""
        self._ended.set()
        self.join(timeout=10)


def drive(
    lake: Lake,
    job: str,
    term: int,
    *,
    stop: threading.Event,
    readers: tuple[Pipeline, ...] = (),
    log_file: str | None = None,
) -> None:
    """Drives a job until told to stop, until nothing of it is to run, or until another driver takes over.

    Args:
        lake: where.
        job: its name.
        term: of this driver, taken by the supervisor that starts it.
        stop: when set, each pipeline finishes its batch and the driver ends.
        readers: every pipeline that is known, for heartbeats.
        log_file: where its output goes.

    Raises:
        FencedError: if another driver has taken over.
        LakeUnavailableError: if the lake cannot be written.
    """
    settings = Settings()
    fence = Fence(lake, job, term)
    fence.check()
    heart = Heart(lake, job, term, log_file, fence)
    heart.start()
    if settings.metrics_port:
        collector = PulseCollector(lambda: heart.newest)
        heart.serve(serve(collector, first_port=settings.metrics_port + 1, address=settings.metrics_address))
    recorder = Recorder(lake, heart, fence)
    recorder.start()
    began = time.monotonic()
    try:
        spark = build_session(lake, app_name=f"tidemark-{job}", settings=settings)
        log.info("%s: driver of term %d, Spark started in %.1f s", job, term, time.monotonic() - began)
        heart.driver = JobDriver(spark, lake, job, term, readers=readers, fence=fence)
        heart.driver.run(stop)
    except BaseException as error:
        heart.end(f"{type(error).__name__}: {error}")
        raise
    recorder.end()
    heart.end(DRAINED)
    end_session(spark)


def _row(beat: Pulse, name: str, seen: PipelinePulse) -> dict[str, Any]:
    figures = seen.figures
    watermark = figures.watermark_ms
    same = figures.model_dump(exclude={"phases_ms", "backpressure_since", "watermark_ms"})
    phases = figures.phases_ms
    return {
        **{key: value for key, value in same.items() if key in metrics.SCHEMA.names},
        "measured_at": beat.at,
        "job": beat.job,
        "pipeline": name,
        "state": seen.state,
        "watermark": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=watermark) if watermark else None,
        "plan_ms": phases.get("queryPlanning"),
        "write_ms": phases.get("addBatch"),
        "log_ms": (phases.get("walCommit") or 0) + (phases.get("commitOffsets") or 0) if phases else None,
        "failures": len(seen.failures),
    }
