"""Orders what a plan says, watches it, and puts the versions before back where the new ones do not run."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Literal

from obstore.exceptions import BaseError
from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired import deployment, orders
from spark_jobs.control.desired.awaiting import DeployError, await_running, job_now
from spark_jobs.control.desired.deployment import Action, Plan
from spark_jobs.control.desired.orders import OrderOutcome
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import TidemarkError, first_line
from spark_jobs.operations.savepoint.execute import KEPT, take_savepoint, thin_out
from spark_jobs.operations.shape import Say
from spark_jobs.spec import definition_from_json

Mode = Literal["guarded", "direct", "shadow"]
"""`guarded`: a version that fails, or makes no progress in time, is taken back; `direct`: its order remains; `shadow`:
likewise, as the version that it is to be compared with goes on anyway (`operations/shadow`)."""

_BACK = timedelta(minutes=3)
"""So long the versions before may take until they run again."""


class Deployment(BaseModel):
    """What a deploy has ordered.

    Attributes:
        outcomes: of the orders.
        before: pipeline -> what ran before, as JSON, of those that run another version from now on.
    """

    model_config = ConfigDict(frozen=True)

    outcomes: tuple[OrderOutcome, ...]
    before: Mapping[str, str] = {}


def order(lake: Lake, plan: Plan, *, by: str, say: Say) -> Deployment:
    """Saves the pipelines that are to change, and orders what a plan says.

    Args:
        lake: where.
        plan: made for this lake.
        by: who orders, in words.
        say: is told of each savepoint, and of each order.

    Raises:
        CheckpointError: as `deployment.execute`.
        StalePlanError: as `deployment.execute`.
    """
    running = {name: each for job in orders.all_desired(lake).values() for name, each in job.running.items()}
    changed = [
        step.pipeline
        for step in plan.steps
        if step.pipeline in running and step.changes and step.action in (Action.RESTART, Action.MOVE)
    ]
    if not plan.blocked:
        for name in changed:
            _save(lake, name, by, say)
    outcomes = deployment.execute(lake, plan, by=by)
    for each in outcomes:
        told = f"generation {each.generation} ordered" if each.changed else "already runs this way, nothing to do"
        say(f"{each.pipeline}: {told} (job {each.job})")
    ordered = {each.pipeline for each in outcomes if each.changed}
    before = {name: running[name].definition for name in changed if name in ordered}
    return Deployment(outcomes=outcomes, before=before)


def _save(lake: Lake, name: str, by: str, say: Say) -> None:
    epoch = current_epoch(lake, name)
    if epoch is None or newest_batch(lake, epoch.folder, "commits") is None:
        return  # no batch has ended yet: there is nothing to lose
    try:
        take_savepoint(lake, name, say, name=None, note="before a deploy", by=by, kind="deploy")
        thin_out(lake, name, "deploy", KEPT)
    except (TidemarkError, BaseError) as error:
        say(f"{name}: no savepoint was taken before the deploy: {first_line(error)}")


def watch(
    lake: Lake,
    ordered: Deployment,
    *,
    mode: Mode,
    timeout: timedelta,
    by: str,
    say: Say,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until what was ordered has made its first progress.

    Args:
        lake: where.
        ordered: by `order`.
        mode: what becomes of a version that does not run.
        timeout: how long.
        by: who orders, in words.
        say: is told each piece of news.
        sleep: waits so many seconds.

    Raises:
        DeployError: if one fails, or time runs out; guarded, the versions before run again by then, where there are.
    """
    try:
        await_running(lake, ordered.outcomes, timeout=timeout, on_progress=say, sleep=sleep)
    except DeployError as error:
        failed = [each for each in ordered.outcomes if each.pipeline in ordered.before and not _runs(lake, each)]
        if mode != "guarded" or not failed:
            raise
        say(f"{error}")
        names = ", ".join(each.pipeline for each in failed)
        say(f"The versions before go on: {names}")
        _put_back(lake, ordered.before, failed, by=by, say=say, sleep=sleep)
        raise DeployError(
            f"{str(error).replace('; the order remains', '')}\nThe versions before run again, from where they were: "
            f"{names}. Their tables and checkpoints are whole. Fix the definition, then deploy it again. What was "
            f"saved before: {command('savepoints', 'list')}"
        ) from error


def _put_back(
    lake: Lake,
    before: Mapping[str, str],
    failed: Iterable[OrderOutcome],
    *,
    by: str,
    say: Say,
    sleep: Callable[[float], None],
) -> None:
    definitions = [definition_from_json(before[each.pipeline]) for each in failed]
    outcomes = deployment.execute(lake, deployment.plan(lake, definitions), by=f"{by}, guarded")
    await_running(lake, outcomes, timeout=_BACK, on_progress=say, sleep=sleep)


def _runs(lake: Lake, ordered: OrderOutcome) -> bool:
    """Whether a pipeline has made progress in the generation that was ordered."""
    seen = job_now(lake, ordered.job).pipeline(ordered.pipeline)
    reached = seen is not None and seen.generation >= ordered.generation
    return seen is not None and reached and seen.state == "running" and seen.progressed_at is not None
