"""A driver: one Spark session that runs several pipelines, each on its own checkpoint, in its own pool."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jobs.engine import heartbeats
from spark_jobs.engine.content import condition_of
from spark_jobs.engine.failures import StoppedError, Words, explained, root_cause
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.engine.query import Failpoint, PlanOutdatedError, unobserved
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import note_bootstrapped
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import latest_version
from spark_jobs.lake.errors import (
    BootstrapUnfinishedError,
    ConcurrentDriverError,
    CutNotReachedError,
    TidemarkError,
)
from spark_jobs.lake.tables import watermarks
from spark_jobs.lake.tables.opening import exists
from spark_jobs.spark.growing import Growth
from spark_jobs.spark.session import refuse_ended
from spark_jobs.spark.throwables import thrown
from spark_jobs.spec import Definition, Ingest, Pipeline
from spark_jobs.spec.chains import in_order, links
from spark_jobs.spec.durations import duration_ms

log = logging.getLogger("tidemark")

AnyQuery = IngestQuery | PipelineQuery

BESIDE = "beside"
"""The point before something is written that belongs to no batch: a published watermark, a heartbeat."""

_PUBLISH_EVERY_S = 30.0
_POLL_S = 0.2
_AGAIN_S = 5.0


@dataclass
class Outcome:
    """How a pipeline ended.

    Attributes:
        name: of the pipeline.
        error: what stopped it; None where it ended as asked.
    """

    name: str
    error: TidemarkError | None = None


@dataclass
class Driver:
    """Runs pipelines in one Spark session; one that fails neither stops nor restarts the others.

    Attributes:
        spark: the session.
        lake: where everything lies.
        definitions: what to run.
        readers: every pipeline that is known, so that a heartbeat reaches past the windows of all that read a table.
        on_tick: called a few times a second while queries run.
        failpoint: told of each point of each batch; what it raises stops the pipeline. Also of `BESIDE`, where what
            it raises only keeps from writing.
        warnings: what a person should know at the end, in words.
        compute_history: computes in batch what the first query of an epoch with a cut has passed over; given the
            session, the lake, the pipeline, and its progress callback, called before and after each part.
        only_history: a pipeline ends when its history is computed.
        histories: pipeline -> what `compute_history` has given.
    """

    spark: SparkSession
    lake: Lake
    definitions: Sequence[Definition]
    readers: Sequence[Pipeline] = ()
    on_tick: Callable[["Driver"], None] = lambda driver: None
    failpoint: Failpoint = unobserved
    queries: dict[str, AnyQuery] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    compute_history: Callable[..., Any] | None = None
    only_history: bool = False
    histories: dict[str, Any] = field(default_factory=dict)
    _computing: dict[str, "_History"] = field(default_factory=dict)
    _published: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._heartbeats = heartbeats.Heartbeats(self.spark, self.lake)
        self._idle = _IdleWatch(self)
        self._growth: Growth | None = None

    def start(self, definition: Definition, *, until_caught_up: bool, growth: Growth | None = None) -> None:
        """Starts one pipeline; an error is its outcome, not the driver's.

        Args:
            definition: of it.
            until_caught_up: it processes what is there now, then ends.
            growth: in which others of this driver fill tables that it reads.
        """
        query: AnyQuery
        if isinstance(definition, Ingest):
            query = IngestQuery(self.spark, self.lake, definition, failpoint=self.failpoint)
        else:
            query = PipelineQuery(self.spark, self.lake, definition, failpoint=self.failpoint, growth=growth)
        self.outcomes.pop(definition.name, None)
        self.queries[definition.name] = query
        try:
            query.start(until_caught_up=until_caught_up)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other pipelines go on)
            self.outcomes[definition.name] = Outcome(definition.name, self._explained(query, error))

    def run_until_caught_up(self, *, close: bool, stop: threading.Event | None = None) -> Mapping[str, Outcome]:
        """Runs the ingests until their input is read, and their readers until these have read bronze.

        Readers begin beside the ingests, and wait for full batches while these run. Ingests of
        results run after the pipelines that write these, and then their own readers. Who looks columns up in a table
        that is filled by one of them begins when that is whole.

        Args:
            close: then finish the input: move the watermark past every open window, once.
            stop: ends early, after the running batches.
        """
        stop = stop or threading.Event()
        for ingests, pipelines in links(self.definitions):
            looked_up = {name for pipeline in pipelines for name in pipeline.lookups}
            fill = {pipeline.sink.table for pipeline in pipelines} & looked_up
            last = [each for each in pipelines if each.sink.table not in fill and fill.intersection(each.lookups)]
            # A table that others look columns up in must be whole.
            filled = {ingest.sink.table for ingest in ingests}
            then = [each for each in pipelines if each not in last and filled.intersection(each.lookups)]
            beside = [each for each in pipelines if each not in (*then, *last)]
            self._run_beside(ingests, beside, stop, finish=partial(self._close, ingests, pipelines) if close else None)
            self._run_group(then, stop)
            self._run_group(last, stop)
        return self.outcomes

    def run_continuously(self, stop: threading.Event, *, idle_after: timedelta | None = None) -> Mapping[str, Outcome]:
        """Runs everything until told to stop, or until nothing runs any more.

        Args:
            stop: when set, each query finishes its batch and ends.
            idle_after: overrides what the ingests say: after so long without input, heartbeats move the watermark.
        """
        # What fills a table must have made it before another reads it, or looks columns up in it.
        for definition in in_order(self.definitions):
            self.start(definition, until_caught_up=False)
        self._idle = _IdleWatch(self, idle_after)
        self._watch(stop)
        return self.outcomes

    def look(self) -> None:
        """What is due beside the batches of a continuous run: heartbeats, watermarks, pipelines that have ended."""
        self._idle.look()
        self._publish()
        self._note_ended()

    def end_drained(self) -> None:
        """Ends the queries that were asked to drain and have finished their batch."""
        finished = [query for query in self._running() if query.draining and query.idle]
        for query in finished:
            query.query.stop()
        cancelled = [history for name, history in self._computing.items() if self.queries[name].draining]
        for history in cancelled:
            history.cancel()
        if finished or cancelled:
            self._note_ended()
            self._publish(at_once=True)

    def _run_beside(
        self,
        ingests: Sequence[Ingest],
        readers: Sequence[Pipeline],
        stop: threading.Event,
        *,
        finish: Callable[[], None] | None,
    ) -> None:
        """Runs ingests and, beside them, pipelines that read what they write.

        Args:
            ingests: that end when their input is read.
            readers: that end when the ingests have, and all is read.
            stop: ends early.
            finish: called when the ingests have ended, before the readers know that they have.
        """
        if not ingests:
            # Who starts now reads what is there now.
            self._finish(finish, stop)
            self._run_group(readers, stop)
            return
        # Of any table that is read, finishing the input moves the watermark.
        tables = {table.name for each in readers for table in each.tables}
        before = {name: latest_version(self.lake, name) if exists(self.lake, name) else -1 for name in tables}
        self._growth = Growth(self.spark, {ingest.sink.table for ingest in ingests}, before)
        try:
            # Readers last, which need the tables; they are planned while the ingests plan their first batches.
            first_to_last: tuple[Definition, ...] = (*ingests, *readers)
            for definition in first_to_last:
                if not stop.is_set():
                    self.start(definition, until_caught_up=True, growth=self._growth)
            self._watch(stop, until=lambda: all(each.name in self.outcomes for each in ingests))
            self._finish(finish, stop)
        except BaseException:
            with suppress(Exception):  # what is raised already says more
                self._drain(self._running())
            raise
        finally:
            self._growth.end()
            self._growth = None
        self._watch(stop)

    def _finish(self, finish: Callable[[], None] | None, stop: threading.Event) -> None:
        if finish is None or stop.is_set():
            return
        try:
            finish()
        except Exception as error:
            names = ", ".join(definition.name for definition in self.definitions)
            words = Words.about(*self.definitions)
            raise explained(error, pipeline=names, lake=self.lake, checkpoint="_checkpoints", words=words) from error

    def _run_group(self, definitions: Sequence[Definition], stop: threading.Event) -> None:
        if stop.is_set():
            return
        for definition in definitions:
            self.start(definition, until_caught_up=True)
        self._watch(stop)

    def _watch(self, stop: threading.Event, *, until: Callable[[], bool] | None = None) -> None:
        """Looks after running queries.

        Args:
            stop: ends them after their batches.
            until: leaves them running; None: until all have ended.
        """
        while (running := self._running()) or self._note_ended():
            if stop.wait(_POLL_S):
                self._drain(running)
                for name, history in self._computing.items():
                    self.queries[name].drain()
                    history.cancel()
                break
            self.look()
            self.on_tick(self)
            if until is not None and until():
                return
        self._note_ended()
        self._publish(at_once=True)
        self.on_tick(self)

    def _note_ended(self) -> bool:
        """Notes how queries have ended; whether one of them runs again."""
        again = False
        for name, query in self.queries.items():
            if name in self.outcomes or query.query.isActive:
                continue
            history = self._computing.get(name)
            if history is not None and not history.over:
                again = True
            elif history is not None:
                del self._computing[name]
                again = self._after_history(query, history) or again
            elif isinstance(query.error, PlanOutdatedError) and not query.draining:
                log.info("%s: starts again, as its plan is another one by now", name)
                again = self._start_again(query)
            elif isinstance(query, PipelineQuery) and query.reads_history and self._outcome(query) == Outcome(name):
                if query.draining:
                    self.outcomes[name] = Outcome(name)
                else:
                    self._computing[name] = _History(self, query)
                    again = True
            else:
                self.outcomes[name] = self._outcome(query)
        return again

    def _after_history(self, query: AnyQuery, history: "_History") -> bool:
        """Goes on as a stream; whether it does."""
        if query.draining:
            self.outcomes[query.name] = Outcome(query.name)
        elif isinstance(history.error, CutNotReachedError) and not query.until_caught_up:
            # The batch that would have moved the watermark was lost with a driver: the next events move it.
            log.info("%s: %s", query.name, history.error)
            return self._start_again(query)
        elif history.error is not None:
            self.outcomes[query.name] = Outcome(query.name, self._explained(query, history.error))
        elif self.only_history:
            self.outcomes[query.name] = Outcome(query.name)
        else:
            log.info("%s: its history is computed, it goes on as a stream", query.name)
            return self._start_again(query)
        return False

    def _start_again(self, query: AnyQuery) -> bool:
        """On the same checkpoint, with a plan of now; whether it runs."""
        try:
            query.start(until_caught_up=query.until_caught_up)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other pipelines go on)
            self.outcomes[query.name] = Outcome(query.name, self._explained(query, error))
        return query.name not in self.outcomes

    def _running(self) -> list[AnyQuery]:
        return [query for name, query in self.queries.items() if name not in self.outcomes and query.query.isActive]

    def _drain(self, running: Sequence[AnyQuery]) -> None:
        """Lets each query finish the batch it is in, then stops it."""
        if self._growth is not None:
            self._growth.leave()
        for query in running:
            query.drain()
        for query in running:
            while query.query.isActive and not query.idle:
                time.sleep(_POLL_S / 4)
                self.on_tick(self)
            query.query.stop()

    def _outcome(self, query: AnyQuery) -> Outcome:
        error: BaseException | None = query.error
        try:
            exception = query.query.exception()
        except StreamingQueryException as raised:
            exception = raised
        if query.draining and (error is None or isinstance(error, PlanOutdatedError)):
            return Outcome(query.name)
        error = error or exception
        if error is None:
            return Outcome(query.name)
        told = self._explained(query, error)
        return Outcome(query.name, self._halted(query, error, told) or told)

    def _explained(self, query: AnyQuery, error: BaseException) -> TidemarkError:
        """What an error means for a pipeline.

        Raises:
            SessionLostError: if it means that Spark has ended, for all of them.
        """
        refuse_ended(self.spark, error)
        checkpoint = f"_checkpoints/{query.name}"
        return explained(
            error, pipeline=query.name, lake=self.lake, checkpoint=checkpoint, words=self._words_about(query)
        )

    def _words_about(self, query: AnyQuery) -> Words:
        running = (each.definition for each in self.queries.values())
        return Words.about(query.definition, beside=(*running, *self.definitions, *self.readers))

    def _halted(self, query: AnyQuery, error: BaseException, told: TidemarkError) -> TidemarkError | None:
        """That a batch failed for what its rows hold, which halts its pipeline; None: it failed for something else."""
        if query.failed_batch_id is None or not isinstance(told, StoppedError):
            return None
        condition = condition_of(thrown(error))
        if condition is None:
            return None
        words = self._words_about(query).of(error) or root_cause(error)
        try:
            return query.halts.halt_at(query.epoch.number, query.failed_batch_id, condition, words)
        except ConcurrentDriverError as overtaken:
            return overtaken
        except Exception:
            # It fails again at the next start, and halts then.
            log.warning("%s: that it is halted could not be recorded", query.name, exc_info=True)
            return None

    def _close(self, ingests: Sequence[Ingest], pipelines: Sequence[Pipeline]) -> None:
        """One heartbeat for each table that an ingest of this run writes or a pipeline of this run reads."""
        readers = self.known_readers()
        names = {ingest.sink.table for ingest in ingests} | {t.name for p in pipelines for t in p.tables}
        unfinished = {i.sink.table: i.name for i in ingests if (o := self.outcomes.get(i.name)) and o.error}
        for together in heartbeats.groups(sorted(names), readers):
            failed = sorted(unfinished[name] for name in together if name in unfinished)
            if failed:
                self.warnings.append(
                    f"{', '.join(together)} not closed, because {', '.join(failed)} has not read all of its input. "
                    "Open windows wait for the next run."
                )
                continue
            self.warnings += self._heartbeats.close(together, ingests, readers)

    def known_readers(self) -> tuple[Pipeline, ...]:
        """Every pipeline that is known, those of this run as they are defined here."""
        mine = [definition for definition in self.definitions if isinstance(definition, Pipeline)]
        return tuple({pipeline.name: pipeline for pipeline in (*self.readers, *mine)}.values())

    def _publish(self, *, at_once: bool = False) -> None:
        """Writes `ops/watermarks`, beside the batches and at most every 30 s."""
        for name, query in self.queries.items():
            row = query.latest
            if not isinstance(query, PipelineQuery) or row is None or query.definition.watermark is None:
                continue
            when, watermark_ms = self._published.get(name, (0.0, -1))
            if row.watermark_ms == watermark_ms or (not at_once and time.monotonic() - when < _PUBLISH_EVERY_S):
                continue
            try:
                self.failpoint(BESIDE, query.latest_batch_id)
                watermarks.publish(
                    self.lake,
                    pipeline=name,
                    table=query.definition.sink.table,
                    engine_ms=row.watermark_ms,
                    grace_ms=row.grace_ms,
                    epoch=query.epoch.number,
                    batch_id=query.latest_batch_id,
                )
            except Exception:
                # A convenience for readers, written again in a moment: no reason to stop a stream.
                log.warning("the watermark of %s could not be published", name, exc_info=True)
                row = None
            self._published[name] = (time.monotonic(), row.watermark_ms if row else watermark_ms)


class _History:
    """The history of one pipeline, computed in a thread of its own, so that the driver goes on to give signs of life.

    Args:
        driver: whose pipeline it is.
        query: the first query of its epoch, which has ended.
    """

    def __init__(self, driver: Driver, query: PipelineQuery) -> None:
        self._driver = driver
        self._query = query
        self.error: Exception | None = None
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"history of {query.name}", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the thread that computes the history has ended, done or not."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Ends it before it is done; what it has committed stays."""
        self._cancelled.set()
        while not self.over:
            self._driver.spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_POLL_S)

    @property
    def _group(self) -> str:
        return f"history of {self._query.name}"

    def _run(self) -> None:
        driver, query = self._driver, self._query
        try:
            if driver.compute_history is None:
                raise BootstrapUnfinishedError(
                    f"pipeline `{query.name}`: the history of its epoch {query.epoch.number} is still to be computed. "
                    f"Nothing was written. Run: {command('bootstrap', query.name)}"
                )
            driver.spark.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=False)
            driver.spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.name)
            last = newest_batch(driver.lake, query.epoch.folder, "commits")
            driver.failpoint("history_read", -1 if last is None else last)
            driver.histories[query.name] = driver.compute_history(
                driver.spark,
                driver.lake,
                query.definition,
                on_progress=lambda *_: driver.failpoint("history_slice", -1 if last is None else last),
            )
            driver.failpoint("history_written", -1 if last is None else last)
            note_bootstrapped(driver.lake, query.epoch, -1 if last is None else last)
        except Exception as error:  # noqa: BLE001 (it is the pipeline's outcome, the others go on)
            self.error = error
            if isinstance(error, CutNotReachedError) and not query.until_caught_up:
                self._cancelled.wait(_AGAIN_S)


class _IdleWatch:
    """Sends a heartbeat for each ingest whose input has been silent for too long."""

    def __init__(self, driver: Driver, idle_after: timedelta | None = None) -> None:
        self._driver = driver
        self._idle_after = idle_after
        self._last: dict[str, tuple[int, float, float]] = {}

    def look(self) -> None:
        now = time.monotonic()
        for name, query in self._driver.queries.items():
            if not isinstance(query, IngestQuery) or query.until_caught_up or name in self._driver.outcomes:
                continue
            idle_after = self._idle_after or query.definition.idle_after
            if idle_after is None or not query.query.isActive:
                continue
            limit_ms = duration_ms(idle_after)
            if not query.waits_for_input:
                # It starts, plans or runs a batch: that may take long, and is no silence.
                self._last.pop(name, None)
                continue
            seen, since, beaten = self._last.setdefault(name, (query.latest_batch_id, now, now))
            if query.latest_batch_id != seen:
                self._last[name] = (query.latest_batch_id, now, now)
            elif (now - beaten) * 1000 >= limit_ms:
                try:
                    self._driver.failpoint(BESIDE, query.latest_batch_id)
                    query.beat(int((now - since) * 1000), self._driver.known_readers())
                except Exception:
                    log.warning("no heartbeat for %s", query.definition.sink.table, exc_info=True)
                self._last[name] = (seen, since, now)
