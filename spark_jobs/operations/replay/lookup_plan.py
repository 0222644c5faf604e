"""What a replay of a pipeline's quarantine will do, as a value; made without a JVM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow.compute as pc

from spark_jobs.lake import Lake
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import latest_version
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.quarantine import QuarantineError, Selection, WaitingEvents, table_of, waiting
from spark_jobs.plan.quarantine import NO_SUCH_KEY
from spark_jobs.recompute.lookup_versions import VersionRange, range_of_batch, version_ranges
from spark_jobs.recompute.target import Target
from spark_jobs.spec import Definition


@dataclass(frozen=True)
class LookupPlan:
    """What a replay of a pipeline's quarantine will do.

    Attributes:
        target: the pipeline.
        selection: what was asked for.
        found: what there is of it.
        versions: lookup table -> the version in which events are looked up: that of the stream's newest batch.
        newer: lookup table -> its newest version, of those that have one which no batch has taken yet.
        uncounted: events that a replay before this one has found, and that no result counts yet.
    """

    target: Target
    selection: Selection
    found: WaitingEvents
    versions: Mapping[str, int]
    newer: Mapping[str, int]
    uncounted: int

    @property
    def pipeline(self) -> str:
        """The name of the pipeline whose quarantine it is."""
        return self.target.name

    @property
    def notices(self) -> Sequence[str]:
        """What is left out, and when it would not be."""
        found = [
            f"{table} is at version {version} by now, which no batch of the stream has taken yet: to look events up in "
            "it, replay again after the next batch"
            for table, version in self.newer.items()
        ]
        if left := self.found.unfinished:
            found.append(f"{left:,} {'row' if left == 1 else 'rows'} of a batch that has not ended are left out")
        return found

    @cached_property
    def version_ranges(self) -> tuple[VersionRange, ...]:
        """In which versions the stream has looked events up."""
        return version_ranges(self.target)

    @property
    def version_range(self) -> int:
        """The number of the one that the events are looked up in; further batches may have ended meanwhile."""
        return range_of_batch(self.version_ranges, self.target.newest_batch)

    @cached_property
    def nothing_to_do(self) -> str | None:
        """Why no event has to be looked up; None: some have."""
        if not self.found.rows:
            return "no event of this kind is in the quarantine"
        if self.found.skipped:
            return None
        if self.found.first_batch is not None and self.version_range > range_of_batch(
            self.version_ranges, self.found.first_batch
        ):
            return None
        names = " and ".join(self.versions)
        return f"no batch has taken a newer version of {names} since these events were set aside"


def plan_lookup(lake: Lake, definition: Definition, selection: Selection) -> LookupPlan:
    """What a replay would look up again; nothing is written, and no JVM is started.

    Raises:
        QuarantineError: if the pipeline sets nothing aside, or a reason is named that is not there.
        BackfillRefusedError: if its results cannot be computed again.
        MissingTableError: if it has not run here.
    """
    table_of(lake, definition)
    if selection.earlier_epochs:
        raise QuarantineError(
            f"pipeline `{definition.name}`: --earlier-epochs is for ingests: a new epoch of a pipeline reads all "
            "events again. Nothing was replayed."
        )
    target = Target(lake, definition)
    _refuse_old_table(target)
    found = waiting(lake, definition, target.epochs, target.newest_batch, selection)
    _refuse_join(target, found)
    tables = {step.table for step in target.logical.lookups}
    versions = {table: target.newest.reads[table][0] for table in sorted(tables)}
    newest = {table: latest_version(lake, table) for table in versions}
    beside = target.late()
    replayed = beside.replayed if beside is not None else None
    return LookupPlan(
        target=target,
        selection=selection,
        found=found,
        versions=versions,
        newer={table: version for table, version in newest.items() if version > versions[table]},
        uncounted=0 if replayed is None else replayed.num_rows - (pc.sum(replayed["repaired"]).as_py() or 0),
    )


def _refuse_old_table(target: Target) -> None:
    name = target.operator.output.quarantine.name
    if "replayed_batch" not in {field.name for field in open_table(target.lake, name).schema().fields}:
        raise QuarantineError(
            f"pipeline `{target.name}`: {name} was made by a version of Tidemark that could not replay it, and lacks "
            "the columns. Nothing was replayed. Start the pipeline once with this version, which adds them."
        )


def _refuse_join(target: Target, found: WaitingEvents) -> None:
    if found.skipped and len(target.logical.sides) > 1:
        raise QuarantineError(
            f"pipeline `{target.name}`: {found.skipped:,} of these events are of a batch of a join that was skipped, "
            "and cannot be brought back one by one. Nothing was replayed. Once nothing fails at them any more, "
            f"`{command('reset', target.name, '--empty-tables')}` computes everything again, these included; or leave "
            f"them out: --reason '{NO_SUCH_KEY}'."
        )
