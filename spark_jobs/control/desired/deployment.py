"""Deploys: what one will do, as data, and doing it. No JVM.

`plan` reads and writes nothing; `execute` writes what a plan says. A plan is executed as it was seen, or not at all.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired import orders
from spark_jobs.control.desired.awaiting import failed_generations
from spark_jobs.control.desired.contracts import Difference, differences
from spark_jobs.control.desired.orders import DesiredState, Order, OrderOutcome
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.checkpoints.reset import refuse_tables_of_others
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import CheckpointError, MissingTableError, TidemarkError
from spark_jobs.lake.tables.fitting import refuse_misfit
from spark_jobs.plan import logical
from spark_jobs.plan.changes import Change, Compatibility, changes
from spark_jobs.spec import Definition, DefinitionError, Ingest, Pipeline, definition_from_json


class StalePlanError(TidemarkError):
    """What a plan was made from has changed since."""


class Action(StrEnum):
    """What a deploy does with one pipeline."""

    START = "start"
    RESTART = "restart"
    MOVE = "move"
    """It stops in the job where it runs, and starts in another."""
    UNCHANGED = "unchanged"
    NEW_EPOCH = "needs a new epoch"
    """Nothing is ordered: its checkpoint does not take the definition."""
    REFUSED = "refused"
    """Nothing is ordered: the pipeline cannot run so at all."""


class Step(BaseModel):
    """What becomes of one pipeline.

    Attributes:
        pipeline: its name.
        job: whose driver it is to run in.
        action: what is done.
        why: in words.
        generation: that it has afterwards; 0 where nothing can be ordered.
        changes: each field that differs from what was deployed, or from what its checkpoint was begun with.
        leaves: the jobs that it runs in so far and leaves.
        commands: what to run for a new epoch, one after the other.
        rebuild: what to run instead, one after the other, where a batch can compute the new results beside the old.
        notices: in what its source differs from its columns, in words.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    job: str
    action: Action
    why: str
    generation: int = 0
    changes: tuple[Change, ...] = ()
    leaves: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    rebuild: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether nothing can be deployed with it."""
        return self.action in (Action.NEW_EPOCH, Action.REFUSED)


class Plan(BaseModel):
    """What a deploy does.

    Attributes:
        lake: its address.
        steps: one for each pipeline.
        definitions: pipeline -> what is to run, as JSON, whatever becomes of its file before the plan is executed.
    """

    model_config = ConfigDict(frozen=True)

    lake: str
    steps: tuple[Step, ...]
    definitions: Mapping[str, str]

    @property
    def blocked(self) -> tuple[Step, ...]:
        """The steps for which nothing is ordered."""
        return tuple(step for step in self.steps if step.blocks)


@dataclass(frozen=True)
class DeploymentContext:
    """What a lake knows of the pipelines that are to be deployed.

    Attributes:
        desired: job -> what is wanted of it.
        epochs: pipeline -> the current epoch of its checkpoint.
        failed: pipeline -> generation that has failed for good.
        taken: pipeline without a checkpoint -> why it cannot begin on its tables.
        sources: ingest -> in what its source differs from its columns.
        halted: pipelines that wait for a person's decision about a batch.
        misfits: pipeline -> why it does not fit the tables that it reads.
    """

    desired: Mapping[str, DesiredState] = field(default_factory=dict)
    epochs: Mapping[str, Epoch] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, tuple[Difference, ...]] = field(default_factory=dict)
    halted: Collection[str] = ()
    misfits: Mapping[str, str] = field(default_factory=dict)


def plan(lake: Lake, definitions: Iterable[Definition]) -> Plan:
    """Plans a deploy. Writes nothing.

    Args:
        lake: where.
        definitions: what is to run.

    Raises:
        FormatError: if another version of Tidemark wrote what this one cannot read.
    """
    wanted = tuple(definitions)
    found = look(lake, wanted)
    steps = (_with_commands(decide(each, found), each, found) for each in wanted)
    return Plan(
        lake=lake.uri,
        steps=tuple(steps),
        definitions={definition.name: definition.to_json() for definition in wanted},
    )


def look(lake: Lake, definitions: Iterable[Definition]) -> DeploymentContext:
    """Reads what a plan is made from."""
    wanted, desired = tuple(definitions), orders.all_desired(lake)
    epochs, owned_elsewhere, sources, misfits = {}, {}, {}, {}
    for definition in wanted:
        if isinstance(definition, Ingest):
            sources[definition.name] = differences(lake, definition)
        elif why := _misfit(lake, definition, (*_running(desired), *wanted)):
            misfits[definition.name] = why
        epoch = current_epoch(lake, definition.name)
        if epoch is not None:
            epochs[definition.name] = epoch
            continue
        try:
            refuse_tables_of_others(lake, definition)
        except CheckpointError as error:
            owned_elsewhere[definition.name] = str(error)
    halted = tuple(halts.all_standing(lake))
    return DeploymentContext(desired, epochs, failed_generations(lake), owned_elsewhere, sources, halted, misfits)


def _running(desired: Mapping[str, DesiredState]) -> Iterator[Definition]:
    """What is to run already, as far as this version can read it."""
    for job in desired.values():
        for order in job.running.values():
            with contextlib.suppress(DefinitionError):
                yield order.parsed()


def _misfit(lake: Lake, pipeline: Pipeline, beside: Sequence[Definition]) -> str | None:
    """Why a pipeline does not fit its tables; None: it does, or they are not there yet."""
    try:
        refuse_misfit(lake, pipeline, beside)
    except DefinitionError as error:
        return str(error).removeprefix(f"pipeline `{pipeline.name}` ")
    except MissingTableError:
        pass  # an ingest may be deployed after it
    return None


def decide(definition: Definition, found: DeploymentContext) -> Step:
    """What becomes of one pipeline: a function of its definition and of what the lake knows."""
    name, job = definition.name, definition.job
    known = {each: desired.pipelines[name] for each, desired in found.desired.items() if name in desired.pipelines}
    leaves = tuple(each for each, order in known.items() if each != job and order.state == "running")
    here, epoch = known.get(job), found.epochs.get(name)
    last = known[leaves[0]] if leaves else here or next(iter(known.values()), None)

    noticed = found.sources.get(name, ())

    def step(action: Action, why: str, *, generation: int = 0, changed: tuple[Change, ...] = ()) -> Step:
        return Step(
            pipeline=name,
            job=job,
            action=action,
            why=why,
            generation=generation,
            changes=changed,
            leaves=leaves if action is Action.MOVE else (),
            notices=tuple(f"{each.kind} column {each.column}: {each.what}" for each in noticed),
        )

    if name in found.taken:
        return step(Action.REFUSED, found.taken[name])
    number = epoch.number if epoch else 0
    try:
        judged = changes(definition_from_json(epoch.definition), definition) if epoch else ()
    except DefinitionError:
        why = f"epoch {number} began with a definition that this version of Tidemark cannot read"
        return step(Action.NEW_EPOCH, why)
    changed = _changed(definition, judged, last, epoch)
    if blocking := [change for change in changed if change.compatibility is not Compatibility.SAFE]:
        refused = any(change.compatibility is Compatibility.REFUSED for change in blocking)
        fields = ", ".join(change.field for change in blocking)
        why = f"its definition has changed ({fields}) since epoch {number} of its checkpoint began"
        return step(Action.REFUSED if refused else Action.NEW_EPOCH, why, changed=changed)
    action, why = _action(definition, here, leaves, failed=found.failed.get(name), changed=changed, known=bool(known))
    stopping = [each for each in noticed if each.stops]
    if stopping and action is not Action.UNCHANGED:
        told = "; ".join(f"{each.kind} column {each.column}, {each.what}" for each in stopping)
        return step(Action.REFUSED, f"its source breaks the contract: {told}", changed=changed)
    if name in found.misfits and action is not Action.UNCHANGED:
        return step(Action.REFUSED, found.misfits[name], changed=changed)
    if name in found.halted:
        why = f"{why}; it is halted, and runs only after a decision: {command('resume', name)}"
    generation = (here.generation if here else 0) + (action is not Action.UNCHANGED)
    return step(action, why, generation=generation, changed=changed)


def _changed(
    definition: Definition, judged: Iterable[Change], last: Order | None, epoch: Epoch | None
) -> tuple[Change, ...]:
    """What the checkpoint does not take, then what else differs from what was deployed."""
    blocking = {change.field: change for change in judged if change.compatibility is not Compatibility.SAFE}
    try:
        since = changes(last.parsed(), definition) if last else judged
    except DefinitionError:  # of another version of Tidemark
        since = judged
    begun = f"epoch {epoch.number} began with its new value" if epoch else "no checkpoint uses its old value"
    safe = (
        c if c.compatibility is Compatibility.SAFE else replace(c, compatibility=Compatibility.SAFE, why=begun)
        for c in since
    )
    return (*blocking.values(), *(change for change in safe if change.field not in blocking))


def _action(
    definition: Definition,
    here: Order | None,
    leaves: Sequence[str],
    *,
    failed: int | None,
    changed: Sequence[Change],
    known: bool,
) -> tuple[Action, str]:
    if leaves:
        return Action.MOVE, f"from job {', '.join(leaves)}"
    if here is None or here.state == "stopped":
        return Action.START, "it was stopped" if known else "for the first time"
    if failed == here.generation:
        return Action.RESTART, "it had failed"
    if here.defines(definition):
        return Action.UNCHANGED, "already runs this way"
    fields = ", ".join(change.field for change in changed)
    return Action.RESTART, f"changed: {fields}" if fields else "columns or measures stand in another order"


def _with_commands(step: Step, definition: Definition, found: DeploymentContext) -> Step:
    if step.action is not Action.NEW_EPOCH:
        return step
    name = step.pipeline
    runs = any(name in desired.running for desired in found.desired.values())
    stop, deploy = (command("stop", name),) if runs else (), command("deploy", name)
    return step.model_copy(
        update={
            "commands": (*stop, command("reset", name, "--empty-tables"), deploy),
            "rebuild": (*stop, command("rebuild", name), deploy) if _rebuilds(definition) else (),
        }
    )


def _rebuilds(definition: Definition) -> bool:
    """Whether a batch can compute its results up to a cut."""
    operator = logical.build(definition).operator
    return operator is not None and operator.recomputation.unit.why_no_cut is None


def execute(lake: Lake, plan: Plan, *, by: str) -> tuple[OrderOutcome, ...]:
    """Writes the orders of a plan. Executed twice, it changes nothing the second time.

    Args:
        lake: where.
        plan: made for this lake.
        by: who orders, in words.

    Returns:
        What the orders came to, by job.

    Raises:
        CheckpointError: if a pipeline needs a new epoch or is refused; then nothing is ordered.
        StalePlanError: if something else would become of a pipeline by now than the plan says, as where somebody has
            deployed or stopped it since. It is not planned again: nobody has seen that plan.
    """
    if plan.blocked:
        raise CheckpointError("\n".join([*map(refusal, plan.blocked), "Nothing was ordered."]))
    definitions = {name: definition_from_json(text) for name, text in plan.definitions.items()}
    context = look(lake, definitions.values())
    now = [decide(definition, context) for definition in definitions.values()]
    _refuse_stale(lake, plan, now)
    done: list[str] = []
    for job, desired in context.desired.items():
        if gone := [step.pipeline for step in now if job in step.leaves]:
            _stop(lake, job, gone, desired, by=by, done=done)
    ordered: list[OrderOutcome] = []
    for job in dict.fromkeys(step.job for step in now):
        mine = [step for step in now if step.job == job]
        ordered += _order(lake, job, mine, context.desired.get(job), definitions, by=by, done=done)
    return tuple(ordered)


def deploy_again(lake: Lake, *, by: str) -> tuple[OrderOutcome, ...]:
    """Orders again what has failed for good, with the definitions with which it was deployed.

    Raises:
        CheckpointError: as `execute`.
        StalePlanError: as `execute`.
    """
    failed = failed_generations(lake)
    running = [order for desired in orders.all_desired(lake).values() for order in desired.running.items()]
    return execute(lake, plan(lake, [order.parsed() for name, order in running if name in failed]), by=by)


def refusal(step: Step) -> str:
    """Why nothing is ordered for a pipeline, and what helps, in one line."""
    told = step.why.removeprefix(f"pipeline `{step.pipeline}`: ").rstrip(".")
    fields = (f"{each.field}: {each.why}" for each in step.changes if each.compatibility is not Compatibility.SAFE)
    told = f"pipeline `{step.pipeline}`: {'. '.join((told, *fields))}."
    if step.action is not Action.NEW_EPOCH:
        return told
    stop = "".join(f"`{command}`, " for command in step.commands[:-2])
    reset, deploy = step.commands[-2:]
    rebuild = ", ".join(f"`{command}`" for command in step.rebuild)
    instead = f" To swap in results that a batch has computed and compared: {rebuild}." if rebuild else ""
    return (
        f"{told} Running pipelines continue as they were deployed. Put the definition back, or begin a new epoch: "
        f"{stop}`{reset}` (or with `--keep-tables`: results so far stay, and it reads its source again from the "
        f"start), `{deploy}`.{instead}"
    )


def _refuse_stale(lake: Lake, plan: Plan, now: Iterable[Step]) -> None:
    if plan.lake != lake.uri:
        raise StalePlanError(f"the plan was made for {plan.lake}, not for {lake.uri}. Nothing was ordered.")
    planned = {step.pipeline: step for step in plan.steps}
    for step in now:
        before = planned[step.pipeline]
        # What runs by now as it was to run is no contradiction: another deploy, or this one a moment ago, was first.
        if step.action is not Action.UNCHANGED and _essence(step) != _essence(before):
            raise _stale(step.pipeline, f"{_in_words(before)}, and by now it would be {_in_words(step)}", [])


def _essence(step: Step) -> tuple[object, ...]:
    return step.action, step.job, step.generation, step.leaves


def _in_words(step: Step) -> str:
    generation = f", generation {step.generation}" if step.generation else ""
    return f"`{step.action}` ({step.why}{generation})"


def _stale(pipeline: str, what: str, done: Sequence[str]) -> StalePlanError:
    ordered = f"Ordered so far: {', '.join(done)}." if done else "Nothing was ordered."
    return StalePlanError(
        f"pipeline `{pipeline}`: the plan says {what}. Somebody has changed it since. {ordered} See what would be done "
        f"now: {command('plan', pipeline)}"
    )


def _stop(lake: Lake, job: str, names: Sequence[str], seen: DesiredState, *, by: str, done: list[str]) -> None:
    def after(newest: DesiredState) -> DesiredState:
        for name in names:
            if newest.pipelines.get(name) != seen.pipelines[name]:
                raise _stale(name, f"that it leaves job {job}, where other orders stand by now", done)
        return orders.stopped(newest, names, by)

    orders.change(lake, job, after)
    done += [f"{name} stops in job {job}" for name in names]


def _order(
    lake: Lake,
    job: str,
    steps: Sequence[Step],
    seen: DesiredState | None,
    definitions: Mapping[str, Definition],
    *,
    by: str,
    done: list[str],
) -> list[OrderOutcome]:
    def after(newest: DesiredState) -> DesiredState:
        pipelines = dict(newest.pipelines)
        for step in steps:
            name, definition = step.pipeline, definitions[step.pipeline]
            before = newest.pipelines.get(name)
            if before != (seen.pipelines.get(name) if seen else None):
                if before is None or before.state != "running" or not before.defines(definition):
                    raise _stale(name, f"`{step.action}` in job {job}, where another order stands by now", done)
                continue  # another deploy was first, with the same
            if step.action is not Action.UNCHANGED:
                pipelines[name] = Order(
                    state="running",
                    generation=step.generation,
                    definition=definition.to_json(),
                    ordered_at=datetime.now(UTC),
                    ordered_by=by,
                )
        return newest.model_copy(update={"pipelines": pipelines})

    before, newest = orders.change(lake, job, after)
    found = orders.outcome(before, newest, {step.pipeline for step in steps})
    done += [each.pipeline for each in found if each.changed]
    return found
