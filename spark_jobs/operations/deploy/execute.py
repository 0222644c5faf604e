"""Orders what a plan says, watches it, and puts the versions before back where the new ones do not run."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Literal

from obstore.exceptions import BaseError
from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired import deployment, orders
from spark_jobs.control.desired.awaiting import (
    DeployError,
    NoSupervisorError,
    await_running,
    failed_generations,
    job_now,
)
from spark_jobs.control.desired.deployment import Action, Plan
from spark_jobs.control.desired.orders import OrderOutcome
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.halts import Halt
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
        before: pipeline -> what ran before, as JSON, of those that run another version from now on; not of those that
            had failed for good: to go back to that helps nobody.
        halted: pipeline -> the halt at which it waited for a person already when it was ordered.
    """

    model_config = ConfigDict(frozen=True)

    outcomes: tuple[OrderOutcome, ...]
    before: Mapping[str, str] = {}
    halted: Mapping[str, Halt] = {}


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
    failed = failed_generations(lake)
    halted = {name: each for name, each in halts.all_standing(lake).items() if name in plan.definitions}
    if not plan.blocked:
        for name in changed:
            _save(lake, name, by, say)
    outcomes = deployment.execute(lake, plan, by=by)
    for each in outcomes:
        told = f"generation {each.generation} ordered" if each.changed else "already runs this way, nothing to do"
        say(f"{each.pipeline}: {told} (job {each.job})")
    ordered = {each.pipeline for each in outcomes if each.changed}
    before = {name: running[name].definition for name in changed if name in ordered and name not in failed}
    return Deployment(outcomes=outcomes, before=before, halted=halted)


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
        NoSupervisorError: if nobody starts drivers; nothing is taken back.
    """
    waiting = [each for each in ordered.outcomes if _waits(lake, each.pipeline, ordered)]
    others = [each for each in ordered.outcomes if each not in waiting]
    try:
        await_running(lake, others, timeout=timeout, on_progress=say, sleep=sleep)
    except NoSupervisorError:
        raise  # nothing was tried: the order remains, as it says
    except DeployError as error:
        failed = [each for each in others if each.pipeline in ordered.before and not _runs(lake, each)]
        if mode != "guarded" or not failed:
            raise
        names = ", ".join(each.pipeline for each in failed)
        say(f"Does not run as ordered, the versions before go on: {names}")
        told = _reasons(lake, error, failed)
        try:
            _put_back(lake, ordered, failed, by=by, say=say, sleep=sleep)
        except DeployError as again:
            raise DeployError(
                f"{told}\nThe versions before are ordered again, and do not run yet either: {names}. {again}"
            ) from error
        raise DeployError(
            f"{told}\nThe versions before run again, from where they were: {names}. Their tables and checkpoints are "
            f"whole. Fix the definition, then deploy it again. What was saved before: {command('savepoints', 'list')}"
        ) from error
    if waiting:
        # What was ordered is what is tried once somebody has decided: it cannot be judged before, nor taken back.
        names = ", ".join(each.pipeline for each in waiting)
        told = "\n".join(str(ordered.halted[each.pipeline].error()) for each in waiting)
        raise DeployError(f"{told}\nThe order remains: once that is decided, what was ordered runs: {names}.")


def _waits(lake: Lake, name: str, ordered: Deployment) -> bool:
    """Whether a pipeline still waits for the person for whom it waited when it was ordered."""
    before = ordered.halted.get(name)
    return before is not None and halts.standing(lake, name) == before


def _reasons(lake: Lake, error: DeployError, failed: Iterable[OrderOutcome]) -> str:
    """Why versions are taken back; of a halt without what a person would have to decide, as nobody has to."""
    found = [(each.pipeline, halts.standing(lake, each.pipeline)) for each in failed]
    halted = {name: halt for name, halt in found if halt is not None}
    told = [
        "\n".join((f"{name}: halted: {halt.what}", *(f"such as: {sample}" for sample in halt.samples)))
        for name, halt in halted.items()
    ]
    first = str(error).replace("; the order remains", "")
    of_a_halt = any(first.startswith(f"{name}: halted: ") for name in halted)
    return "\n".join(told if of_a_halt else [first, *told])


def _put_back(
    lake: Lake,
    ordered: Deployment,
    failed: Iterable[OrderOutcome],
    *,
    by: str,
    say: Say,
    sleep: Callable[[float], None],
) -> None:
    """Orders the versions before, and waits for them.

    Where the new version has halted at a batch, nobody need decide about it: the version before tries it again, and
    halts by itself where it cannot compute it either.
    """
    failed, by = tuple(failed), f"{by}, guarded"
    definitions = [definition_from_json(ordered.before[each.pipeline]) for each in failed]
    outcomes = deployment.execute(lake, deployment.plan(lake, definitions), by=by)
    for each in failed:
        if (halt := halts.standing(lake, each.pipeline)) is not None:
            comment = "the version that halted has given way to the one before"
            halts.decide(lake, each.pipeline, "resume", by=by, comment=comment, expected=halt)
            say(f"{each.pipeline}: the version before tries {halt.subject} again")
    await_running(lake, outcomes, timeout=_BACK, on_progress=say, sleep=sleep)


def _runs(lake: Lake, ordered: OrderOutcome) -> bool:
    """Whether a pipeline has made progress in the generation that was ordered."""
    seen = job_now(lake, ordered.job).pipeline(ordered.pipeline)
    reached = seen is not None and seen.generation >= ordered.generation
    return seen is not None and reached and seen.state == "running" and seen.progressed_at is not None
