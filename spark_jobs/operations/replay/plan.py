"""What a replay of an ingest's quarantine will do, as a value; made without a JVM."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.replays import Replay, open_replay
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.checkpoints.spark_log import query_id
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.quarantine import (
    QuarantineError,
    ReplayScope,
    Selection,
    selected,
    table_of,
)
from spark_jobs.plan.changes import needs_new_epoch
from spark_jobs.spec import Definition, Ingest, definition_from_json


class ReplayRefusedError(QuarantineError):
    """An ingest whose quarantine cannot be replayed now."""


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay will do.

    Attributes:
        ingest: as it is now, reading where its checkpoint reads.
        epoch: of its checkpoint.
        selection: what was asked for.
        found: what there is of it.
        table_id: of the quarantine where it was found.
        unfinished: a replay that has begun and not ended, which is carried out first; None: there is none.
    """

    ingest: Ingest
    epoch: Epoch
    selection: Selection
    found: ReplayScope
    table_id: str
    unfinished: Replay | None = None

    @property
    def pipeline(self) -> str:
        """The name of the ingest whose quarantine it is."""
        return self.ingest.name

    @property
    def notices(self) -> Sequence[str]:
        """The replay that has begun before and is carried out first."""
        if self.unfinished is None:
            return ()
        return (f"{self.unfinished.run} has begun and not ended; it is carried out to its end first.",)

    @property
    def nothing_to_do(self) -> str | None:
        """Why no row has to be read; None: some have."""
        if self.found.rows or self.unfinished is not None:
            return None
        return "no row of this kind is in the quarantine"


def plan_replay(lake: Lake, definition: Definition, selection: Selection, *, after_another: bool = False) -> ReplayPlan:
    """What a replay would read; nothing is written, and no JVM is started.

    Args:
        lake: where.
        definition: of the ingest.
        selection: what somebody wants to have replayed.
        after_another: a replay that had not ended was carried out for the same command: of a reason that is named
            there may be no row any more.

    Raises:
        ReplayRefusedError: if it is no ingest.
        QuarantineError: if a reason is named of which no row can be replayed.
        CheckpointError: if the checkpoint was made with another definition.
        MissingTableError: if the ingest has not run here.
    """
    if not isinstance(definition, Ingest):
        raise ReplayRefusedError(f"pipeline `{definition.name}`: expected an ingest. Nothing was replayed.")
    epoch = current_epoch(lake, definition.name)
    if epoch is None or query_id(lake, epoch.folder) is None:
        raise MissingTableError(
            f"ingest `{definition.name}` has not run on {lake.uri} in this epoch: nothing can be replayed yet. Start "
            f"it: {command('run', definition.name)}"
        )
    began_with = definition_from_json(epoch.definition)
    changed = ", ".join(field for field in needs_new_epoch(began_with, definition) if field != "source")
    if changed:
        raise CheckpointError(
            f"ingest `{definition.name}`: its definition has changed ({changed}) since epoch {epoch.number} began. "
            f"Nothing was replayed. Begin an epoch with it first: "
            f"{command('reset', definition.name, '--keep-tables')}, then "
            f"{command('run', definition.name)}; then replay with --earlier-epochs."
        )
    # It may have been started with --from.
    ingest = definition.model_copy(update={"source": began_with.source})
    # Also one that has not ended may have taken its rows out of the quarantine: the same command ends it.
    unfinished = open_replay(lake, definition.name)
    may_be_gone = after_another or unfinished is not None
    table_id = str(open_table(lake, table_of(lake, ingest)).metadata().id)
    found = selected(lake, ingest, epoch.number, selection, may_be_gone=may_be_gone)
    return ReplayPlan(ingest, epoch, selection, found, table_id, unfinished)
