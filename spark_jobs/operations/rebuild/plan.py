"""What a rebuild will do, as a value; made from logs and statistics, without a JVM."""

import uuid

from pydantic import BaseModel, ConfigDict

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.foreign import ForeignChange
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch, history_cut
from spark_jobs.lake.checkpoints.reset import newest_epoch, tables_of_both
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.basis import Basis
from spark_jobs.lake.tables.fitting import refuse_misfit
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.operations.bootstrap.plan import BootstrapRefusedError, cut_of, reads_of, refuse_unsuitable
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.pipelines import registry
from spark_jobs.plan.changes import Compatibility, changes
from spark_jobs.plan.tables import aside
from spark_jobs.recompute.ranges import FIRST_US, Range
from spark_jobs.recompute.target import SourceVersion, Target
from spark_jobs.spec import Definition, DefinitionError, Pipeline, Table, definition_from_json


class RebuildPlan(OperationPlan):
    """What a rebuild will do.

    Attributes:
        table: its result.
        run: of the commits that it will make, and in the name of what it builds.
        aside: where its new rows are built.
        changed: what differs between the definition of the epoch that ends and that of now.
        before: the epoch that ends.
        epoch: that begins.
        cut_us: up to where windows are built, microseconds since 1970; the stream gives those that end later.
        newest_us: as `BootstrapPlan`.
        reads: the source tables.
        basis: what it was planned with.
    """

    table: str
    run: str
    aside: str
    changed: tuple[str, ...]
    before: int
    epoch: int
    cut_us: int
    newest_us: int
    reads: tuple[SourceVersion, ...]
    basis: Basis


class Prospect(Target):
    """A pipeline as it will be: of its new epoch nothing has run."""

    def _epoch(self) -> Epoch:
        before = current_epoch(self.lake, self.name)
        if before is None or not exists(self.lake, self.result):
            raise BootstrapRefusedError(
                f"pipeline `{self.name}` has not run on {self.lake.uri} yet: there is nothing to build anew. Start it: "
                f"{command('bootstrap', self.name)}"
            )
        self.before = before
        number = max(before.number, newest_epoch(self.lake, self.pipeline)) + 1
        return before.model_copy(update={"number": number, "definition": self.pipeline.to_json(), "cut_us": None})

    def _newest(self) -> tuple[int, LedgerEntry]:
        return -1, LedgerEntry(started_ms=0)

    _must_go_on = False

    @property
    def _epoch_noted(self) -> int:
        return self.before.number

    def _foreign_changes(self) -> dict[str, list[ForeignChange]]:
        """None counts: all rows are replaced, whoever wrote them."""
        return {}

    def _refuse_lost_events(self) -> None:
        """What bronze does not have any more is among the rows that are gone, and seen before they are."""

    def _read_by_stream(self, source: Table) -> tuple[int, int | None]:
        return open_table(self.lake, source.name).version(), None


def plan_rebuild(lake: Lake, definition: Definition, *, swaps: bool = False) -> tuple[Prospect, RebuildPlan]:
    """What a rebuild will do; nothing is written, and no JVM is started.

    Args:
        lake: where.
        definition: of the pipeline, as it is now.
        swaps: whether it is known already that the rows will be swapped.

    Raises:
        BootstrapRefusedError: if it needs none, or none is built for it.
        DefinitionError: if another pipeline reads its table as a stream.
        DeployError: if the rows will be swapped and a driver runs the pipeline.
    """
    planned = refuse_unsuitable(definition, lake)
    _refuse_readers(definition)
    target = Prospect(lake, definition)
    name, before = target.name, target.before
    judged = changes(definition_from_json(before.definition), definition)
    if refused := [change for change in judged if change.compatibility is Compatibility.REFUSED]:
        raise BootstrapRefusedError(f"pipeline `{name}`: {refused[0].why}. Nothing was read or written.")
    changed = tuple(change.field for change in judged if change.compatibility is Compatibility.REBUILD)
    if not changed:
        raise BootstrapRefusedError(
            f"pipeline `{name}`: its definition fits epoch {before.number} of its checkpoint: nothing has to be built "
            f"anew. Nothing was read or written. To compute closed windows again: "
            f"{command('backfill', name, '--from', 'BEGIN', '--to', 'END', '--force')}"
        )
    old = definition_from_json(before.definition).sink.table
    if old != target.result:
        raise BootstrapRefusedError(
            f"pipeline `{name}`: it wrote {old}, and now writes {target.result}: there is no table to compare it with. "
            f"Nothing was read or written. Begin again: {command('reset', name, '--keep-tables')}, then "
            f"{command('bootstrap', name)}"
        )
    tables = tables_of_both(lake, before, definition)  # refuses those of others
    basis = Basis.of(lake, name, before.number, (*target.basis.tables, *tables))  # before anything is looked at
    run = f"rebuild-{uuid.uuid4().hex[:12]}"
    newest_us, cut_us = cut_of(lake, planned)
    if isinstance(definition, Pipeline):
        refuse_misfit(lake, definition)
    if swaps:
        refuse_deployed(lake, [name])
    return target, RebuildPlan(
        pipeline=name,
        table=target.result,
        run=run,
        aside=aside(target.result, run),
        changed=changed,
        before=before.number,
        epoch=target.epoch.number,
        cut_us=cut_us,
        newest_us=newest_us,
        reads=reads_of(lake, planned, Range(FIRST_US, cut_us)),
        basis=basis,
    )


def unfinished(lake: Lake, definition: Definition) -> Epoch | None:
    """The epoch of a rebuild, or a bootstrap, that has begun and whose history is still to be computed."""
    current = current_epoch(lake, definition.name)
    if current is None or history_cut(lake, current) is None:
        return None
    judged = changes(definition_from_json(current.definition), definition)
    return None if any(change.compatibility is not Compatibility.SAFE for change in judged) else current


class Difference(BaseModel):
    """A row that is another one than before.

    Attributes:
        row: its key, as a person reads it.
        what: becomes of it.
    """

    model_config = ConfigDict(frozen=True)

    row: str
    what: str


class Comparison(BaseModel):
    """The rows of a table beside those that were built, both up to the cut.

    Attributes:
        same: rows that agree in every column that both have.
        changed: rows with other values.
        new: rows whose key the table does not have.
        gone: rows of the table whose key none of the new ones has.
        beyond: rows of the table beyond the cut, which the stream gives again.
        added: columns that the table does not have.
        removed: columns that only the table has.
        retyped: columns of another type.
        keyed: whether rows were compared one by one: the table has the columns by which new rows are told apart.
        examples: some of the rows that are not the same.
    """

    model_config = ConfigDict(frozen=True)

    same: int
    changed: int
    new: int
    gone: int
    beyond: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    keyed: bool = True
    examples: tuple[Difference, ...] = ()


def _refuse_readers(definition: Definition) -> None:
    """Refuses to swap rows that another stream has counted: the new ones come in a commit that streams pass over."""
    table = definition.sink.table
    readers = [
        each.name
        for each in registry().values()
        if isinstance(each, Pipeline) and table in {source.name for source in each.tables}
    ]
    if readers:
        raise DefinitionError(
            f"pipeline `{definition.name}`: {', '.join(readers)} read {table} as a stream, and would count the rows "
            f"before and not those after. Nothing was read or written. Begin all of them again: "
            f"{command('reset', definition.name, '--empty-tables')}, likewise {', '.join(readers)}"
        )


def plan_carrying_on(lake: Lake, definition: Definition) -> Epoch | None:
    """The epoch of a rebuild whose history is still to be computed; None: there is none.

    Raises:
        DeployError: if a driver runs the pipeline.
    """
    epoch = unfinished(lake, definition)
    if epoch is not None:
        refuse_deployed(lake, [definition.name])
    return epoch
