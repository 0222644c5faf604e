"""Bootstraps in this process: the plan as a person reads it, and what was done."""

import threading
import time

from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.console.live import Progress
from spark_jobs.console.running import report_failures, session
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.operations.backfill.execute import Done
from spark_jobs.operations.backfill.text import done_text
from spark_jobs.operations.bootstrap import execute as bootstrap
from spark_jobs.operations.bootstrap.plan import BootstrapPlan
from spark_jobs.operations.words import counted
from spark_jobs.recompute.ranges import shown
from spark_jobs.spec import Pipeline


def run_bootstrap(
    out: Console, err: Console, lake: Lake, pipeline: Pipeline, plan: BootstrapPlan, *, stop: threading.Event
) -> int:
    """Executes a plan and says what was done.

    Returns:
        The exit code.
    """
    began = time.monotonic()
    with session(lake, err, about=(pipeline,)) as spark:
        query = PipelineQuery(spark, lake, pipeline)
        # A definition that cannot start must leave no checkpoint that refuses the fixed one.
        query.create_tables()
        query.plan()
        epoch = bootstrap.begin(lake, pipeline, plan)
        return finish(out, err, spark, lake, pipeline, epoch, began=began, stop=stop)


def finish(
    out: Console,
    err: Console,
    spark: SparkSession,
    lake: Lake,
    pipeline: Pipeline,
    epoch: Epoch,
    *,
    began: float,
    stop: threading.Event,
) -> int:
    """Takes an epoch with a cut to the end of its history, and says what was done.

    Returns:
        The exit code.
    """
    driver = Driver(spark, lake, [pipeline], compute_history=bootstrap.compute_history, only_history=True)
    with Progress(out) as progress:
        driver.on_tick = progress.tick
        outcomes = driver.run_until_caught_up(close=False, stop=stop)
    code, table = report_failures(err, outcomes), pipeline.sink.table
    if code:
        return code
    history: list[Done] | None = driver.histories.get(pipeline.name)
    if history is None:
        out.print(f"{pipeline.name}: interrupted. To go on: tidemark bootstrap {pipeline.name}", highlight=False)
        return 130
    terms = Totals.of(row for _, row in ledger_rows(lake, table, pipeline.name, epoch.number))
    out.print(
        f"stream   {counted(terms['read'], 'event')} read, {terms['history']:,} of them only in windows before the "
        f"cut, {terms['late']:,} late",
        highlight=False,
    )
    for done in history:
        out.print(f"batch    {done_text(table, done)}", highlight=False, soft_wrap=True)
    out.print(
        f"{pipeline.name}: its history is computed up to {shown(epoch.cut_us or 0)} UTC "
        f"({time.monotonic() - began:.1f} s). It goes on from there: tidemark run {pipeline.name}",
        highlight=False,
        soft_wrap=True,
    )
    return 0
