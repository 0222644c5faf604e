"""Keeps the tables of a lake small and quick, beside its streams and without a JVM.

For each table: its commits are kept in `ops.ledger`, small files are drawn together, old rows of `ops` tables go, the
log is cut where nobody needs its versions any more, and files that nothing names are removed. Results never change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError
from obstore.exceptions import BaseError

from spark_jobs.lake.accounting.ledger_compaction import compact_ledger
from spark_jobs.lake.accounting.ledger_table import TABLE as LEDGER
from spark_jobs.lake.accounting.ledger_table import KeptCommits
from spark_jobs.lake.checkpoints.epochs import running_definitions
from spark_jobs.lake.checkpoints.swapping import is_abandoned, remove_table
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.conflicts import cannot_commit, is_of_others
from spark_jobs.lake.errors import MissingTableError, TidemarkError, UnsupportedTableError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.maintenance.compaction import (
    DataFile,
    can_be_compacted,
    compact,
    data_files_of,
    groups_to_compact,
)
from spark_jobs.lake.maintenance.readers import Need, needs
from spark_jobs.lake.maintenance.retention import LogCut, cut_log, plan_cut, remove_files, unnamed_files
from spark_jobs.lake.settings import Retention
from spark_jobs.lake.tables.files import missing_files
from spark_jobs.lake.tables.opening import UNREADABLE, exists, file_statistics, open_table, row_count, table_names
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.operations.maintain.plan import MaintenanceOutcome, MaintenancePlan, Pace, TablePlan
from spark_jobs.operations.maintain.text import done_text
from spark_jobs.operations.shape import Say
from spark_jobs.spec import Ingest
from spark_jobs.spec.names import in_delta, in_duckdb

# How `deltalake` writes the type of a time.
_UTC = "'Timestamp(Microsecond, Some(\"UTC\"))'"

_TRIES = 3
"""A stream changes files while they are read; each time other ones are left."""


@dataclass(frozen=True)
class _Table:
    """A table, and what its lake says of it."""

    lake: Lake
    name: str
    retention: Retention
    pace: Pace
    order: Sequence[str] = ()
    need: Need | None = None
    is_lookup: bool = False

    @property
    def in_ledger(self) -> bool:
        return not self.name.startswith("ops.")

    @property
    def keep(self) -> timedelta:
        return max(self.retention.versions, self.retention.lookups) if self.is_lookup else self.retention.versions

    @property
    def expiry(self) -> tuple[str, timedelta] | None:
        return {
            "ops.metrics": ("measured_at", self.retention.metrics),
            "ops.alerts": ("reported_at", self.retention.alerts),
            "ops.quality": ("checked_at", self.retention.quality),
        }.get(self.name)

    @property
    def is_abandoned(self) -> bool:
        return is_abandoned(self.lake, self.name, keep=self.retention.rebuilt, now=self.pace.clock)

    def groups(self) -> list[tuple[DataFile, ...]]:
        opened = open_table(self.lake, self.name)
        if not can_be_compacted(opened):
            return []
        before_ms = round((self.pace.clock - self.pace.quiet).timestamp() * 1000)
        found = data_files_of(opened)
        return groups_to_compact(found, written_before_ms=before_ms, fewest=self.pace.fewest_files)

    def cut(self) -> LogCut:
        return plan_cut(
            self.lake,
            self.name,
            keep=self.keep,
            now=self.pace.clock,
            need=self.need,
            fewest=self.pace.fewest_commits,
        )

    def expired(self) -> tuple[str, datetime] | None:
        """The column and the time before which rows are not kept; None: none are older, by the files' statistics."""
        if self.expiry is None:
            return None
        column, kept = self.expiry
        until = self.pace.clock - kept
        statistics = file_statistics(open_table(self.lake, self.name))
        if f"min.{column}" not in statistics.column_names:
            return None
        oldest = [each for each in statistics.column(f"min.{column}").to_pylist() if each is not None]
        if (
            not oldest
            or min(each.astimezone(UTC) if each.tzinfo else each.replace(tzinfo=UTC) for each in oldest) >= until
        ):
            return None
        return column, until


@dataclass(frozen=True)
class Maintenance:
    """Maintenance of a lake.

    Attributes:
        lake: where.
        retention: how much of the past is kept.
        pace: how careful it is.
    """

    lake: Lake
    retention: Retention = field(default_factory=Retention)
    pace: Pace = field(default_factory=Pace)

    def tables(self, names: Sequence[str] = ()) -> Iterator[_Table]:
        """The tables of a lake, `ops.ledger` last: all others add to it.

        Args:
            names: only these; empty: all.

        Raises:
            MissingTableError: if one of them is not in the lake.
        """
        for name in names:
            if not exists(self.lake, name):
                raise MissingTableError(
                    f"table {name}: not in the lake {self.lake.uri}. What there is: {command('tables')}"
                )
        needed, lookups, orders = needs(self.lake), set[str](), dict[str, Sequence[str]]()
        for _, definition in running_definitions(self.lake).values():
            planned = plan_on(self.lake, definition)
            lookups |= {step.table for step in planned.lookups}
            if not isinstance(definition, Ingest):
                # By what people ask for: the time first, then the key.
                orders |= {table.name: _order(table.statistics, table.keys) for table in planned.tables}
        found = list(names or table_names(self.lake))
        for name in sorted(found, key=lambda name: (name == LEDGER, found.index(name))):
            order = ("table", "version") if name == LEDGER else orders.get(name, ())
            yield _Table(self.lake, name, self.retention, self.pace, order, needed.get(name), name in lookups)

    def plan_all(self, names: Sequence[str] = ()) -> MaintenancePlan:
        """What is to be done; nothing is written.

        Args:
            names: of the tables; empty: all.

        Raises:
            MissingTableError: if one of them is not in the lake.
        """
        return MaintenancePlan(tuple(self.plan(table) for table in self.tables(names)))

    def plan(self, table: _Table) -> TablePlan:
        """What is to be done to a table; nothing is written."""
        if table.is_abandoned:
            return TablePlan(table=table.name, abandoned=True)
        try:
            opened = open_table(self.lake, table.name, to_write=True)
        except UnsupportedTableError as error:
            return TablePlan(table=table.name, left_alone=_reason(error, table.name))
        gone = missing_files(self.lake, table.name, opened)
        if gone:
            return TablePlan(table=table.name, missing=len(gone))
        groups, cut = table.groups(), table.cut()
        expired = table.expired()
        to_ledger = opened.version() + 1 - KeptCommits(self.lake, table.name).below if table.in_ledger else 0
        return TablePlan(
            table=table.name,
            commits=opened.version() + 1,
            files=file_statistics(opened).num_rows,
            to_ledger=to_ledger,
            groups=tuple(len(group) for group in groups),
            compacted_bytes=sum(file.size for group in groups for file in group),
            expired=_count(self.lake, table.name, expired) if expired else 0,
            cut=cut.commits,
            held_by=(cut.held_by.reader, cut.held_by.version) if cut.held_by else None,
        )

    def execute(self, table: _Table) -> MaintenanceOutcome:
        """Does what is to be done to a table, step by step; each step leaves the table whole."""
        lake, name = self.lake, table.name
        if table.is_abandoned:
            objects, size = remove_table(lake, name)
            return MaintenanceOutcome(table=name, abandoned=objects, removed_bytes=size)
        try:
            opened = open_table(lake, name, to_write=True)
        except UnsupportedTableError as error:
            return MaintenanceOutcome(table=name, problem=_reason(error, name))
        before = file_statistics(opened).num_rows
        if gone := missing_files(lake, name, opened):
            return MaintenanceOutcome(
                table=name,
                files_before=before,
                files_after=before,
                problem=f"{len(gone):,} of its data files are gone: nothing was done to it. "
                "docs/operate/runbook.md#data-file-missing",
            )
        to_ledger = compact_ledger(lake, name) if table.in_ledger else 0
        rows = self._expire(table)
        busy = self._compact(table, _known(opened.schema().to_arrow(), table.order))
        cut = table.cut()
        removed_log = cut_log(lake, name, cut.below) if cut.commits else 0
        unnamed = unnamed_files(lake, name, keep=max(self.pace.in_flight, timedelta(0)), now=self.pace.clock)
        remove_files(lake, dict(unnamed))
        return MaintenanceOutcome(
            table=name,
            to_ledger=to_ledger,
            files_before=before,
            files_after=file_statistics(open_table(lake, name)).num_rows,
            expired=rows,
            cut=removed_log,
            removed=len(unnamed),
            removed_bytes=sum(size for _, size in unnamed),
            held_by=(cut.held_by.reader, cut.held_by.version) if cut.held_by else None,
            busy=busy,
        )

    def _compact(self, table: _Table, order: Sequence[str]) -> int:
        """Draws small files together; how many are left because other writers changed some of them each time."""
        busy: list[tuple[DataFile, ...]] = []
        for _ in range(_TRIES):
            busy = [group for group in table.groups() if compact(self.lake, table.name, group, order) is None]
            if not busy:
                return 0
        return sum(map(len, busy))

    def _expire(self, table: _Table) -> int:
        expired = table.expired()
        if expired is None:
            return 0
        before = row_count(open_table(self.lake, table.name))
        try:
            open_table(self.lake, table.name, to_write=True).delete(
                f"{in_delta(expired[0])} < arrow_cast('{expired[1]:%Y-%m-%dT%H:%M:%S}Z', {_UTC})",
                commit_properties=CommitProperties(max_commit_retries=5),
            )
        except CommitFailedError as error:
            if not is_of_others(error):
                raise cannot_commit(table.name, error, "Its old rows are still there.") from error
            return 0  # somebody else is at it
        return max(0, before - row_count(open_table(self.lake, table.name)))


def _reason(error: UnsupportedTableError, table: str) -> str:
    return str(error).removeprefix(f"table {table}: ")


def _order(statistics: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*statistics, *keys)))


def _known(schema: object, order: Sequence[str]) -> tuple[str, ...]:
    names: set[str] = set(getattr(schema, "names", ()))
    return tuple(name for name in order if name in names)


def _count(lake: Lake, table: str, older: tuple[str, datetime]) -> int:
    import duckdb

    rows = open_table(lake, table).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("held", rows)
        found = connection.execute(f"SELECT count(*) FROM held WHERE {in_duckdb(older[0])} < ?", [older[1]]).fetchone()
    return int(found[0]) if found else 0


def carry_out(maintenance: Maintenance, names: Sequence[str], say: Say) -> list[MaintenanceOutcome]:
    """Maintains tables, one after the other; what goes wrong with one leaves the others to be maintained.

    Args:
        maintenance: of the lake.
        names: of the tables; empty: all.
        say: is told what was done to each.
    """
    found = []
    for table in maintenance.tables(names):
        try:
            done = maintenance.execute(table)
        except (*UNREADABLE, BaseError, TidemarkError) as error:
            done = MaintenanceOutcome(table=table.name, problem=f"failed: {first_line(error)}")
        found.append(done)
        say(done_text(done))
    return found
