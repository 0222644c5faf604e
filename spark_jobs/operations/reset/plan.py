"""What a reset will do, as a value; made without a JVM."""

from collections.abc import Iterable, Iterator

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.ran import as_it_began
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.pipelines import registry
from spark_jobs.spec import Definition, DefinitionError, Ingest


class ResetPlan(OperationPlan):
    """What a reset will do.

    Attributes:
        definition: with which the new epoch begins.
        empty_tables: whether the rows written so far go.
        registered: whether the pipeline has a file; else only its checkpoint knows what it was.
    """

    definition: Definition
    empty_tables: bool
    registered: bool


def plan_reset(lake: Lake, definition: Definition, *, keep_tables: bool | None, registered: bool = True) -> ResetPlan:
    """What a reset will do; nothing is written.

    Args:
        lake: where.
        definition: of the pipeline, as it is now.
        keep_tables: whether the rows written so far stay; None: nobody has said.
        registered: see `ResetPlan`.

    Raises:
        DefinitionError: if nobody has said what becomes of the rows.
        DeployError: if a driver runs the pipeline.
    """
    if keep_tables is None:
        raise DefinitionError(
            f"reset {definition.name}: say what becomes of its rows so far, --keep-tables or --empty-tables. "
            "Nothing was changed."
        )
    refuse_deployed(lake, [definition.name])
    return ResetPlan(
        pipeline=definition.name,
        definition=definition,
        empty_tables=not keep_tables,
        registered=registered,
        notices=tuple(_of_readers(definition, emptied=not keep_tables)),
    )


def left_on(lake: Lake, name: str) -> Definition | None:
    """What a pipeline was whose file is gone, by its checkpoint: so that it can give its table back."""
    return None if name in registry() else as_it_began(lake, name)


def _of_readers(definition: Definition, *, emptied: bool) -> list[str]:
    """What those that read its table will notice."""
    table = definition.sink.table
    known = [each for each in registry().values() if table in each.read_tables]
    readers = ", ".join(each.name for each in known)
    if not readers:
        return []
    if not isinstance(definition, Ingest):
        return list(_of_ingests(known, table, emptied=emptied))
    if emptied:
        return [f"These have counted the rows that are gone, and stop until they are reset: {readers}."]
    return [f"Events that are read again will be in {table} twice. These count them twice: {readers}."]


def _of_ingests(readers: Iterable[Definition], table: str, *, emptied: bool) -> Iterator[str]:
    """What ingests will notice that read a result."""
    found = [each for each in readers if isinstance(each, Ingest)]
    if not emptied:
        named = ", ".join(each.name for each in found)
        yield f"Rows that are computed again will be in {table} twice. These read them as new ones: {named}."
        return
    if follow := ", ".join(each.name for each in found if not each.source.stops_at_revisions):
        yield f"These read each row that goes as deleted, and the rows that come instead as new ones: {follow}."
    if stop := ", ".join(each.name for each in found if each.source.stops_at_revisions):
        yield f"These have read rows that go, and stop until they are reset: {stop}."
