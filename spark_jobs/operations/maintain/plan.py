"""What maintenance will do to a table, as a value."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, ConfigDict

from spark_jobs.lake.maintenance.compaction import FEWEST
from spark_jobs.lake.maintenance.retention import FEWEST_COMMITS

QUIET = timedelta(minutes=10)
"""Files that are younger are left: a stream may be about to write them anew."""

IN_FLIGHT = timedelta(hours=24)
"""Files that no commit names are left for so long at least: a long batch may be about to name them."""


@dataclass(frozen=True)
class Pace:
    """How careful maintenance is; only tests and benchmarks are less so.

    Attributes:
        now: the time; None: the clock.
        quiet: files that are younger are not drawn together.
        in_flight: files that no commit names stay so long at least.
        fewest_commits: that a log keeps in any case.
        fewest_files: that are worth a commit.
    """

    now: datetime | None = None
    quiet: timedelta = QUIET
    in_flight: timedelta = IN_FLIGHT
    fewest_commits: int = FEWEST_COMMITS
    fewest_files: int = FEWEST

    @property
    def clock(self) -> datetime:
        """The instant that counts as now."""
        return self.now or datetime.now(UTC)


class TablePlan(BaseModel):
    """What is to be done to a table.

    Attributes:
        table: its name.
        commits: of its log.
        files: that it has now.
        to_ledger: commits that `ops.ledger` does not have yet.
        groups: how many files each of the new files is to be made of.
        compacted_bytes: of these files.
        expired: rows that are older than what is kept; of `ops` tables only.
        cut: commits by which its log is to be shorter.
        held_by: a pipeline that needs older versions than the time that is kept, and the version.
        abandoned: it was built aside by a rebuild that is over, and is removed.
        missing: data files that are gone: nothing is done to the table then.
        left_alone: what the table needs that is not implemented: nothing is done to it then; None: nothing.
    """

    model_config = ConfigDict(frozen=True)

    table: str
    commits: int = 0
    files: int = 0
    to_ledger: int = 0
    groups: tuple[int, ...] = ()
    compacted_bytes: int = 0
    expired: int = 0
    cut: int = 0
    held_by: tuple[str, int] | None = None
    abandoned: bool = False
    missing: int = 0
    left_alone: str | None = None

    @property
    def nothing_to_do(self) -> bool:
        """Whether only files that nothing names may be left to remove."""
        return not (self.to_ledger or self.groups or self.expired or self.cut or self.abandoned)


class MaintenanceOutcome(BaseModel):
    """What was done to a table.

    Attributes:
        table: its name.
        to_ledger: commits that are in `ops.ledger` from now on.
        files_before: that it had.
        files_after: that it has.
        expired: rows that were deleted.
        cut: objects of its log that were removed.
        removed: data files that were removed.
        removed_bytes: of these.
        abandoned: objects of a table that was built aside by a rebuild that is over: all of it was removed.
        held_by: as in the plan.
        busy: files that other writers changed each time that they were to be drawn together; the next time will do.
        problem: why something of it was left undone that needs attention; None: nothing was.
    """

    model_config = ConfigDict(frozen=True)

    table: str
    to_ledger: int = 0
    files_before: int = 0
    files_after: int = 0
    expired: int = 0
    cut: int = 0
    removed: int = 0
    removed_bytes: int = 0
    abandoned: int = 0
    held_by: tuple[str, int] | None = None
    busy: int = 0
    problem: str | None = None

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        done = self.to_ledger or self.expired or self.cut or self.removed or self.abandoned
        return bool(done or self.files_before != self.files_after)


@dataclass(frozen=True)
class MaintenancePlan:
    """What maintenance will do to a lake.

    Attributes:
        tables: one plan for each table, in the order of their turn.
    """

    tables: tuple[TablePlan, ...]
    notices: tuple[str, ...] = ()

    @property
    def pipeline(self) -> str:
        """The names of the tables, with commas: no pipeline is changed."""
        return ", ".join(each.table for each in self.tables)

    @property
    def nothing_to_do(self) -> str | None:
        """Why only files that nothing names may be left to remove; None: more is to be done."""
        return "every table is small and quick" if all(each.nothing_to_do for each in self.tables) else None
