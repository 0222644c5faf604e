"""Rebuilds in this process: the plan and the comparison as a person reads them, and what was done."""

import threading
import time
from collections.abc import Callable

from rich.console import Console

from spark_jobs.console.bootstrap import finish
from spark_jobs.console.running import session
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.checkpoints.swapping import remove_built
from spark_jobs.lake.settings import Retention
from spark_jobs.operations.rebuild import execute as rebuild
from spark_jobs.operations.rebuild.plan import Prospect, RebuildPlan
from spark_jobs.operations.rebuild.text import comparison_text
from spark_jobs.spec import Pipeline


def run_rebuild(
    out: Console,
    err: Console,
    target: Prospect,
    plan: RebuildPlan,
    *,
    allowed: Callable[[], bool] | None,
    stop: threading.Event,
) -> int:
    """Builds, compares, swaps, and takes the new epoch to the end of its history.

    Args:
        out: where results are told.
        err: where failures are.
        target: the pipeline.
        plan: what to do.
        allowed: asked before anything but the tables aside is changed; None: nothing else is.
        stop: ends early.

    Returns:
        The exit code.
    """
    began, lake = time.monotonic(), target.lake
    with session(lake, err, about=(target.pipeline,)) as spark:
        # A table in which it looks columns up must fit before anything is computed.
        PipelineQuery(spark, lake, target.pipeline).refuse_lookups()
        rebuild.build(spark, target, plan)
        found = rebuild.compare(spark, target, plan)
        out.print(comparison_text(plan, found), highlight=False, markup=False, soft_wrap=True)
        if allowed is None or not allowed():
            out.print(
                f"{plan.table} is as it was. What was built is in {plan.aside}, until maintenance removes it. "
                f"To swap such rows in: tidemark rebuild {plan.pipeline} --yes",
                highlight=False,
                soft_wrap=True,
            )
            return 0
        epoch = rebuild.swap(spark, target, plan)
        remove_built(lake, target.pipeline, epoch.number, keep=Retention().rebuilt)
        out.print(f"{plan.table}: has the new rows. Epoch {epoch.number} begins at the cut.", highlight=False)
        return finish(out, err, spark, lake, target.pipeline, epoch, began=began, stop=stop)


def finish_rebuild(
    out: Console, err: Console, lake: Lake, pipeline: Pipeline, epoch: Epoch, *, stop: threading.Event
) -> int:
    """Takes an epoch whose swap was done before to the end of its history; the exit code."""
    out.print(f"{pipeline.name}: epoch {epoch.number} has begun at its cut, its history is still to be computed.")
    remove_built(lake, pipeline, epoch.number, keep=Retention().rebuilt)
    with session(lake, err, about=(pipeline,)) as spark:
        return finish(out, err, spark, lake, pipeline, epoch, began=time.monotonic(), stop=stop)
