"""A change of the number of partitions of a pipeline's state, as a checkpoint and the ledger show it.

Spark adds a batch to the checkpoint that reads nothing: `offsets/<N+1>` is `offsets/<N>` with another number,
`commits/<N+1>` names the state in its new partitions. After that the batch gets an entry in the ledger, as every batch
has one. Until both are there no stream starts: the command that has begun it finishes it.
"""

from dataclasses import dataclass

from spark_jobs.lake.checkpoints.changelogs import DamagedFileError
from spark_jobs.lake.checkpoints.contents import PARTITIONS, Checkpoint, Planned
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commands import command
from spark_jobs.lake.location import Lake


@dataclass(frozen=True)
class Rescaling:
    """A change of the number of partitions that was begun.

    Attributes:
        batch: that Spark has added for it.
        partitions: how many the state is to have.
        repartitioned: whether it has them, so that only the ledger lacks the batch.
    """

    batch: int
    partitions: int
    repartitioned: bool

    def finish(self, pipeline: str) -> str:
        """The command that finishes it."""
        return command("rescale", pipeline, "--partitions", str(self.partitions))


def is_rescaled(earlier: Planned, later: Planned) -> bool:
    """Whether a batch is the one that changes the number of partitions of what the one before it has left."""
    numbers = [each.settings.get(PARTITIONS) for each in (earlier, later)]
    if None in numbers or numbers[0] == numbers[1]:
        return False
    same = [(each.offsets, each.watermark_ms, each.planned_ms) for each in (earlier, later)]
    return same[0] == same[1]


def unfinished(lake: Lake, epoch: Epoch, written: int | None) -> Rescaling | None:
    """The change of the number of partitions that was begun and is not in the ledger; None: there is none.

    Args:
        lake: where.
        epoch: of the pipeline.
        written: the newest batch of the epoch in its result table.
    """
    newest = newest_batch(lake, epoch.folder, "offsets")
    if written is None or newest != written + 1:
        return None
    checkpoint = Checkpoint(lake, epoch)
    try:
        earlier, later = checkpoint.planned(written), checkpoint.planned(newest)
    except DamagedFileError:
        return None  # `checkpoints verify` says what is wrong
    if not is_rescaled(earlier, later):
        return None
    repartitioned = newest_batch(lake, epoch.folder, "commits") == newest
    return Rescaling(newest, int(later.settings[PARTITIONS]), repartitioned)
