"""A copy of what tells the state of a batch: of a running query files vanish while somebody reads them."""

from pathlib import Path

from spark_jobs.lake.checkpoints.changelogs import DamagedFileError
from spark_jobs.lake.checkpoints.contents import Checkpoint, named_here
from spark_jobs.lake.checkpoints.describing import batch_of
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.location import Lake

_TRIES = 5
"""So often a query that runs may have removed what was listed a moment ago."""


def copy_batch(lake: Lake, epoch: Epoch, folder: Path, *, at: int | None = None) -> tuple[Checkpoint, int]:
    """Copies all that tells the state as a batch has left it; the checkpoint is only read.

    Args:
        lake: where.
        epoch: whose checkpoint.
        folder: of this machine, empty.
        at: the batch; None: the newest that has ended, and where its files vanish, the next one.

    Returns:
        The checkpoint as it was listed, and the batch.

    Raises:
        MissingTableError: if no batch has ended, or not that one.
        CheckpointError: if its files are not all there, or not whole.
    """
    why = ""
    for _ in range(_TRIES):
        checkpoint = Checkpoint(lake, epoch)
        batch = batch_of(checkpoint, at)
        if batch is None:
            raise MissingTableError(
                f"pipeline `{epoch.pipeline}`: no batch of epoch {epoch.number} has ended, so there is no state yet. "
                f"Nothing was read. Start it: {command('run', epoch.pipeline)}"
            )
        try:
            _copy(checkpoint, checkpoint.needed(batch), folder)
        except DamagedFileError as error:
            why = str(error)
            continue
        return checkpoint, batch
    raise CheckpointError(
        f"pipeline `{epoch.pipeline}`: the state of batch {batch} cannot be read: {why}. Nothing was changed. See what "
        f"is wrong: {command('checkpoints', 'verify', epoch.pipeline)}"
    )


def _copy(checkpoint: Checkpoint, paths: tuple[str, ...], folder: Path) -> None:
    for path in paths:
        if (content := checkpoint.read(path)) is None:
            raise DamagedFileError(f"{path} is missing")
        to = folder / path
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(named_here(path, content, str(folder)))
