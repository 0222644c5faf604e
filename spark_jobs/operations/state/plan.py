"""Which state is read, and whether there is any."""

from dataclasses import dataclass

from spark_jobs.lake.checkpoints.epochs import Epoch, begun_with, current_epoch
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.plan import logical
from spark_jobs.spec import DefinitionError, Pipeline


@dataclass(frozen=True)
class StateRequest:
    """What somebody wants to see of a pipeline's state.

    Attributes:
        pipeline: as its epoch began.
        epoch: whose checkpoint is read.
        keys: column -> value as text: only such rows.
        open_windows: only windows that the watermark has not reached.
        at: a batch that has ended; None: the newest.
        limit: so many rows of each store at most.
    """

    pipeline: Pipeline
    epoch: Epoch
    keys: tuple[tuple[str, str], ...]
    open_windows: bool
    at: int | None
    limit: int


def plan_state(
    lake: Lake, name: str, *, keys: tuple[str, ...], open_windows: bool, at: int | None, limit: int
) -> StateRequest:
    """What is read, from what somebody typed.

    Args:
        lake: where.
        name: of a pipeline.
        keys: such as `store=Berlin`.
        open_windows: as `StateRequest`.
        at: as `StateRequest`.
        limit: as `StateRequest`.

    Raises:
        MissingTableError: if the pipeline has not run.
        DefinitionError: if it remembers nothing, or the words cannot be used.
    """
    epoch = current_epoch(lake, name)
    if epoch is None:
        raise MissingTableError(
            f"pipeline `{name}` has not run on {lake.uri} yet. Nothing was read. Start it: {command('run', name)}"
        )
    definition = begun_with(epoch)
    operator = logical.build(definition).operator
    if not isinstance(definition, Pipeline) or operator is None or not operator.state.operators:
        raise DefinitionError(f"pipeline `{name}`: no step of it remembers events, so it has no state to show.")
    if other := next((key for key in keys if "=" not in key), None):
        raise DefinitionError(f"--key: expected COLUMN=VALUE, got {other!r}. Nothing was read.")
    pairs = tuple((column, value) for column, _, value in (key.partition("=") for key in keys))
    return StateRequest(definition, epoch, pairs, open_windows, at, limit)
