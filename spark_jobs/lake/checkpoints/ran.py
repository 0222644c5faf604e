"""Which pipelines have run on a lake, and what each is: its checkpoints know, whether a file is registered or not."""

from collections.abc import Iterable
from dataclasses import dataclass

from spark_jobs.lake.checkpoints import spark_log
from spark_jobs.lake.checkpoints.epochs import begun_with, current_epoch, current_epochs
from spark_jobs.lake.commit_records.history import newest_batch
from spark_jobs.lake.errors import CheckpointError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import exists
from spark_jobs.spec import Definition, is_name


@dataclass(frozen=True)
class Ran:
    """Pipelines that have run on a lake.

    Attributes:
        definitions: by name: as they are registered, else as their epoch began.
        unreadable: pipeline -> why nobody can say what it is; whoever goes through all of them has to say so.
    """

    definitions: tuple[Definition, ...] = ()
    unreadable: tuple[tuple[str, CheckpointError], ...] = ()

    def all_or_none(self) -> tuple[Definition, ...]:
        """The definitions.

        Raises:
            CheckpointError: if one of them cannot be read.
        """
        for _, error in self.unreadable:
            raise error
        return self.definitions


def that_have_run(lake: Lake, registered: Iterable[Definition]) -> Ran:
    """The pipelines that have begun an epoch on a lake.

    Args:
        lake: where.
        registered: definitions of now; others of the lake were run from a file, or their file is gone.
    """
    known, definitions, unreadable = {each.name: each for each in registered}, [], []
    for name, epoch in current_epochs(lake).items():
        try:
            definitions.append(known.get(name) or begun_with(epoch))
        except CheckpointError as error:
            unreadable.append((name, error))
    return Ran(tuple(definitions), tuple(unreadable))


def as_it_began(lake: Lake, name: str) -> Definition | None:
    """What a pipeline is that is registered nowhere, by its checkpoint; None: it has not run on this lake.

    Raises:
        CheckpointError: if this version cannot read its definition.
    """
    epoch = current_epoch(lake, name) if is_name(name) else None
    return begun_with(epoch) if epoch is not None else None


def has_finished_a_batch(lake: Lake, definition: Definition) -> bool:
    """Whether the current epoch of a pipeline has committed a batch, also where its table is gone."""
    table, epoch = definition.sink.table, current_epoch(lake, definition.name)
    if epoch is None:
        return False
    if not exists(lake, table):
        return spark_log.newest_batch(lake, epoch.folder, "commits") is not None
    return newest_batch(lake, table, definition.name, epoch.number) is not None
