"""A new pipeline whose history is computed in batch up to a cut, and that goes on as a stream from exactly there.

The cut is the end of a window. The first query of the epoch reads all of bronze and passes over every window that ends
at or before the cut; these are computed in batch, over just the events that it has read. What comes for them afterwards
is late by Spark's own verdict (docs/guides/bootstrap.md).
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.lake.checkpoints.epochs import Epoch, begin_epoch, current_epoch, end_before_it_begins, history_cut
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.errors import CheckpointError, CutNotReachedError
from spark_jobs.lake.tables.opening import file_statistics, open_table
from spark_jobs.operations.backfill.execute import OnProgress, execute
from spark_jobs.operations.backfill.plan import BackfillPlan, Slice, in_slices
from spark_jobs.operations.backfill.text import done_text
from spark_jobs.operations.bootstrap.plan import BootstrapPlan
from spark_jobs.operations.shape import Say
from spark_jobs.operations.words import counted
from spark_jobs.recompute.ranges import FIRST_US, Range, shown
from spark_jobs.recompute.revising import RevisionOutcome
from spark_jobs.recompute.target import Target
from spark_jobs.spec import Definition, Pipeline
from spark_jobs.spec.durations import duration_ms


def begin(lake: Lake, definition: Definition, plan: BootstrapPlan) -> Epoch:
    """Begins the epoch at its cut; once, however many do so.

    Raises:
        CheckpointError: if another has begun it as a stream meanwhile.
    """
    before = current_epoch(lake, definition.name)
    if before is not None and before.number < plan.epoch and not end_before_it_begins(lake, before):
        raise CheckpointError(
            f"pipeline `{plan.pipeline}`: its stream has begun in epoch {before.number} since this was planned. "
            f"Nothing was written. To begin again: {command('reset', plan.pipeline, '--empty-tables')}, then "
            f"{command('bootstrap', plan.pipeline)}"
        )
    epoch = begin_epoch(lake, definition, plan.epoch, cut_us=plan.cut_us)
    if history_cut(lake, epoch) is None:
        raise CheckpointError(
            f"pipeline `{plan.pipeline}`: another driver has begun epoch {epoch.number} meanwhile, and its stream goes "
            "through the history. Nothing was written."
        )
    return epoch


class _Beginning(Target):
    """A pipeline that has no results of its history yet."""

    def _refuse_lost_events(self) -> None:
        """Events that bronze has lost before cost no result."""


def compute_history(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, *, on_progress: OnProgress = lambda *_: None
) -> list[RevisionOutcome]:
    """Computes the history of the current epoch, over just the events that its stream has read; idempotent.

    Args:
        spark: a session.
        lake: where.
        pipeline: whose stream has read what was there, and rests.
        on_progress: called before and after each slice.

    Raises:
        CutNotReachedError: if the stream's next batch could still count events of these windows.
    """
    target = _Beginning(lake, pipeline)
    cut_us = history_cut(lake, target.epoch)
    if cut_us is None:
        return []
    if target.newest.watermark_ms * 1000 < cut_us:
        raise CutNotReachedError(
            f"pipeline `{pipeline.name}`: its watermark has reached {shown(target.newest.watermark_ms * 1000)}, its "
            f"history is to be computed up to {shown(cut_us)}: a driver died before the batch that moves it. The next "
            f"events move it. Nothing of the history was written. Run it again then: {command('run', pipeline.name)}"
        )
    return execute(spark, target, _history(target, cut_us), on_progress=on_progress)


def _history(target: Target, cut_us: int) -> BackfillPlan:
    """A backfill of all windows that end at or before the cut."""
    before, after = target.operator.recomputation.reach
    end_us = target.operator.recomputation.first_open_us(cut_us // 1000)
    begin_us = _oldest_us(target) - duration_ms(before + after) * 1000
    reads = target.reads("as-streamed", Range(begin_us, cut_us))
    closed = Range(min(begin_us, end_us - 1), end_us)
    parts = in_slices(closed, sum(read.bytes for read in reads))
    return BackfillPlan(
        pipeline=target.name,
        table=target.result,
        run=f"bootstrap-{target.epoch.number}-{datetime.now(UTC):%Y%m%d%H%M%S%f}",
        mode="corrected",
        begin_us=closed.begin_us,
        end_us=closed.end_us,
        slices=tuple(
            Slice(number=number, begin_us=part.begin_us, end_us=part.end_us) for number, part in enumerate(parts)
        ),
        notices=(),
        epoch=target.epoch.number,
        watermark_ms=cut_us // 1000,
        reads=reads,
        # The stream's late events have missed only windows beyond the cut.
        late_version=None,
        late=0,
        unrepaired=0,
        kind="bootstrap",
    )


def _oldest_us(target: Target) -> int:
    """The oldest time in the source tables, by their statistics."""
    oldest = []
    for side in target.logical.sides:
        for source in side.tables:
            statistics = file_statistics(open_table(target.lake, source.name))
            least = f"min.{side.time_column(source)}"
            if least not in statistics.column_names or statistics[least].null_count:
                return FIRST_US
            times = statistics[least].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            oldest += [pc.min(times).as_py()] if len(times) else []
    return max(FIRST_US, min(oldest, default=FIRST_US))


Watch = Callable[[Driver], AbstractContextManager[None]]
"""Shows a driver for as long as it runs."""


def carry_out(
    spark: SparkSession,
    lake: Lake,
    pipeline: Pipeline,
    plan: BootstrapPlan,
    say: Say,
    *,
    watch: Watch,
    stop: threading.Event,
) -> Driver:
    """Executes a plan and says what was done.

    Returns:
        The driver that has run, with what stopped it and the histories that it has computed.

    Raises:
        DeployError: if a driver runs the pipeline.
    """
    refuse_deployed(lake, [pipeline.name])
    began = time.monotonic()
    query = PipelineQuery(spark, lake, pipeline)
    # A definition that cannot start must leave no checkpoint that refuses the fixed one.
    query.create_tables()
    query.plan()
    epoch = begin(lake, pipeline, plan)
    return finish(spark, lake, pipeline, epoch, say, began=began, watch=watch, stop=stop)


def finish(
    spark: SparkSession,
    lake: Lake,
    pipeline: Pipeline,
    epoch: Epoch,
    say: Say,
    *,
    began: float,
    watch: Watch,
    stop: threading.Event,
) -> Driver:
    """Takes an epoch with a cut to the end of its history, and says what was done; the driver that has run."""
    driver = Driver(spark, lake, [pipeline], compute_history=compute_history, only_history=True)
    table = pipeline.sink.table
    with watch(driver):
        outcomes = driver.run_until_caught_up(close=False, stop=stop)
    if any(outcome.error is not None for outcome in outcomes.values()):
        return driver
    history: list[RevisionOutcome] | None = driver.histories.get(pipeline.name)
    if history is None:
        say(f"{pipeline.name}: interrupted. To go on: {command('bootstrap', pipeline.name)}")
        return driver
    terms = Totals.of(row for _, row in ledger_rows(lake, table, pipeline.name, epoch.number))
    say(
        f"stream   {counted(terms['read'], 'event')} read, {terms['history']:,} of them only in windows before the "
        f"cut, {terms['late']:,} late"
    )
    for done in history:
        say(f"batch    {done_text(table, done)}")
    say(
        f"{pipeline.name}: its history is computed up to {shown(epoch.cut_us or 0)} UTC "
        f"({time.monotonic() - began:.1f} s). It goes on from there once it is deployed, or by "
        f"{command('run', pipeline.name)}"
    )
    return driver
