"""Drops a shadow, or puts its version in the place of the one that runs."""

import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Literal

from pyspark.sql import SparkSession

from spark_jobs.control.desired import deployment, orders
from spark_jobs.control.desired.awaiting import await_stopped, refuse_deployed
from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.removing import remove_pipeline
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.tables import decisions
from spark_jobs.operations.bootstrap.execute import Watch
from spark_jobs.operations.deploy.execute import Deployment
from spark_jobs.operations.rebuild.execute import carry_on, carry_out
from spark_jobs.operations.rebuild.plan import plan_carrying_on, plan_rebuild
from spark_jobs.operations.shadow.plan import TO_PROMOTE, DropPlan, PromotionPlan
from spark_jobs.operations.shape import Say
from spark_jobs.spec import Pipeline

Streams = Callable[[Callable[[SparkSession, Say, Watch], Driver | None]], int]
"""Executes in a session something that runs streams to their end, and gives its exit code."""


def drop(lake: Lake, plan: DropPlan, *, by: str, timeout: timedelta, say: Say, comment: str = "") -> None:
    """Stops a shadow and removes all that it has written; done again, it finishes what was interrupted.

    Args:
        lake: where.
        plan: by `plan_drop`.
        by: who drops it, in words; kept in `ops.decisions`.
        timeout: so long it may take to stop.
        say: is told what was done.
        comment: why.

    Raises:
        OutdatedPlanError: if another shadow has its name by now.
        DeployError: if a driver goes on with it; then nothing was removed.
    """
    plan.seen.refuse_other(lake)
    _note(lake, plan, "drop", by, comment)
    _drop(lake, plan, by=by, timeout=timeout, say=say)


def _note(lake: Lake, plan: DropPlan, action: Literal["drop", "promote"], by: str, comment: str) -> None:
    decisions.note(
        lake,
        pipeline=plan.pipeline,
        action=action,
        decided_by=by,
        subject=f"{plan.shadow}, generation {plan.seen.generation}",
        comment=comment,
        decision_id=str(uuid.uuid4()),
    )


def _drop(lake: Lake, plan: DropPlan, *, by: str, timeout: timedelta, say: Say) -> None:
    """The order stays as a stopped one, so that the next shadow has a generation that no driver has seen."""
    _stop(lake, [plan.shadow], by=by, timeout=timeout)
    tables = remove_pipeline(lake, plan.shadow, plan.results)
    say(f"{plan.shadow}: dropped, with {', '.join(tables) or 'no table'}. {plan.pipeline} is as it was.")


def promote(
    lake: Lake,
    definition: Pipeline,
    plan: PromotionPlan,
    streams: Streams,
    *,
    by: str,
    timeout: timedelta,
    stop: threading.Event,
    say: Say,
    comment: str = "",
) -> tuple[int, Deployment]:
    """Puts the version of a shadow in the place of the one that runs, and drops the shadow.

    The shadow goes last: as long as it is there, the same command carries on.

    Args:
        lake: where.
        definition: of the pipeline, as it is now.
        plan: by `plan_promotion`.
        streams: executes what needs Spark.
        by: who promotes, in words; kept in `ops.decisions`.
        timeout: so long the two may take to stop.
        stop: ends early.
        say: is told what is done.
        comment: why.

    Returns:
        The exit code, other than 0 where it is to be carried on; and what was ordered of the pipeline.

    Raises:
        OutdatedPlanError: if one of the two, or the definition, is another one than was planned.
        DeployError: if a driver goes on with one of the two; then nothing was removed or replaced.
    """
    plan.refuse_outdated(lake, definition)
    name, nothing = plan.pipeline, Deployment(outcomes=())
    _note(lake, plan.drop, "promote", by, comment)
    _stop(lake, [plan.drop.shadow], by=by, timeout=timeout)
    if plan.swaps or plan.carries_on:
        _stop(lake, [name], by=by + TO_PROMOTE, timeout=timeout)
        code = streams(lambda spark, say, watch: _swapped(spark, lake, definition, say, watch, stop))
        if code:
            say(f"{name}: not promoted yet, both are stopped. Carry on: {command('shadow', name, '--promote')}")
            return code, nothing
    if plan.deploys:
        nothing = Deployment(outcomes=deployment.execute(lake, deployment.plan(lake, [definition]), by=by))
        say(f"{name}: ordered to run as its shadow did.")
    _drop(lake, plan.drop, by=by, timeout=timeout, say=lambda _: None)
    say(f"{name}: its shadow is promoted, and dropped.")
    return 0, nothing


def _swapped(
    spark: SparkSession, lake: Lake, definition: Pipeline, say: Say, watch: Watch, stop: threading.Event
) -> Driver:
    """The results of the new definition in place, as `tidemark rebuild` does it."""
    epoch = plan_carrying_on(lake, definition)
    if epoch is not None:
        return carry_on(spark, lake, definition, epoch, say, watch=watch, stop=stop)
    target, plan = plan_rebuild(lake, definition, swaps=True)
    driver = carry_out(spark, target, plan, say, allowed=lambda: True, watch=watch, stop=stop)
    if driver is None:
        raise CheckpointError(f"pipeline `{definition.name}`: nothing was swapped. Run the same command again.")
    return driver


def _stop(lake: Lake, names: Iterable[str], *, by: str, timeout: timedelta) -> None:
    """Orders that pipelines end, where they are deployed, and waits until no driver runs them."""
    deployed = {name for desired in orders.all_desired(lake).values() for name in desired.pipelines}
    if stopped := [name for name in names if name in deployed]:
        await_stopped(lake, orders.stop(lake, stopped, by=by), timeout=timeout)
    refuse_deployed(lake, names)
