"""Desired state: which pipelines of a job are to run, with which definition. All that Airflow writes.

`_control/<job>/desired/<number>.json`, see `spark_jobs.lake.store.records`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError
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


class DesiredState(PersistedValue):
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


class OrderOutcome(BaseModel):
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


def records(lake: Lake, job: str) -> Records[DesiredState]:
    """The orders of a job."""
    return Records(lake, f"{CONTROL}/{job}/desired", DesiredState)


def jobs(lake: Lake) -> tuple[str, ...]:
    """Every job that was ever ordered, by name; what has no name of a job, which becomes a part of paths, is none."""
    prefixes = lake.store.list_with_delimiter(f"{CONTROL}/")["common_prefixes"]
    names = (prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)
    return tuple(sorted(name for name in names if is_name(name) and name != "probe"))


def all_desired(lake: Lake) -> dict[str, DesiredState]:
    """Job -> what is wanted of it."""
    found = {job: records(lake, job).newest()[1] for job in jobs(lake)}
    return {job: desired for job, desired in found.items() if desired is not None}


def stop(lake: Lake, names: Iterable[str], *, by: str) -> tuple[OrderOutcome, ...]:
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
    ordered: list[OrderOutcome] = []
    for job, now in desired.items():
        mine = [name for name in wanted if name in now.pipelines]
        if mine:
            before, after = change(lake, job, lambda newest, mine=mine: stopped(newest, mine, by))  # type: ignore[misc]
            ordered += outcome(before, after, set(mine))
    return tuple(ordered)


@retry(
    retry=retry_if_exception_type(RecordTakenError),
    stop=stop_after_attempt(20),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    reraise=True,
)
def change(lake: Lake, job: str, change: Callable[[DesiredState], DesiredState]) -> tuple[DesiredState, DesiredState]:
    """Changes what is wanted of a job; if somebody else does so at the same time, from what they have left.

    Args:
        lake: where.
        job: its name.
        change: what is wanted -> what is wanted instead; what it raises leaves all as it is.

    Returns:
        What was wanted before, and what is now.
    """
    kept = records(lake, job)
    number, found = kept.newest()
    before = found or DesiredState(job=job)
    after = change(before)
    if after != before:
        kept.append(number + 1, after)
    return before, after


def stopped(now: DesiredState, names: Iterable[str], by: str) -> DesiredState:
    """What is wanted, less these pipelines, which are to end."""
    orders = dict(now.pipelines)
    for name in names:
        order = orders[name]
        if order.state == "running":
            changes = {"state": "stopped", "ordered_at": datetime.now(UTC), "ordered_by": by}
            orders[name] = order.model_copy(update=changes)
    return now.model_copy(update={"pipelines": orders})


def outcome(before: DesiredState, after: DesiredState, names: set[str]) -> list[OrderOutcome]:
    """What orders for these pipelines came to."""
    return [
        OrderOutcome(
            job=after.job, pipeline=name, generation=order.generation, changed=before.pipelines.get(name) != order
        )
        for name, order in after.pipelines.items()
        if name in names
    ]
