"""Desired state: which pipelines of a job are to run, with which definition. All that Airflow writes.

`_control/<job>/desired/<number>.json`, see `spark_jobs.lake.records`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import refuse_changed_definition
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.formats import Persisted
from spark_jobs.lake.records import Records, RecordTakenError
from spark_jobs.lake.reset import refuse_tables_of_others
from spark_jobs.spec import Definition, DefinitionError, definition_from_json, is_name

CONTROL = "_control"


class NotDeployedError(TidemarkError):
    """A pipeline that is to be stopped has never been deployed."""


class Order(BaseModel):
    """What is wanted of one pipeline.

    Attributes:
        state: whether it is to run.
        generation: grows with every order that means another start; 1 for the first.
        definition: as JSON: what runs is what was deployed, whatever has become of the file since.
        ordered_at: when.
        ordered_by: who, in words: a DAG run, or a person at the command line.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["running", "stopped"]
    generation: int
    definition: str
    ordered_at: datetime
    ordered_by: str

    def parsed(self) -> Definition:
        """The definition as a value."""
        return definition_from_json(self.definition)

    def defines(self, definition: Definition) -> bool:
        """Whether this definition was deployed, as a value; columns and measures in the same order."""
        try:
            return self.parsed().to_json() == definition.to_json()
        except DefinitionError:
            return False  # of another version of Tidemark, with fields that this one does not know


class Desired(Persisted):
    """What is wanted of a job.

    Attributes:
        job: its name.
        pipelines: name -> order; a pipeline that was stopped stays, so that it is known.
    """

    job: str
    pipelines: Mapping[str, Order] = {}

    @property
    def running(self) -> dict[str, Order]:
        """The pipelines that are to run."""
        return {name: order for name, order in self.pipelines.items() if order.state == "running"}


class Ordered(BaseModel):
    """What an order came to.

    Attributes:
        job: of the pipeline.
        pipeline: its name.
        generation: what the driver is to reach.
        changed: False where the job was to do so already: nothing was written.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    pipeline: str
    generation: int
    changed: bool


def records(lake: Lake, job: str) -> Records[Desired]:
    """The orders of a job."""
    return Records(lake, f"{CONTROL}/{job}/desired", Desired)


def jobs(lake: Lake) -> tuple[str, ...]:
    """Every job that was ever ordered, by name; what has no name of a job, which becomes a part of paths, is none."""
    prefixes = lake.store.list_with_delimiter(f"{CONTROL}/")["common_prefixes"]
    names = (prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)
    return tuple(sorted(name for name in names if is_name(name) and name != "probe"))


def all_desired(lake: Lake) -> dict[str, Desired]:
    """Job -> what is wanted of it."""
    found = {job: records(lake, job).newest()[1] for job in jobs(lake)}
    return {job: desired for job, desired in found.items() if desired is not None}


def deploy(
    lake: Lake, definitions: Sequence[Definition], *, by: str, failed: Mapping[str, int] | None = None
) -> tuple[Ordered, ...]:
    """Orders that pipelines run, each with its definition as it is now; what runs so already is left alone.

    Args:
        lake: where.
        definitions: what is to run.
        by: who orders, in words.
        failed: pipeline -> generation that has failed for good: the same definition is then ordered again.

    Raises:
        CheckpointError: if the checkpoint of one was made with another definition, or its table is another pipeline's;
            then nothing is ordered.
    """
    for definition in definitions:
        if refuse_changed_definition(lake, definition) is None:
            refuse_tables_of_others(lake, definition)
    names = {definition.name for definition in definitions}
    for job, desired in all_desired(lake).items():
        moved = [d.name for d in definitions if d.job != job and d.name in desired.running]
        if moved:
            _change(lake, job, lambda now, gone=moved: _stopped(now, gone, by))  # type: ignore[misc]
    ordered: list[Ordered] = []
    for job in dict.fromkeys(definition.job for definition in definitions):
        mine = [definition for definition in definitions if definition.job == job]
        before, after = _change(lake, job, lambda now, mine=mine: _running(now, mine, by, failed or {}))  # type: ignore[misc]
        ordered += _outcome(before, after, names)
    return tuple(ordered)


def stop(lake: Lake, names: Iterable[str], *, by: str) -> tuple[Ordered, ...]:
    """Orders that pipelines finish their batch and end.

    Raises:
        NotDeployedError: if one has never been deployed; then nothing is ordered.
    """
    wanted = list(dict.fromkeys(names))
    desired = all_desired(lake)
    unknown = [name for name in wanted if not any(name in job.pipelines for job in desired.values())]
    if unknown:
        known = sorted(name for job in desired.values() for name in job.pipelines)
        raise NotDeployedError(
            f"pipeline `{unknown[0]}` has not been deployed to {lake.uri}: there is nothing to stop. Nothing was "
            f"changed. Deployed: {', '.join(known) or 'none'}."
        )
    ordered: list[Ordered] = []
    for job, now in desired.items():
        mine = [name for name in wanted if name in now.pipelines]
        if mine:
            before, after = _change(lake, job, lambda newest, mine=mine: _stopped(newest, mine, by))  # type: ignore[misc]
            ordered += _outcome(before, after, set(mine))
    return tuple(ordered)


def deploy_again(lake: Lake, failed: Mapping[str, int], *, by: str) -> tuple[Ordered, ...]:
    """Orders anew what has failed for good, with the definitions with which it was deployed.

    Args:
        lake: where.
        failed: pipeline -> generation that has.
        by: who orders, in words.

    Raises:
        CheckpointError: as `deploy`.
    """
    running = [order for desired in all_desired(lake).values() for order in desired.running.items()]
    definitions = [order.parsed() for name, order in running if name in failed]
    return deploy(lake, definitions, by=by, failed=failed) if definitions else ()


@retry(
    retry=retry_if_exception_type(RecordTakenError),
    stop=stop_after_attempt(20),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    reraise=True,
)
def _change(lake: Lake, job: str, change: Callable[[Desired], Desired]) -> tuple[Desired, Desired]:
    orders = records(lake, job)
    number, found = orders.newest()
    before = found or Desired(job=job)
    after = change(before)
    if after != before:
        orders.append(number + 1, after)
    return before, after


def _running(now: Desired, definitions: Iterable[Definition], by: str, failed: Mapping[str, int]) -> Desired:
    orders = dict(now.pipelines)
    for definition in definitions:
        before = orders.get(definition.name)
        as_before = before is not None and before.state == "running" and before.defines(definition)
        if as_before and before is not None and failed.get(definition.name) != before.generation:
            continue
        orders[definition.name] = Order(
            state="running",
            generation=(before.generation if before else 0) + 1,
            definition=definition.to_json(),
            ordered_at=datetime.now(UTC),
            ordered_by=by,
        )
    return now.model_copy(update={"pipelines": orders})


def _stopped(now: Desired, names: Iterable[str], by: str) -> Desired:
    orders = dict(now.pipelines)
    for name in names:
        order = orders[name]
        if order.state == "running":
            changes = {"state": "stopped", "ordered_at": datetime.now(UTC), "ordered_by": by}
            orders[name] = order.model_copy(update=changes)
    return now.model_copy(update={"pipelines": orders})


def _outcome(before: Desired, after: Desired, names: set[str]) -> list[Ordered]:
    return [
        Ordered(job=after.job, pipeline=name, generation=order.generation, changed=before.pipelines.get(name) != order)
        for name, order in after.pipelines.items()
        if name in names
    ]
