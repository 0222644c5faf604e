"""Which epochs an epoch goes on: a restore begins a new one, and what was counted before it still counts.

The commits and the rows of all of them are looked at together. What the restore has taken back is in the logs of the
tables for ever, and counts no more.
"""

from dataclasses import dataclass

from spark_jobs.lake.checkpoints.epochs import Epoch, Jump, Restored, epoch_at
from spark_jobs.lake.location import Lake


@dataclass(frozen=True)
class Lineage:
    """An epoch and those that it goes on.

    Attributes:
        epochs: their numbers, the oldest first.
        restores: how each of them but the oldest began.
    """

    epochs: tuple[int, ...]
    restores: tuple[Restored, ...] = ()

    def has(self, epoch: int, batch: int) -> bool:
        """Whether a batch counts."""
        last = {each.epoch: each.batch for each in self.restores}
        return epoch in self.epochs and batch <= last.get(epoch, batch)

    def undone(self, table: str, version: int) -> bool:
        """Whether a restore has taken a commit of a table back."""
        spans = (each.tables[table] for each in self.restores if table in each.tables)
        return any(span.has(version) for span in spans)

    def counts(self, table: str, version: int, epoch: int) -> bool:
        """Whether a commit of a table that names an epoch counts."""
        return epoch in self.epochs and not self.undone(table, version)

    def jumps(self, table: str) -> tuple[Jump, ...]:
        """Where streams of these epochs went on in a source table that was put back, the oldest first."""
        return tuple(each.sources[table] for each in self.restores if table in each.sources)

    @property
    def rows(self) -> str:
        """Of rows that say which epoch set them aside, those that count; as SQL."""
        return f"_epoch IN ({', '.join(map(str, self.epochs))})"


def lineage(lake: Lake, pipeline: str, number: int) -> Lineage:
    """Which epochs an epoch of a pipeline goes on.

    Args:
        lake: where.
        pipeline: its name.
        number: of the epoch.
    """
    epoch = epoch_at(lake, pipeline, number)
    return Lineage((number,)) if epoch is None else lineage_of(lake, epoch)


def lineage_of(lake: Lake, epoch: Epoch) -> Lineage:
    """The same of an epoch that is at hand."""
    epochs, restores = [epoch.number], []
    before: Epoch | None = epoch
    while before is not None and before.restored is not None:
        restores.append(before.restored)
        epochs.append(before.restored.epoch)
        before = epoch_at(lake, before.pipeline, before.restored.epoch)
    return Lineage(tuple(reversed(epochs)), tuple(reversed(restores)))
