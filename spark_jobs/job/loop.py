"""The driver of a job: follows the orders in the lake until none of its pipelines is to run, or another takes over."""

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from spark_jobs.control.desired import orders
from spark_jobs.control.supervision import terms
from spark_jobs.control.supervision.pulse import Figures, PipelinePulse, State
from spark_jobs.control.supervision.terms import FencedError
from spark_jobs.engine.driver import BESIDE, Driver
from spark_jobs.engine.failures import StoppedError
from spark_jobs.job.figures import Gauges
from spark_jobs.job.steps import Slot, after_failure, steps
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.halts import HaltedError
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.errors import LakeUnavailableError, TidemarkError, first_line
from spark_jobs.lake.store.health import refuse_vanished
from spark_jobs.operations.bootstrap.execute import compute_history
from spark_jobs.operations.savepoint.schedule import SavepointSchedule
from spark_jobs.spark.session import SessionLostError, refuse_ended, why_ended
from spark_jobs.spec import DefinitionError, Pipeline
from spark_jobs.spec.chains import in_order

log = logging.getLogger("tidemark.driver")

_LOOK_EVERY_S = 0.5
_ORDERS_EVERY_S = 1.0
_TERM_EVERY_S = 1.0
_REMEMBERED = timedelta(hours=1)
# A source or a Spark that does not answer leaves figures as they were: a rate is not told for longer than this.
_MEASURED_S = 30.0


@dataclass
class _Running:
    """What the driver remembers of one pipeline."""

    generation: int
    state: State
    since: datetime
    progressed_at: datetime | None = None
    error: str | None = None
    error_kind: str | None = None
    failures: list[datetime] = field(default_factory=list)
    next_try_at: datetime | None = None
    batches: int = 0
    gauges: Gauges | None = None
    unmeasured: bool = False
    figures: Figures = field(default_factory=Figures)
    measured_at: float = 0.0

    def become(self, state: State) -> None:
        self.state, self.since = state, datetime.now(UTC)

    @property
    def told_figures(self) -> Figures:
        """What was measured last; without rates where that is long ago."""
        if time.monotonic() - self.measured_at <= _MEASURED_S:
            return self.figures
        return self.figures.model_copy(update={"input_rows_per_s": None, "processed_rows_per_s": None})


class Fence:
    """Whether this driver's term is still the newest; asked at each batch, at most once a second.

    Args:
        lake: where.
        job: that is driven.
        term: of this driver.
    """

    def __init__(self, lake: Lake, job: str, term: int) -> None:
        self._lake = lake
        self._records = terms.records(lake, job)
        self._job = job
        self._term = term
        self._asked_at = 0.0

    def check(self, point: str = "", batch_id: int = 0) -> None:
        """Goes on, or stops a driver that has been taken over.

        Raises:
            FencedError: if a newer term has begun.
            LakeUnavailableError: if the lake is gone.
        """
        # Beside batches writes are rare, and nothing of a batch would hold them back.
        if point == BESIDE or time.monotonic() - self._asked_at >= _TERM_EVERY_S:
            self.check_now()

    def check_now(self) -> None:
        """As `check`, however recently it was asked.

        Raises:
            FencedError: if a newer term has begun.
            LakeUnavailableError: if the lake's folder is gone, or is an empty one in its place: a disk that is not
                mounted leaves its mount point.
        """
        refuse_vanished(self._lake)
        newest = self._records.newest_number()
        if newest < self._term:
            raise LakeUnavailableError(
                f"lake {self._lake.uri}: the orders of job {self._job} are not there any more. Nothing was written. Is "
                "its disk mounted? Bring the lake back: streams go on by themselves."
            )
        if newest > self._term:
            raise FencedError(
                f"job {self._job}: a driver of term {newest} has taken over; this one, of term {self._term}, ends. "
                "Nothing is written twice."
            )
        self._asked_at = time.monotonic()


class JobDriver:
    """Runs the pipelines of a job as they are ordered.

    Args:
        spark: the session.
        lake: where.
        job: name of the job.
        term: of this driver.
        readers: every pipeline that is known, for heartbeats.
        fence: asked at each point of each batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        job: str,
        term: int,
        *,
        readers: tuple[Pipeline, ...] = (),
        fence: Fence | None = None,
    ) -> None:
        self._lake = lake
        self._orders = orders.records(lake, job)
        self._fence = fence or Fence(lake, job, term)
        self._spark = spark
        self._driver = Driver(
            spark, lake, (), readers=readers, failpoint=self._fence.check, compute_history=compute_history
        )
        self._running: dict[str, _Running] = {}
        self._wanted: Mapping[str, orders.Order] = {}
        self._decided: frozenset[str] = frozenset()
        self._looked_at: float | None = None
        self._lock = threading.Lock()
        self._over: list[Gauges] = []
        self._unreachable = False
        self._savepoints = SavepointSchedule(lake)
        self.alive_at = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Follows orders until told to stop, or until nothing is to run.

        Raises:
            FencedError: if another driver has taken over; batches that ran have ended or can do no harm.
            SessionLostError: if Spark has ended in this process.
        """
        try:
            self._follow(stop)
        except SessionLostError:
            raise
        except Exception as error:
            refuse_ended(self._spark, error)
            raise

    def _follow(self, stop: threading.Event) -> None:
        while True:
            self.alive_at = time.monotonic()
            # Without Spark each pipeline would be tried again in vain, in a driver that gives signs of life.
            refuse_ended(self._spark)
            self._look_at_the_lake()
            due = steps(self._wanted, self._slots(), now=datetime.now(UTC), ending=stop.is_set())
            for step in due:
                if not (self._unreachable and step.action == "start"):
                    self._take(step.action, step.pipeline)
            self._driver.end_drained()
            self._driver.look()
            self._note_ended()
            self._note_progress()
            self._refuse_fenced()
            wanted = self._looked_at is None or any(order.state == "running" for order in self._wanted.values())
            nothing_wanted = stop.is_set() or not wanted
            if nothing_wanted and not any(
                r.state in ("starting", "running", "stopping") for r in self._running.values()
            ):
                return
            stop.wait(_LOOK_EVERY_S) if not stop.is_set() else time.sleep(_LOOK_EVERY_S / 4)

    def pipelines(self) -> dict[str, PipelinePulse]:
        """The state of each pipeline, with the figures that were measured last; asks nobody. Beside `run`."""
        return {
            name: PipelinePulse(
                generation=each.generation,
                state=each.state,
                since=each.since,
                progressed_at=each.progressed_at,
                error=each.error,
                error_kind=each.error_kind,
                failures=tuple(each.failures),
                next_try_at=each.next_try_at,
                figures=each.told_figures,
            )
            for name, each in self._known().items()
        }

    def ask_spark(self) -> None:
        """Asks Spark a trifle, and returns when it has answered, whatever that is. Beside `run`."""
        with contextlib.suppress(Exception):
            why_ended(self._spark)

    def measure(self) -> None:
        """Measures each pipeline: asks sources and the lake, for as long as they need to answer.

        Called beside `run`, always from the same thread.
        """
        # Closed here: while a source is asked through it, nobody else may.
        while self._over:
            with contextlib.suppress(Exception):
                self._over.pop().close()
        for name, each in self._known().items():
            gauges = each.gauges
            if gauges is not None and each.state in ("running", "stopping"):
                try:
                    each.figures, each.measured_at = gauges.read(), time.monotonic()
                except Exception as error:  # noqa: BLE001 (what was known stays; the stream does not need its figures)
                    # A query that ends at this moment answers no more.
                    if each.gauges is gauges and each.state == "running" and not each.unmeasured:
                        log.warning("%s: its figures cannot be measured: %s", name, first_line(error))
                        each.unmeasured = True
            if each.state == "running":
                self._savepoints.look(self._driver.queries[name].definition)

    def _known(self) -> dict[str, _Running]:
        with self._lock:
            return dict(self._running)

    def _look_at_the_lake(self) -> None:
        """Whether this driver may go on, and what is wanted; while the lake is unreachable, what was wanted last."""
        try:
            self._fence.check()
            self._read_orders()
        except FencedError:
            raise
        except Exception:
            # The streams notice by themselves, and are tried again until the lake is back.
            if not self._unreachable:
                log.warning(
                    "the lake %s cannot be looked at; what was ordered last stands", self._lake.uri, exc_info=True
                )
            self._unreachable = True
        else:
            self._unreachable = False

    def _read_orders(self) -> None:
        if self._looked_at is None or time.monotonic() - self._looked_at >= _ORDERS_EVERY_S:
            desired = self._orders.newest()[1]
            self._wanted = desired.pipelines if desired else {}
            halted = [name for name, each in self._running.items() if each.state == "halted"]
            self._decided = frozenset(name for name in halted if halts.standing(self._lake, name) is None)
            self._looked_at = time.monotonic()

    def _slots(self) -> dict[str, Slot]:
        return {
            name: Slot(each.generation, each.state, each.next_try_at, decided=name in self._decided)
            for name, each in self._running.items()
        }

    def _take(self, action: str, name: str) -> None:
        match action:
            case "start":
                self._start(name, self._wanted[name])
            case "stop":
                log.info("%s: draining", name)
                self._running[name].become("stopping")
                self._driver.queries[name].drain()
            case "forget":
                self._running[name].become("stopped")

    def _start(self, name: str, order: orders.Order) -> None:
        before = self._running.get(name)
        same = before is not None and before.generation == order.generation
        now = datetime.now(UTC)
        each = replace(before) if before and same else _Running(order.generation, "starting", now)
        each.become("starting")
        each.next_try_at, each.batches, each.gauges, each.unmeasured = None, 0, None, False
        with self._lock:
            self._running[name] = each
        log.info("%s: starts (generation %d)", name, order.generation)
        try:
            definition = order.parsed()
        except DefinitionError as error:
            self._failed(name, error)
            return
        others = [d for d in self._driver.definitions if d.name != name]
        self._driver.definitions = in_order((*others, definition))
        self._driver.start(definition, until_caught_up=False)
        if name not in self._driver.outcomes:
            each.gauges = Gauges(self._lake, self._driver.queries[name])
            each.become("running")

    def _note_ended(self) -> None:
        for name, each in self._running.items():
            outcome = self._driver.outcomes.get(name)
            if outcome is None or each.state in ("stopped", "failed", "retrying", "halted"):
                continue
            if each.gauges is not None:
                self._over.append(each.gauges)
                each.gauges = None
            if outcome.error is None:
                log.info("%s: stopped", name)
                each.become("stopped")
            else:
                self._failed(name, outcome.error)

    def _failed(self, name: str, error: TidemarkError) -> None:
        each, now = self._running[name], datetime.now(UTC)
        error = self._lost_lake() or error
        if isinstance(error, HaltedError):
            # No failure that counts: it waits for a person.
            self._decided -= {name}
            each.error, each.error_kind = error.without_values, type(error).__name__
            each.become("halted")
            log.error("%s: halted: %s", name, error)
            return
        each.failures = [*(at for at in each.failures if now - at < _REMEMBERED), now]
        each.error, each.error_kind = error.without_values, type(error).__name__
        # Of the errors, only the unknown ones are judged by that; a lake that is unreachable is not asked.
        unknown = isinstance(error, StoppedError)
        progressed = each.progressed_at is not None or (unknown and has_committed(self._lake, name))
        again = after_failure(error, each.failures, now=now, progressed=progressed)
        each.next_try_at = again
        each.become("retrying" if again else "failed")
        told = f"tries again at {again:%H:%M:%S}" if again else "is not started again until it is deployed again"
        log.error("%s: failed and %s: %s", name, told, error)

    def _lost_lake(self) -> LakeUnavailableError | None:
        """What is behind other errors, such as a table that does not exist: the whole lake is gone."""
        try:
            self._fence.check_now()
        except LakeUnavailableError as error:
            return error
        except Exception:  # noqa: BLE001 (what stopped the pipeline tells more)
            return None
        return None

    def _note_progress(self) -> None:
        for name, each in self._running.items():
            if each.state != "running":
                continue
            query = self._driver.queries[name]
            if query.total_batches > each.batches or query.waits:
                each.batches, each.progressed_at = query.total_batches, datetime.now(UTC)

    def _refuse_fenced(self) -> None:
        """The first pipeline that met a newer term ends the driver: no other may go on."""
        for name, each in self._running.items():
            outcome = self._driver.outcomes.get(name)
            if outcome is not None and isinstance(outcome.error, FencedError) and each.state != "stopped":
                raise outcome.error


def has_committed(lake: Lake, pipeline: str) -> bool:
    """Whether a pipeline has finished a batch of its current epoch, under whichever driver: Spark's log of commits.

    Not from the ledger: beside heartbeats its newest row may stand hundreds of commits back.
    """
    try:
        epoch = current_epoch(lake, pipeline)
        return epoch is not None and newest_batch(lake, epoch.folder, "commits") is not None
    except Exception:
        log.warning(
            "%s: whether it has ever finished a batch is not known, and taken for granted", pipeline, exc_info=True
        )
        return True
