"""Who still needs which versions of a table: streams that read it, plans that look columns up in it, and replays of a
quarantine that have not ended."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_jobs.lake.accounting.replays import open_replay
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epochs, running_definitions, starts_of
from spark_jobs.lake.checkpoints.offsets import table_read
from spark_jobs.lake.checkpoints.savepoints import pins
from spark_jobs.lake.checkpoints.spark_log import place
from spark_jobs.lake.commit_records.history import newest_batch, newest_ledger_rows
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.plan import logical as plan
from spark_jobs.plan.tables import beside
from spark_jobs.spec import Definition, Pipeline


@dataclass(frozen=True)
class Need:
    """A version of a table that must stay readable.

    Attributes:
        version: this one and all that came after it.
        reader: the pipeline, or the savepoint, that needs it.
    """

    version: int
    reader: str


def needs(lake: Lake) -> Mapping[str, Need]:
    """Table -> the oldest version that a pipeline needs of it: where its newest batch but one ended.

    The newest may have to run again, as after a crash. What a savepoint names is needed until it is dropped.
    """
    found: dict[str, Need] = {}
    known = running_definitions(lake)
    for name, epoch in current_epochs(lake).items():
        # Of one that this version cannot read nobody knows how far it is: it keeps what it has begun with.
        needed = _needed(lake, name, *known[name]) if name in known else _begun_at(lake, epoch)
        for table, version in needed.items():
            if table not in found or version < found[table].version:
                found[table] = Need(version, name)
    for table, version, savepoint in pins(lake):
        if table not in found or version < found[table].version:
            found[table] = Need(version, f"savepoint {savepoint.name} of {savepoint.pipeline}")
    return found


def _begun_at(lake: Lake, epoch: Epoch) -> dict[str, int]:
    starts = starts_of(lake, epoch)
    return dict(starts.versions) if starts else {}


def _needed(lake: Lake, name: str, epoch: Epoch, definition: Definition) -> dict[str, int]:
    versions = _begun_at(lake, epoch)
    if not isinstance(definition, Pipeline) and (replay := open_replay(lake, name)) is not None:
        versions[beside(definition.sink.table, "quarantine")] = replay.version
    if not definition.read_tables:
        return versions
    try:
        rows = newest_ledger_rows(lake, definition.sink.table, name, epoch.number, 2)
        if not rows and (newest := newest_batch(lake, definition.sink.table, name, epoch.number)):
            rows = [newest]
    except MissingTableError:
        return versions
    if len(rows) > 1:
        for source, offset in rows[0][1].sources.items():
            table = table_read(source, definition)
            if table is not None and offset:
                versions[table] = place(offset)[0]
    for step in plan.build(definition).lookups:
        taken = [entry.reads[step.table][0] for _, entry in rows if step.table in entry.reads]
        if taken:
            versions[step.table] = min(taken)
    return versions
