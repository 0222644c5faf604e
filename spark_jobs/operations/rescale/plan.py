"""What a change of the number of state partitions will do, as a value; made without a JVM."""

from collections.abc import Sequence

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.claims import refuse_ended
from spark_jobs.lake.checkpoints.contents import PARTITIONS, Checkpoint
from spark_jobs.lake.checkpoints.continuity import refuse_torn_commits
from spark_jobs.lake.checkpoints.describing import state_files_of
from spark_jobs.lake.checkpoints.epochs import Epoch, begun_with, current_epoch, history_cut
from spark_jobs.lake.checkpoints.ownership import refuse_others
from spark_jobs.lake.checkpoints.rescaling import unfinished
from spark_jobs.lake.checkpoints.verifying import Fault, verify
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import newest_batch
from spark_jobs.lake.errors import CheckpointError, MissingTableError, TidemarkError
from spark_jobs.lake.tables.opening import exists
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.operations.words import counted
from spark_jobs.plan import logical
from spark_jobs.spec import DefinitionError, Pipeline


class RescaleRefusedError(TidemarkError):
    """The state of a pipeline cannot get another number of partitions as it is now."""


class RescalePlan(OperationPlan):
    """What a rescale will do.

    Attributes:
        definition: that the epoch began with.
        epoch: whose checkpoint is changed.
        last: the newest batch that the ledger has; what it has left is divided anew.
        before: into how many partitions its state is divided.
        partitions: how many are wanted.
        rows: in the state, by the ledger.
        bytes: of the files that tell it.
        begun: whether an earlier run has begun, which this one finishes.
        repartitioned: whether that one has got as far as the ledger.
    """

    definition: Pipeline
    epoch: Epoch
    last: int
    before: int
    partitions: int
    rows: int
    bytes: int
    begun: bool = False
    repartitioned: bool = False

    @property
    def batch(self) -> int:
        """The batch that is added to the checkpoint and to the ledger; it reads nothing."""
        return self.last + 1

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing has to be done; None: something has."""
        return f"its state has {counted(self.before, 'partition')} already" if self.before == self.partitions else None


def plan_rescale(lake: Lake, name: str, partitions: int) -> RescalePlan:
    """What a rescale will do; nothing is written.

    Args:
        lake: where.
        name: of a pipeline that has run there.
        partitions: how many its state is to have.

    Raises:
        MissingTableError: if the pipeline has not run on this lake.
        DefinitionError: if it has no state that can be divided, or no number of partitions is given.
        DeployError: if a driver runs it.
        RescaleRefusedError: if its last batch has not ended, or a rescale to another number was begun.
        CheckpointError: if checkpoint and tables do not fit, or files that the next start reads are not whole.
    """
    if partitions < 1:
        raise DefinitionError(f"--partitions: expected 1 or more, got {partitions}. Nothing was changed.")
    epoch = current_epoch(lake, name)
    if epoch is None:
        raise MissingTableError(
            f"pipeline `{name}` has not run on {lake.uri} yet: there is no state. Nothing was changed. Its first batch "
            f"takes the number of partitions from TIDEMARK_SHUFFLE_PARTITIONS. Start it: {command('run', name)}"
        )
    definition = _stateful(epoch)
    refuse_deployed(lake, [name])
    _refuse_unready(lake, definition, epoch)
    checkpoint = Checkpoint(lake, epoch)
    found = newest_batch(lake, definition.sink.table, name, epoch.number) if _has_table(lake, definition) else None
    begun = unfinished(lake, epoch, found[0] if found is not None else None)
    if begun is not None and begun.partitions != partitions:
        raise RescaleRefusedError(
            f"pipeline `{name}`: a rescale to {counted(begun.partitions, 'partition')} was begun (batch {begun.batch}) "
            f"and has not ended. Nothing was changed now. Finish it first: {begun.finish(name)}"
        )
    faults = verify(checkpoint, definition)
    if begun is None:
        _refuse_unended(checkpoint)
    # Of one that was begun the checkpoint as a whole is not fit for a start, which is why it is finished here.
    _refuse_faults(name, [fault for fault in faults if fault.stops and (fault.path or begun is None)])
    assert found is not None  # else a batch of the checkpoint would be missing in the table, which is a fault
    last, entry = found
    before = int(checkpoint.planned(last).settings[PARTITIONS])
    files = state_files_of(checkpoint, last)
    return RescalePlan(
        pipeline=name,
        definition=definition,
        epoch=epoch,
        last=last,
        before=before,
        partitions=partitions,
        rows=entry["state_rows"],
        bytes=sum(checkpoint.files[path].size for path in files if path in checkpoint.files),
        begun=begun is not None,
        repartitioned=begun is not None and begun.repartitioned,
    )


def _stateful(epoch: Epoch) -> Pipeline:
    """The definition that an epoch began with, which remembers something that can be divided."""
    definition = begun_with(epoch)
    operator = logical.build(definition).operator
    if not isinstance(definition, Pipeline) or operator is None or not operator.state.operators:
        raise DefinitionError(
            f"pipeline `{epoch.pipeline}`: no step of it remembers events, so it has no state to divide. Nothing was "
            "changed."
        )
    if operator.state.in_one_partition:
        raise DefinitionError(
            f"pipeline `{epoch.pipeline}`: its state is one row, the total of all events, and stays in one partition "
            "whatever the number is. Nothing was changed."
        )
    return definition


def _has_table(lake: Lake, definition: Pipeline) -> bool:
    return exists(lake, definition.sink.table)


def _refuse_unready(lake: Lake, definition: Pipeline, epoch: Epoch) -> None:
    """Refuses where a start would be, by another command that was interrupted or by a loss of power."""
    refuse_others(lake, definition)
    if _has_table(lake, definition):
        refuse_ended(lake, epoch, definition.sink.table)
    refuse_torn_commits(lake, definition, epoch)
    if history_cut(lake, epoch) is not None:
        raise RescaleRefusedError(
            f"pipeline `{definition.name}`: the history of its epoch {epoch.number} is still to be computed. Nothing "
            f"was changed. First run: {command('bootstrap', definition.name)}"
        )


def _refuse_unended(checkpoint: Checkpoint) -> None:
    """Refuses a checkpoint whose newest batch was planned and has not ended, or that has none."""
    name = checkpoint.epoch.pipeline
    planned, ended = (max(checkpoint.batches(log), default=None) for log in ("offsets", "commits"))
    if planned is None:
        raise RescaleRefusedError(
            f"pipeline `{name}`: epoch {checkpoint.epoch.number} has run no batch yet, so there is no state. Nothing "
            "was changed. Its first batch takes the number of partitions from TIDEMARK_SHUFFLE_PARTITIONS."
        )
    if planned != ended:
        raise RescaleRefusedError(
            f"pipeline `{name}`: batch {planned} was planned and has not ended: it still belongs to the state as it is "
            f"divided now. Nothing was changed. Run it to its end first: {command('run', name, '--until-caught-up')}"
        )


def _refuse_faults(name: str, faults: Sequence[Fault]) -> None:
    """Refuses a checkpoint of which something is missing: a rescale that begins on it could not be finished."""
    if faults:
        more = f" (and {len(faults) - 1} more: {command('checkpoints', 'verify', name)})" if len(faults) > 1 else ""
        raise CheckpointError(f"pipeline `{name}`: its checkpoint is not whole: {faults[0]}{more} Nothing was changed.")
