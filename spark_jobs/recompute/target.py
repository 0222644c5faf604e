"""What a backfill or a repair will do, as a value; made from logs and statistics, without a JVM."""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.foreign import Correction, ForeignChange, book, foreign_changes
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.accounting.ledger_table import takes_rows_away
from spark_jobs.lake.accounting.repaired import LateEvents, late_rows, mark_repaired, replayed_rows
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch, epoch_at, starts_of
from spark_jobs.lake.checkpoints.lineage import Lineage, lineage_of
from spark_jobs.lake.checkpoints.reset import EMPTIED
from spark_jobs.lake.checkpoints.spark_log import place
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.basis import Basis
from spark_jobs.lake.commit_records.history import info_of, newest_batch, unsigned_commits
from spark_jobs.lake.commit_records.revisions import Mode
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.files import refuse_missing
from spark_jobs.lake.tables.opening import exists, file_statistics, open_table
from spark_jobs.lake.tables.planned import plan_on
from spark_jobs.plan.changes import gives_other_rows, needs_new_epoch
from spark_jobs.plan.columns import INGEST_SEQ
from spark_jobs.plan.operators import Operator
from spark_jobs.recompute.ranges import FIRST_US, Range
from spark_jobs.spec import Definition, Ingest, Table, definition_from_json
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.errors import TidemarkError
from spark_jobs.spec.names import in_duckdb


class BackfillRefusedError(TidemarkError):
    """Nothing can, or may, be computed again."""


class NotComparableError(BackfillRefusedError):
    """Nothing can be computed again, and nothing is wrong with that."""


class SourceVersion(BaseModel):
    """A source table as it is read.

    Attributes:
        table: its name.
        version: that is read.
        upto: up to which file of this version the stream has read; None: all of it is read.
        rows: in the files that may hold events of the range; None where statistics do not tell.
        bytes: of these files.
    """

    model_config = ConfigDict(frozen=True)

    table: str
    version: int
    upto: int | None = None
    rows: int | None = None
    bytes: int = 0


class LatePlan(Protocol):
    """A plan that takes late events into account, in one version of each table that has some."""

    @property
    def late_version(self) -> int | None:
        """Of the table of late events; None: there is none."""

    @property
    def quarantine_version(self) -> int | None:
        """Of the events whose key a lookup did not have; None: they are not kept."""


class Target:
    """A pipeline whose results are to be revised, and what its lake says of it.

    Args:
        lake: where.
        definition: of the pipeline, as it is now.
        force: whether rows that another program has changed may be replaced.

    Raises:
        BackfillRefusedError: if they cannot be.
        MissingTableError: if the pipeline has not run here.
    """

    def __init__(self, lake: Lake, definition: Definition, *, force: bool = False) -> None:
        if isinstance(definition, Ingest):
            raise BackfillRefusedError(
                f"pipeline `{definition.name}` is an ingest: bronze has every event as it arrived, and nothing to "
                "compute again. Nothing was read or written. Name a pipeline that reads it."
            )
        self.lake, self.pipeline, self.force = lake, definition, force
        self.logical = plan_on(lake, definition)
        self.operator = self._operator()
        self.epoch = self._epoch()
        self.look()
        self.newest_batch, self.newest = self._newest()
        self.foreign = self._foreign_changes()
        self._refuse_lost_events()

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.pipeline.name

    @property
    def result(self) -> str:
        """The name of the result table."""
        return self.logical.result.name

    def look(self) -> None:
        """Notes how the tables are: whatever is read from now on knows what these hold.

        Raises:
            BackfillRefusedError: if a reset or a rebuild is ending the epoch.
        """
        planned = self.logical
        names = [*(table.name for table in planned.tables), *(source.name for source in planned.reads)]
        names += [step.table for step in planned.lookups]
        self.basis = Basis.of(self.lake, self.name, self._epoch_noted, names)
        if self._must_go_on and self.basis.is_ending(self.epoch, self.result):
            raise self._refuse(
                f"its epoch {self.epoch.number} has been ended by a reset or a rebuild that was interrupted, or that "
                "runs now",
                "Wait until that has ended, or run it again.",
            )

    @cached_property
    def epochs(self) -> Lineage:
        """The epoch and those that it goes on: the rows that these set aside count."""
        return lineage_of(self.lake, self.epoch)

    def refuse_revised(self) -> None:
        """Looks, before anything is computed, whether what is to be revised is as it was found.

        Raises:
            SupersededError: if another run, or this one, has revised it since.
            OutdatedPlanError: if the epoch is over, or a table another one.
        """
        for name in dict.fromkeys((self.operator.output.groups.name, self.result)):
            if name in self.basis.tables:
                self.basis.revision(self.lake, name, open_table(self.lake, name))

    _must_go_on = True
    """Whether the epoch is one that goes on."""

    @property
    def _epoch_noted(self) -> int:
        """The epoch whose tables these are."""
        return self.epoch.number

    def _refuse(
        self, why: str, remedy: str, kind: type[BackfillRefusedError] = BackfillRefusedError
    ) -> BackfillRefusedError:
        return kind(f"pipeline `{self.name}`: {why}. Nothing was read or written. {remedy}")

    def refuse_late_events(self, instead: str = "") -> None:
        """Looks whether late events can be counted after all.

        Args:
            instead: what can be done without them, as a sentence.

        Raises:
            BackfillRefusedError: if the rows that the stream has still to write would not count them.
        """
        if (why := self.operator.recomputation.no_repair) is not None:
            remedy = (
                f"They stay in {self.operator.output.late.name}. A longer `delay` or `grace` of its watermark waits "
                f"for such events, after `{command('reset', self.name, '--empty-tables')}`. {instead}"
            )
            raise self._refuse(f"late events cannot be counted after all: {why}", remedy.rstrip())

    def _operator(self) -> Operator:
        operator = self.logical.operator
        if operator is None or operator.recomputation.impossible is not None:
            why = operator.recomputation.impossible if operator else "it has no results"
            raise self._refuse(
                f"{operator.description if operator else 'it'}: {why}, so that a part of the results cannot be "
                "computed again",
                f"All of them: `{command('reset', self.name, '--empty-tables')}`, then start the stream.",
            )
        if not operator.recomputation.placed_by:
            raise self._refuse(
                "its results belong to no range of event time: the stream itself holds the whole total",
                "To count again from the first event: "
                f"`{command('reset', self.name, '--empty-tables')}`, then start the stream.",
            )
        return operator

    def _epoch(self) -> Epoch:
        epoch = current_epoch(self.lake, self.name)
        if epoch is None or not exists(self.lake, self.result):
            raise MissingTableError(
                f"pipeline `{self.name}` has not run on {self.lake.uri} yet: there is nothing to compute again. "
                f"Start it: {command('run', self.name)}"
            )
        changed = ", ".join(needs_new_epoch(definition_from_json(epoch.definition), self.pipeline))
        if changed:
            anew = f"`{command('reset', self.name, '--empty-tables')}`, then start the stream."
            if self.operator.recomputation.unit.why_no_cut is None:
                anew = f"`{command('rebuild', self.name)}`, or {anew}"
            raise self._refuse(
                f"its definition has changed ({changed}) since epoch {epoch.number} wrote {self.result}",
                f"Put the definition back, or compute the table anew with it: {anew}",
            )
        if any(gives_other_rows(definition_from_json(each), self.pipeline) for each in self._have_run(epoch)):
            raise self._refuse(
                f"{self.result} has rows of more than one version of its processor, which nothing tells apart",
                f"All of them by this one: `{command('reset', self.name, '--empty-tables')}`, then start the stream.",
                NotComparableError,
            )
        if not epoch.tables_emptied:
            raise self._refuse(
                f"{self.result} also has rows of epochs before {epoch.number}, which nothing tells apart",
                f"`{command('reset', self.name, '--empty-tables')}` computes all of them again.",
                NotComparableError,
            )
        return epoch

    def _have_run(self, epoch: Epoch) -> Iterator[str]:
        """The definitions that have run on an epoch and on those that it goes on."""
        for number in lineage_of(self.lake, epoch).epochs:
            found = epoch_at(self.lake, self.name, number)
            if found is not None:
                yield from (*found.before, found.definition)

    def _newest(self) -> tuple[int, LedgerEntry]:
        found = newest_batch(self.lake, self.result, self.name, self.epoch.number)
        if found is None:
            raise self._refuse(
                "no batch of it has ended yet", "Wait for its first batch, then run the same again.", NotComparableError
            )
        return found

    def _foreign_changes(self) -> dict[str, list[ForeignChange]]:
        """Table -> what other programs have changed in it and nothing has put right; refused unless their rows may be
        replaced."""
        found = {}
        for table in dict.fromkeys((self.operator.output.groups.name, self.result)):
            found[table] = list(foreign_changes(self.lake, table, self.operator, self.name, self.epoch.number))
            if found[table] and not self.force:
                raise self._refuse(
                    f"another program has changed {found[table][0].name}: what it wrote would be taken for results",
                    "To replace its rows by what the events give, say --force.",
                )
        return found

    @property
    def conflicts(self) -> tuple[str, ...]:
        """What other programs have changed, in words."""
        return tuple(each.describe() for changes in self.foreign.values() for each in changes)

    def put_right(self, table: str, begin_us: int, end_us: int) -> Correction:
        """Takes it that a range of a table has what the events give, whatever other programs had changed there.

        A table that has rows twice does not.
        """
        booked, self.foreign[table] = book(self.foreign.get(table, ()), begin_us, end_us)
        return booked

    def _refuse_lost_events(self) -> None:
        """Results of events that bronze does not have any more must not be taken away."""
        starts = starts_of(self.lake, self.epoch)
        for table in (*(source.name for source in self.logical.reads), *(step.table for step in self.logical.lookups)):
            if not exists(self.lake, table):
                raise self._refuse(
                    f"table {table}, which it reads, is not in the lake {self.lake.uri}",
                    "Put the table back where it was, then run the same again.",
                )
        for source in self.logical.reads:
            first = starts.versions.get(source.name, 0) if starts else 0
            for version, actions in unsigned_commits(self.lake, source.name):
                if version <= first:
                    break
                if any(jump.passes((version, 0)) for jump in self.epochs.jumps(source.name)):
                    continue
                commit = info_of(actions)
                if (takes_rows_away(actions) or commit.get(EMPTIED)) and decode(commit) is None:
                    raise self._refuse(
                        f"rows of its source {source.name} were taken away in version {version} "
                        f"({commit.get('operation', 'reset')}): results of these events would be lost",
                        f"`{command('reset', self.name, '--empty-tables')}`, then start the stream: it counts what "
                        f"{source.name} has then. To keep the results of these events, leave the pipeline as it is.",
                    )

    @property
    def _batch_decides(self) -> bool:
        """Whether only its batch decides what becomes of an event: in which version it is looked up, whether it is let
        through, or on time."""
        return bool(self.logical.lookups) or self.operator.recomputation.reads_as_stream

    @property
    def last_batch(self) -> int | None:
        """The last batch whose late events a result may count; None: those of any may be counted."""
        return self.newest_batch if self._batch_decides else None

    def late(self, version: int | None = None, quarantine_version: int | None = None) -> LateEvents | None:
        """The late events of this epoch, and those that were replayed; None: the pipeline keeps neither.

        Of an unfinished batch there are none where no result may count its events yet.

        Args:
            version: of the table of late events; None: the newest.
            quarantine_version: likewise.
        """
        late, quarantine = self.logical.table("late"), self.logical.table("quarantine")
        parts: list[pa.Table] = []
        if late is not None:
            version, rows = late_rows(
                self.lake,
                late.name,
                self.epochs,
                times=[side.event_time for side in self.logical.sides if side.event_time],
                touches_us=duration_ms(self.operator.recomputation.touches) * 1000,
                in_windows=self.operator.lateness.in_windows,
                version=version,
                last_batch=self.last_batch,
            )
            parts.append(rows)
        if quarantine is not None:
            quarantine_version, rows = replayed_rows(
                self.lake, quarantine.name, self.epochs, version=quarantine_version
            )
            parts.append(rows)
        if not parts:
            return None
        return LateEvents(
            version if late is not None else None,
            quarantine_version if quarantine is not None else None,
            pa.concat_tables(parts),
        )

    def late_of(self, plan: "LatePlan") -> LateEvents | None:
        """The events that a plan was made with; None: it takes none into account."""
        if plan.late_version is None and plan.quarantine_version is None:
            return None
        return self.late(plan.late_version, plan.quarantine_version)

    def mark_repaired(self, events: pa.Table, version: int | None) -> None:
        """Marks events as counted in a version of the result, or as not counted any more; as `repaired.mark_repaired`.

        Raises:
            OutdatedPlanError: if a backfill `--as-streamed` has taken them out of the result since.
        """
        is_late = pc.is_null(events["replayed_batch"])
        for table, part in (
            (self.operator.output.late.name, is_late),
            (self.operator.output.quarantine.name, pc.invert(is_late)),
        ):
            held = (
                partial(self.basis.marking, table, result=self.operator.output.groups.name)
                if version is not None
                else None
            )
            mark_repaired(self.lake, table, events.filter(part), version, held=held)

    def take_out(self) -> LateEvents | None:
        """Late and replayed events as they are, of which no other run marks one as counted until the result is revised.

        So whatever is marked is among them, and can be unmarked.
        """
        for role in ("late", "quarantine"):
            if (table := self.logical.table(role)) is not None:
                self.basis.take_out(self.lake, table.name, self.operator.output.groups.name)
        return self.late()

    def reads(self, mode: Mode, times: Range | None) -> tuple[SourceVersion, ...]:
        """The source tables: as they are now, or as far as the stream has read them."""
        found = []
        for side in self.logical.sides:
            for source in side.tables:
                version, upto = open_table(self.lake, source.name).version(), None
                # Without a watermark nothing is late: what the stream has not read yet, it will count itself.
                if mode == "as-streamed" or self.pipeline.watermark is None or self._batch_decides:
                    version, upto = self._read_by_stream(source)
                opened = open_table(self.lake, source.name, version=version)
                refuse_missing(self.lake, source.name, opened)
                rows, size = within(opened, side.time_column(source), times)
                found.append(SourceVersion(table=source.name, version=version, upto=upto, rows=rows, bytes=size))
        return tuple(found)

    def all_upto(self, end_us: int) -> Range:
        """The range of every event, and of every row of the result, up to an instant."""
        earliest_us = self._earliest_us()
        return Range(min(0 if earliest_us is None else max(earliest_us, FIRST_US), end_us - 1), end_us)

    def _earliest_us(self) -> int | None:
        """Before this instant there is neither an event nor a row of the result; None: there is none at all."""
        found = [
            least_of(open_table(self.lake, table.name), self.operator.recomputation.placed_by)
            for table in (self.logical.result, self.operator.output.groups)
        ]
        longest_us = duration_ms(max(self.operator.recomputation.reach)) * 1000
        for side in self.logical.sides:
            for source in side.tables:
                own = side.time_column(source)
                if own is None:
                    return FIRST_US  # it is computed, and may be any
                first = least_of(open_table(self.lake, source.name), [own])
                # A window that has an event starts before it.
                found.append(None if first is None else first - longest_us)
        return min((each for each in found if each is not None), default=None)

    def _read_by_stream(self, source: Table) -> tuple[int, int | None]:
        ending = "/" + source.name.replace(".", "/", 1)
        offset = next(o for s, o in self.newest.sources.items() if s.rstrip("]/").endswith(ending))
        version, index = place(offset)
        return (version, index) if index >= 0 else (version - 1, None)


def least_of(opened: DeltaTable, columns: Sequence[str]) -> int | None:
    """The first instant that some columns of a table have; microseconds since 1970. None: it has no row with one."""
    dataset = opened.to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", dataset)
        least = ", ".join(f"epoch_us(min({in_duckdb(name)}))" for name in columns)
        found = connection.execute(f"SELECT {least} FROM rows").fetchone() or ()
    return min((int(each) for each in found if each is not None), default=None)


def within(opened: object, column: str | None, times: Range | None) -> tuple[int | None, int]:
    """Rows and bytes of the files that may hold times of a range, by their statistics."""
    files = _files_within(opened, column, times)
    if not files.num_rows:
        return 0, 0
    rows = files.column("num_records")
    return None if rows.null_count else pc.sum(rows).as_py(), pc.sum(files.column("size_bytes")).as_py()


def numbers_within(opened: object, column: str | None, times: Range) -> tuple[int, int] | None:
    """The least and the greatest `_ingest_seq` in these files; None where statistics do not tell."""
    files = _files_within(opened, column, times)
    low, high = f"min.{INGEST_SEQ}", f"max.{INGEST_SEQ}"
    if not {low, high} <= set(files.column_names) or files.column("num_records").null_count:
        return None
    # A file without any holds heartbeats alone.
    least, most = pc.min(files.column(low)).as_py(), pc.max(files.column(high)).as_py()
    return (least, most) if least is not None else (0, 0)


def _files_within(opened: object, column: str | None, times: Range | None) -> pa.Table:
    files = file_statistics(opened)  # type: ignore[arg-type]
    low, high = f"min.{column}", f"max.{column}"
    if times is None or not {low, high} <= set(files.column_names):
        return files
    least, most = (files.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64()) for name in (low, high))
    # Statistics are cut to milliseconds.
    known = pc.and_(pc.less(least, times.end_us), pc.greater_equal(pc.add(most, 1000), times.begin_us))
    return files.filter(pc.fill_null(known, True))
