"""Whether the books of a pipeline balance, from the lake alone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import duckdb

from spark_jobs.lake.accounting.foreign import foreign_changes
from spark_jobs.lake.accounting.ledger import LedgerEntry, Totals, named
from spark_jobs.lake.accounting.replays import accounts, terms_of
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch, starts_of
from spark_jobs.lake.checkpoints.lineage import Lineage, lineage, lineage_of
from spark_jobs.lake.checkpoints.offsets import SourceEmptiedError, read_by_batch
from spark_jobs.lake.commit_records.history import EpochLedger, version_after
from spark_jobs.lake.commit_records.revisions import Revision, revisions, with_revised
from spark_jobs.lake.errors import LakeUnavailableError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.files import reading
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.plan import logical as plan
from spark_jobs.plan.columns import EVENT_ID, INGEST_SEQ, INGEST_TIME, SIDE, SOURCE_TABLE, WINDOW_END
from spark_jobs.plan.equations import Equation, Invariant
from spark_jobs.plan.identity import as_in
from spark_jobs.plan.operators import Operator
from spark_jobs.plan.operators.join import LEFT
from spark_jobs.plan.tables import TableRef
from spark_jobs.spec import Definition, Pipeline


def checks(
    lake: Lake, definition: Definition, epoch: int, ledger: EpochLedger | Sequence[tuple[int, LedgerEntry]]
) -> list[tuple[bool, str]]:
    """Holds the ledger of one epoch against itself and against the tables, as the pipeline's plan states it.

    Args:
        lake: where.
        definition: of the pipeline.
        epoch: of its checkpoint.
        ledger: of the epoch, or all of its entries.

    Returns:
        Whether each equation holds, and the equation in words with its figures.
    """
    planned = plan_on(lake, definition)
    books = ledger if isinstance(ledger, EpochLedger) else EpochLedger.of(ledger, planned.equations)
    totals, rows = books.totals, books.rows
    groups = planned.operator.output.groups.name if planned.operator else None
    revised = [each for _, each in revisions(lake, groups, definition.name, epoch)] if groups else []
    results = [_equation(equation, totals) for equation in planned.equations]
    results += [(False, problem) for problem in books.checked.discrepancies]
    current = current_epoch(lake, definition.name)
    if current is None or current.number != epoch:
        # The tables have moved on since: only the ledger's own equations can be held against each other.
        return results
    if isinstance(definition, Pipeline):
        results += _source_check(lake, definition, current, rows, totals)
    if revised:
        results.append((True, _revised(lake, planned, lineage(lake, definition.name, epoch), revised)))
    if planned.operator is not None:
        results += [(False, said) for said in _changed_by_others(lake, definition.name, epoch, planned.operator)]
    tables = _Books(lake, definition.name, epoch, rows[-1][0] if rows else -1)
    terms = with_revised(totals.terms, revised)
    for invariant in planned.invariants:
        table = invariant.table.name
        replayed: Mapping[str, int] = {}
        if planned.operator is None:
            replayed = terms_of(lake, table, definition.name, epoch, tables.version(table))
        held = totals.model_copy(update={"terms": {**terms, **replayed}})
        results.append(_held_against(tables, invariant, held, all_rows=current.tables_emptied))
    if planned.operator is None:
        quarantine = planned.table("quarantine")
        aside = quarantine.name if quarantine else planned.result.name
        results += [
            (each.holds, each.describe()) for each in accounts(lake, planned.result.name, aside, definition.name, epoch)
        ]
    return results


def _equation(equation: Equation, totals: Totals) -> tuple[bool, str]:
    """An equation over all batches; a part that is nothing is not shown, unless it is of the first."""
    always = (equation.parts[0], "late", "pairs_late")
    shown = [f"{named(part)} {totals[part]:,}" for part in equation.parts if totals[part] or part in always]
    rest = totals.rest(equation)
    if equation.open is not None:
        shown.append(f"{named(equation.open)} {rest:,}")
    holds = rest >= 0 if equation.open is not None else rest == 0
    return holds, f"{equation.unit}: {named(equation.whole)} {totals[equation.whole]:,} = {' + '.join(shown)}"


def _changed_by_others(lake: Lake, pipeline: str, epoch: int, operator: Operator) -> Iterator[str]:
    """What other programs have changed in the results, and nothing has put right."""
    for table in dict.fromkeys((operator.output.groups.name, operator.output.result.name)):
        for change in foreign_changes(lake, table, operator, pipeline, epoch):
            yield f"changed by another program, and not put right since: {change.describe()}"


def _revised(lake: Lake, planned: plan.LogicalPlan, epochs: Lineage, revised: list[Revision]) -> str:
    """What backfills and repairs have done."""
    grown = with_revised({}, revised)
    kinds = Counter(each.ledger.kind for each in revised if each.ledger)
    commits = " and ".join(
        _counted(count, f"commit of a {kind}", f"commits of {kind}s") for kind, count in kinds.items()
    )
    changes = ", ".join(f"{named(term)} {count:+,}" for term, count in sorted(grown.items()))
    repaired = _repaired(lake, planned.table("late"), "late events", epochs)
    replayed = _repaired(lake, planned.table("quarantine"), "replayed events", epochs, "replayed_batch IS NOT NULL")
    return f"revised: {commits}: {changes}{repaired}{replayed}"


def _repaired(lake: Lake, table: TableRef | None, events: str, epochs: Lineage, which: str = "true") -> str:
    """How many events of a table beside the result it counts by now."""
    if table is None:
        return ""
    opened = open_table(lake, table.name)
    if "settled_version" not in {field.name for field in opened.schema().fields}:
        return ""
    with duckdb.connect() as connection:
        connection.register("beside", opened.to_pyarrow_dataset())
        counted = connection.execute(
            f"SELECT count(settled_version), count(*) FROM beside WHERE {epochs.rows} AND {which}"
        ).fetchone() or (0, 0)
    return f"; {counted[0]:,} of {counted[1]:,} {events} repaired"


def _held_against(books: "_Books", invariant: Invariant, totals: Totals, *, all_rows: bool) -> tuple[bool, str]:
    """What a table holds, against the ledger."""
    expected, table = invariant.expected(totals.terms), invariant.table.name
    said = f"{invariant.label}: {expected:,} {invariant.said}"
    if invariant.whole_table and not all_rows:
        return True, f"{said}; {table} also keeps rows of earlier epochs"
    conditions = [invariant.where, *([books.epochs.rows] if invariant.of_epoch else [])]
    found = books.figure(invariant.measure, table, " AND ".join(conditions), beside=invariant)
    if invariant.open is not None:
        return found <= expected, f"{said}, {found:,} in {table}, {named(invariant.open)} {expected - found:,}"
    return found == expected, f"{said}, {found:,} in {table}"


def _source_check(
    lake: Lake, definition: Pipeline, epoch: Epoch, rows: Sequence[tuple[int, LedgerEntry]], totals: Totals
) -> list[tuple[bool, str]]:
    """What the batches have read, held against the logs of the source tables between the first offset and the last."""
    starts = starts_of(lake, epoch)
    if starts is None or not rows:
        return []
    names = ", ".join(table.name for table in definition.tables)
    try:
        held = read_by_batch(lake, definition, starts, {}, rows[-1][1].sources, which=lineage_of(lake, epoch)).rows
    except SourceEmptiedError as error:
        return [(False, str(error))]
    if held is None:
        return []
    read = totals["read"] + totals["heartbeats"]
    return [
        (
            held == read,
            f"source: {names} holds {_counted(held, 'row')} between the first and the last offset, "
            f"{read:,} {'was' if read == 1 else 'were'} read "
            f"({_counted(totals['read'], 'event')}, {_counted(totals['heartbeats'], 'heartbeat')})",
        )
    ]


def _counted(number: int, noun: str, several: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def open_pairs(lake: Lake, definition: Pipeline, epoch: int, ledger: EpochLedger) -> int | None:
    """What Spark's state must hold open, by the ledger and the tables alone; None: the plan does not tell."""
    planned, rows = plan_on(lake, definition), ledger.rows
    opened = next((equation for equation in planned.equations if equation.open is not None), None)
    if opened is not None:
        return ledger.totals.rest(opened)
    measured = planned.operator.accounting.open_in_result if planned.operator else None
    if measured is None:
        return None
    measure, table, by_window = measured
    where = f"epoch_us({WINDOW_END}) > {rows[-1][1].watermark_ms * 1000}" if by_window and rows else "true"
    return _Books(lake, definition.name, epoch, rows[-1][0] if rows else -1).figure(measure, table.name, where)


@dataclass(frozen=True)
class _Books:
    """The tables of a pipeline as they were after one batch, so that a stream may run on while they are read."""

    lake: Lake
    pipeline: str
    epoch: int
    batch_id: int
    versions: dict[str, int] = field(default_factory=dict)

    @cached_property
    def epochs(self) -> Lineage:
        """Whose rows count."""
        return lineage(self.lake, self.pipeline, self.epoch)

    def figure(self, measure: str, table: str, where: str = "true", *, beside: Invariant | None = None) -> int:
        """One number from a table, as of the batch; 0 where the table has no row."""
        version = self.version(table)
        opened = open_table(self.lake, table, version=version)
        columns = [field.name for field in opened.schema().fields]
        try:
            with duckdb.connect() as connection, reading(self.lake, lambda _: [table], version=version):
                connection.register("held", opened.to_pyarrow_dataset())
                lacking = as_in(columns, {SOURCE_TABLE} - {*columns})
                connection.execute(f"CREATE TEMP VIEW books AS SELECT {', '.join(['*', *lacking])} FROM held")
                if beside is not None and (beside.late or beside.replayed):
                    self._late(connection, beside)
                row = connection.execute(f"SELECT {measure} FROM books WHERE {where}").fetchone()
        except duckdb.Error as error:
            raise LakeUnavailableError(
                f"table {table}: in the lake {self.lake.uri}, cannot be read at version {version}: "
                f"{first_line(error)}. Nothing was changed."
            ) from error
        return int(row[0] or 0) if row else 0

    def _late(self, connection: duckdb.DuckDBPyConnection, invariant: Invariant) -> None:
        """Makes `late`, of its own: DuckDB pushes conditions into a dataset that Arrow cannot compare texts by."""
        connection.execute(
            f"CREATE TEMP TABLE late ({SIDE} VARCHAR, {EVENT_ID} VARCHAR, {INGEST_SEQ} BIGINT, "
            f"{INGEST_TIME} TIMESTAMPTZ, {SOURCE_TABLE} VARCHAR)"
        )
        tables = [(invariant.late, SIDE, "true"), (invariant.replayed, f"'{LEFT}'", "replayed_batch IS NOT NULL")]
        for table, side, where in tables:
            opened = None if table is None else open_table(self.lake, table.name)
            columns = [] if opened is None else [field.name for field in opened.schema().fields]
            if opened is None or (table == invariant.replayed and "replayed_batch" not in columns):
                continue
            event = ", ".join(as_in(columns, (EVENT_ID, INGEST_SEQ, INGEST_TIME, SOURCE_TABLE)))
            connection.register("beside", opened.to_pyarrow_dataset())
            connection.execute(
                f"INSERT INTO late SELECT {side}, {event} FROM beside WHERE {self.epochs.rows} AND {where}"
            )
            connection.unregister("beside")

    def version(self, table: str) -> int:
        """The newest version of the table that no later batch has written, as at the first look."""
        if table not in self.versions:
            self.versions[table] = version_after(self.lake, table, self.pipeline, self.epoch, self.batch_id)
        return self.versions[table]
