"""What becomes of shadows, as values; nothing is written here, and no JVM is started."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired import deployment, orders
from spark_jobs.control.desired.deployment import Action, Plan
from spark_jobs.control.desired.orders import Order
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.claims import refuse_ended
from spark_jobs.lake.checkpoints.epochs import Epoch, begun_with, current_epoch
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.basis import OutdatedPlanError
from spark_jobs.lake.errors import CheckpointError, TidemarkError
from spark_jobs.lake.tables.opening import exists
from spark_jobs.lake.tables.watermarks import passed
from spark_jobs.operations.bootstrap.plan import refuse_unsuitable
from spark_jobs.operations.rebuild.plan import plan_rebuild, unfinished
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.plan.changes import gives_other_rows, needs_new_epoch
from spark_jobs.spec import Definition, DefinitionError, Pipeline
from spark_jobs.spec.shadows import shadow, shadow_of
from spark_jobs.spec.sources import SHADOW

TO_PROMOTE = ", to promote its shadow"
"""At the end of who has stopped a pipeline: a promotion that was interrupted deploys it again all the same."""


class ShadowError(TidemarkError):
    """A shadow cannot be begun, compared or promoted."""


@dataclass(frozen=True)
class Known:
    """What a lake knows of a pipeline.

    Attributes:
        name: of it.
        order: the one that counts, of whatever job; None: it was never deployed.
        epoch: the current one of its checkpoint; None: it has not run.
        definition: that was deployed last, else that it has run with.
    """

    name: str
    order: Order | None
    epoch: Epoch | None
    definition: Definition

    @property
    def runs(self) -> bool:
        """Whether it is to run."""
        return self.order is not None and self.order.state == "running"


def known(lake: Lake, name: str) -> Known | None:
    """What a lake knows of a pipeline; None: nothing, it has neither run nor been deployed.

    Raises:
        CheckpointError: if this version cannot read the definition that it has run with.
        DefinitionError: if this version cannot read the one that was deployed.
    """
    found = [job.pipelines[name] for job in orders.all_desired(lake).values() if name in job.pipelines]
    # Of one that has moved to another job, the job that it left has an order, too.
    order = max(found, key=lambda each: (each.state == "running", each.ordered_at), default=None)
    epoch = current_epoch(lake, name)
    if order is not None:
        return Known(name, order, epoch, order.parsed())
    return Known(name, None, epoch, begun_with(epoch)) if epoch is not None else None


def standing(lake: Lake, name: str) -> Known:
    """The shadow of a pipeline.

    Args:
        lake: where.
        name: of the pipeline.

    Raises:
        ShadowError: if it has none. A dropped one is none, whatever is left of its orders.
    """
    found = known(lake, name + SHADOW)
    if found is None or not (found.runs or found.epoch is not None):
        raise ShadowError(
            f"pipeline `{name}`: no shadow of it runs on {lake.uri}, or has run. Nothing was changed. Begin one with "
            f"its definition as it is now: {command('deploy', name, '--mode', 'shadow')}"
        )
    return found


class Seen(BaseModel):
    """A pipeline as a plan has found it.

    Attributes:
        pipeline: its name.
        generation: of its order, which grows with each that means another start; 0: it was never deployed.
        definition: as JSON.
        epoch: of its checkpoint; None: it has not run.
        begun_at: when that epoch began.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    generation: int
    definition: str
    epoch: int | None
    begun_at: datetime | None

    @classmethod
    def of(cls, found: Known) -> "Seen":
        """By what a lake knows of it."""
        return cls(
            pipeline=found.name,
            generation=found.order.generation if found.order is not None else 0,
            definition=found.definition.to_json(),
            epoch=found.epoch.number if found.epoch is not None else None,
            begun_at=found.epoch.begun_at if found.epoch is not None else None,
        )

    def refuse_other(self, lake: Lake) -> None:
        """Looks whether the pipeline is what the plan has found; whether it runs does not matter.

        Raises:
            OutdatedPlanError: if it is not.
        """
        found = known(lake, self.pipeline)
        now = Seen.of(found) if found is not None else None
        if now == self:
            return
        if now is None or now.epoch is None:
            what = "it is not there any more"
        elif (now.generation, now.definition) != (self.generation, self.definition):
            what = f"it was deployed again since (generation {now.generation} of its order, {self.generation} then)"
        else:
            what = f"epoch {now.epoch} of it has begun since"
        name = shadow_of(self.pipeline) or self.pipeline
        raise OutdatedPlanError(
            f"pipeline `{self.pipeline}`: what was planned does not hold any more: {what}. Nothing was changed. Look "
            f"again, and decide anew: {command('shadow', name)}"
        )


def plan_shadows(lake: Lake, definitions: Iterable[Definition]) -> tuple[Plan, tuple[str, ...]]:
    """The deploy of the shadows of pipelines whose definitions differ from those that run.

    Args:
        lake: where.
        definitions: of the pipelines, as they are to be tried.

    Returns:
        The plan, and what is to be said of each.

    Raises:
        ShadowError: if one cannot have a shadow, or its shadow runs another version that its checkpoint does not take.
        DefinitionError: if the name of one is too long.
    """
    shadows, said = [], []
    for definition in definitions:
        if not isinstance(definition, Pipeline):
            raise ShadowError(
                f"pipeline `{definition.name}` is an ingest: a second one would take its files or messages again, into "
                "a bronze that no pipeline reads. Nothing was ordered. Try its rules on bronze: "
                f"{command('check', definition.name)}"
            )
        if _runs_so(lake, definition):
            said.append(f"{definition.name}: already runs this way, there is nothing to try.")
            continue
        shadows.append(shadow(definition))
        said.append(_beside(definition, shadows[-1]))
    planned = deployment.plan(lake, shadows)
    for step in planned.steps:
        if step.action is Action.NEW_EPOCH:
            name = shadow_of(step.pipeline) or step.pipeline
            fields = ", ".join(change.field for change in step.changes)
            raise ShadowError(
                f"pipeline `{name}`: a shadow of it runs another version ({fields}), and its checkpoint does not take "
                f"this one. Nothing was ordered. Drop that one, then begin again: "
                f"{command('shadow', name, '--drop')}, {command('deploy', name, '--mode', 'shadow')}"
            )
    return planned, tuple(said)


def _runs_so(lake: Lake, definition: Pipeline) -> bool:
    try:
        found = known(lake, definition.name)
    except DefinitionError:
        return False  # another version of Tidemark has deployed it: it differs
    if found is None or found.epoch is None:
        raise ShadowError(
            f"pipeline `{definition.name}`: has not run on {lake.uri}: there is nothing beside which a shadow could "
            f"run. Nothing was ordered. Deploy it: {command('deploy', definition.name)}"
        )
    return found.definition.to_json() == definition.to_json()


def _beside(definition: Pipeline, its: Pipeline) -> str:
    told = f"{definition.name}: goes on as it is; {its.name} runs beside it into {its.sink.table}."
    if (why := _why_not_promoted(definition)) is None:
        return told
    return f"{told} It can be compared and dropped, not promoted: {why}"


def _why_not_promoted(definition: Pipeline) -> str | None:
    try:
        refuse_unsuitable(definition)
    except TidemarkError as error:
        return str(error).partition(": ")[2].partition(". Nothing")[0] + "."
    return None


class DropPlan(OperationPlan):
    """What dropping a shadow does.

    Attributes:
        shadow: its name.
        results: its tables, each with those beside it.
        runs: whether it is to run so far.
        seen: the shadow that it is about: another one may have its name by the time that this is carried out.
    """

    shadow: str
    results: tuple[str, ...]
    runs: bool
    seen: Seen


def plan_drop(lake: Lake, name: str) -> DropPlan:
    """What dropping the shadow of a pipeline does.

    Raises:
        ShadowError: if it has none.
    """
    found = standing(lake, name)
    results = {found.definition.sink.table}
    if found.epoch is not None:
        results.add(begun_with(found.epoch).sink.table)
    return DropPlan(
        pipeline=name, shadow=found.name, results=tuple(sorted(results)), runs=found.runs, seen=Seen.of(found)
    )


class Passed(BaseModel):
    """Up to where a pipeline and its shadow have closed windows.

    Attributes:
        pipeline: Spark's watermark of it; None: it has none yet.
        shadow: likewise.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: datetime | None
    shadow: datetime | None

    @classmethod
    def of(cls, lake: Lake, name: str) -> "Passed":
        """By the table of watermarks."""
        found = passed(lake)
        return cls(pipeline=found.get(name), shadow=found.get(name + SHADOW))

    @property
    def both(self) -> datetime | None:
        """Up to where both have; None: one of them has passed nothing."""
        return None if self.pipeline is None or self.shadow is None else min(self.pipeline, self.shadow)

    @property
    def text(self) -> str:
        """Which has passed what."""
        of = (("the version that runs", self.pipeline), ("the shadow", self.shadow))
        return ", ".join(f"{what}: {at:%Y-%m-%d %H:%M:%S} UTC" if at else f"{what}: none yet" for what, at in of)


class PromotionPlan(OperationPlan):
    """What promoting a shadow does.

    Attributes:
        drop: what becomes of the shadow at the end.
        swaps: whether the results of the new definition take the place of those before.
        carries_on: whether they have, and the history of the new epoch is still to be computed.
        deploys: whether the pipeline is deployed then.
        definition: of the pipeline, as JSON, which takes the place of the one before.
        seen: the pipeline.
    """

    drop: DropPlan
    swaps: bool
    carries_on: bool
    deploys: bool
    definition: str
    seen: Seen

    def refuse_outdated(self, lake: Lake, definition: Definition) -> None:
        """Looks whether all is as it was planned.

        Args:
            lake: where.
            definition: that is about to take the place of the one before.

        Raises:
            OutdatedPlanError: if it is not.
        """
        self.drop.seen.refuse_other(lake)
        self.seen.refuse_other(lake)
        if definition.to_json() != self.definition:
            raise OutdatedPlanError(
                f"pipeline `{self.pipeline}`: what was planned does not hold any more: its definition has changed "
                f"since. Nothing was changed. Put back the one that was tried, and decide anew: "
                f"{command('shadow', self.pipeline)}"
            )


def _is_ended(lake: Lake, epoch: Epoch) -> bool:
    """Whether an interrupted swap has ended an epoch, and taken its watermark back: both had passed one before."""
    table = begun_with(epoch).sink.table
    try:
        if exists(lake, table):
            refuse_ended(lake, epoch, table)
    except CheckpointError:
        return True
    return False


def plan_promotion(lake: Lake, definition: Definition) -> PromotionPlan:
    """What promoting the shadow of a pipeline does.

    Args:
        lake: where.
        definition: of the pipeline, as it is now; the one that its shadow runs.

    Raises:
        ShadowError: if it has no shadow, that runs another version, or one of the two has passed no watermark.
        BootstrapRefusedError: if results of such a pipeline cannot be swapped, as `plan_rebuild`.
        DefinitionError: as `plan_rebuild`.
    """
    name = definition.name
    drop, its = plan_drop(lake, name), standing(lake, name)
    if not isinstance(definition, Pipeline) or shadow(definition).to_json() != its.definition.to_json():
        raise ShadowError(
            f"pipeline `{name}`: its shadow runs another version than its definition is now. Nothing was changed. Put "
            f"the definition back that was tried, or try this one first: {command('shadow', name, '--drop')}, "
            f"{command('deploy', name, '--mode', 'shadow')}"
        )
    beside = known(lake, name)
    if beside is None or beside.epoch is None:
        raise ShadowError(f"pipeline `{name}`: has no checkpoint on {lake.uri}. Nothing was changed.")
    runs = begun_with(beside.epoch)
    swaps = bool(needs_new_epoch(runs, definition))
    if not swaps and gives_other_rows(runs, definition):
        raise ShadowError(
            f"pipeline `{name}`: the version of its processor was raised. Its shadow has the rows of that version from "
            "the first event on; a deploy goes on from what the version before has kept, and its rows stay. Nothing "
            f"was changed. Drop it, then deploy: {command('shadow', name, '--drop')}, {command('deploy', name)}"
        )
    carries_on = not swaps and unfinished(lake, definition) is not None
    if swaps:
        if (found := Passed.of(lake, name)).both is None and not _is_ended(lake, beside.epoch):
            raise ShadowError(
                f"pipeline `{name}`: nothing of it and its shadow can be compared before both have passed a watermark "
                f"({found.text}). Nothing was changed. Wait, then look: {command('shadow', name)}"
            )
        plan_rebuild(lake, definition)  # what it refuses is refused before anything is stopped
    return PromotionPlan(
        pipeline=name,
        drop=drop,
        swaps=swaps,
        carries_on=carries_on,
        deploys=beside.runs or (beside.order is not None and beside.order.ordered_by.endswith(TO_PROMOTE)),
        definition=definition.to_json(),
        seen=Seen.of(beside),
    )
