"""A stateful pipeline: its step, the late split, results and the ledger, in one query.

The plan has two branches over one source (`transforms/branches.py`). What the batch's step gave goes to the result;
above the narrow branch each batch keeps the events that Spark's operator dropped in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.commits.changes import Append, ReplaceWindows, Upsert
from spark_jobs.commits.merging import FEW_WINDOWS
from spark_jobs.commits.tables import SchemaMismatchError, create_table
from spark_jobs.engine.lookups import LookupMovedError, Lookups, refuse_keys_of_other_types
from spark_jobs.engine.passes import LEAST_ROWS_A_FILE, KeepingPass, WritingPass
from spark_jobs.engine.query import Query
from spark_jobs.lake.accounting.ledger import LedgerEntry, named
from spark_jobs.lake.accounting.ledger_table import takes_rows_away
from spark_jobs.lake.checkpoints.epochs import Starts, current_epoch, fix_starts, history_cut, refuse_never, starts_of
from spark_jobs.lake.checkpoints.offsets import read_by_batch, versions_read
from spark_jobs.lake.checkpoints.reset import EMPTIED
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commit_records.history import actions_at, find_stamp, info_of, latest_version, unsigned_commits
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import LedgerError, MissingTableError, RepeatedTasksError
from spark_jobs.lake.tables import opening as tables
from spark_jobs.plan import logical
from spark_jobs.plan.columns import (
    EVENT_COLUMNS,
    FATE,
    HEARTBEAT,
    INGEST_SEQ,
    SEQ,
    SOURCE,
    SOURCE_TABLE,
    WINDOW_END,
    given_to_events,
)
from spark_jobs.plan.meanings import column_comments
from spark_jobs.plan.quarantine import NO_SUCH_KEY
from spark_jobs.plan.tables import TableRef
from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.data_files import DataFiles
from spark_jobs.spark.frames import size_of
from spark_jobs.spark.partitions import around_state
from spark_jobs.spark.progress import BatchBounds, StateFigures, state_figures, stateful_partitions
from spark_jobs.spark.state import rows_by_store
from spark_jobs.spec import METADATA_COLUMNS, Pipeline, Table
from spark_jobs.spec.names import text_in_spark
from spark_jobs.transforms import account
from spark_jobs.transforms.aggregation import top_n
from spark_jobs.transforms.branches import Branches
from spark_jobs.transforms.events import project, with_row_steps
from spark_jobs.transforms.identity import with_source
from spark_jobs.transforms.late import FEW, Bronze, LateRows, late_schema, quarantine_schema, source_table
from spark_jobs.transforms.results import REVISED, with_revision


@dataclass(frozen=True)
class Start:
    """Where a stream begins in a table.

    Attributes:
        version: the first that it reads.
        snapshot: it begins with all that the table holds, at this version or a later one.
    """

    version: int
    snapshot: bool = False


class PipelineQuery(Query[Pipeline]):
    """Reads bronze, writes results, keeps what came too late for them and accounts for every event."""

    branches: Branches
    _is_first_batch = True
    _may_be_known = True
    """Whether the tables may have the batch that comes next: it is the first one after a start."""

    @property
    def output_mode(self) -> str:  # type: ignore[override]
        """Spark's output mode is the sink's."""
        return self.definition.sink.mode

    @cached_property
    def logical(self) -> logical.LogicalPlan:
        """What the definition means."""
        return logical.build(self.definition)

    @cached_property
    def lookups(self) -> Lookups:
        """The tables in which columns are looked up."""
        return Lookups(self.spark, self.lake, self.name, self.logical.lookups)

    def _begin_plan(self) -> None:
        """Takes a version of each lookup: the one that a batch was begun with, or the newest."""
        cut_us = history_cut(self.lake, current_epoch(self.lake, self.name))
        self.branches = Branches(self.logical, self.lookups.take(*self._versions_begun_with()), cut_us=cut_us)
        self._is_first_batch = self._may_be_known = True

    def _versions_begun_with(self) -> tuple[dict[str, int], dict[str, str]]:
        """Of the batch that is planned and not finished, as far as a table has a part of it; and the tables' ids."""
        epoch = current_epoch(self.lake, self.name)
        if not self.logical.lookups or epoch is None:
            return {}, {}
        planned, finished = (newest_batch(self.lake, epoch.folder, log) for log in ("offsets", "commits"))
        if planned is None or planned == finished:
            return {}, {}
        for table in self.logical.tables:
            if not tables.exists(self.lake, table.name):
                continue
            found = find_stamp(self.lake, table.name, lambda stamp: stamp.pipeline == self.name)
            if found is not None and (found.epoch, found.batch_id) == (epoch.number, planned):
                return dict(found.lookups), dict(found.lookup_ids)
        return {}, {}

    @property
    def reads_history(self) -> bool:
        """Whether this is the first query of an epoch that begins at a cut."""
        return self.branches.cut_us is not None

    def before_batch(self, batch_id: int) -> None:
        """Ends the query where a newer version of a lookup is to be taken."""
        # The first batch after a start runs in any case: it may be one that was begun, and a table that changes all the
        # time must not keep the query from going on.
        first, self._is_first_batch = self._is_first_batch, False
        if self.lookups.steps and not first and self.lookups.moved():
            raise LookupMovedError(self.name)

    @cached_property
    def _data_files(self) -> DataFiles:
        """Of the result."""
        return DataFiles(self.lake, self.logical.result.name)

    @property
    def looked_up(self) -> dict[str, int]:
        """Table -> the version in which the running plan looks columns up."""
        return dict(self.lookups.versions)

    @property
    def looked_up_ids(self) -> dict[str, str]:
        """Table -> the id of the Delta table of that version."""
        return dict(self.lookups.ids)

    # --- tables ---

    def create_tables(self) -> None:
        """The result, and beside it what the definition needs: late rows, the groups of a live ranking."""
        for read in self.logical.reads:
            if not tables.exists(self.lake, read.name):
                raise MissingTableError(
                    f"pipeline `{self.name}` reads {read.name}, which does not exist in {self.lake.uri}. Nothing "
                    f"was started. Fill it with an ingest first, or run `tidemark run {self.name} --with-sources`."
                )
        self._bronze_schemas = [self._bronze(read).schema for read in self.logical.reads]
        self._refuse_reserved_names()
        self._refuse_names_that_exist()
        self._refuse_a_user_that_is_no_column()
        self._begin_plan()
        events = [self._batch_source(table) for table in self.logical.reads]
        self._refuse_sides_that_do_not_fit(events)
        self._refuse_lookups_that_do_not_fit(self.branches, events)
        schemas = {"result": self._result_schema(events)}
        if self.logical.table("late") is not None:
            schemas["late"] = self._late_schema(events)
        if self.logical.table("quarantine") is not None:
            schemas["quarantine"] = self._quarantine_schema(events)
        if self.logical.table("groups") is not None:
            # All that is in the result but the rank, which only a choice of groups has.
            schemas["groups"] = StructType([field for field in schemas["result"] if field.name != "rank"])
        self._schemas = schemas
        for table in reversed(self.logical.tables):
            comments = column_comments(self.definition, table.role)
            create_table(self.lake, table.name, schemas[table.role], statistics=table.statistics, comments=comments)

    def _refuse_sides_that_do_not_fit(self, events: Sequence[DataFrame]) -> None:
        """A name that both sides of a join have would mean one of two columns."""
        if len(self.logical.sides) == 1:
            return
        left, right = events[0].schema, events[-1].schema
        shared = (set(left.names) & set(right.names)) - {*METADATA_COLUMNS}
        keys = self.branches.operator.state.event_keys
        doubled = sorted(shared - set(keys))
        if doubled:
            raise SchemaMismatchError(
                f"pipeline `{self.name}`: both sides of the Join have {doubled}. Nothing was started or written. "
                f"Rename those of {self.logical.reads[-1].name} with `select`."
            )
        for key in shared & set(keys):
            types = left[key].dataType.simpleString(), right[key].dataType.simpleString()
            if types[0] != types[1]:
                raise SchemaMismatchError(
                    f"pipeline `{self.name}`: the Join compares `{key}`, a {types[0]}, with a {types[1]}. Nothing was "
                    "started or written. Cast one of them with `select`."
                )

    def refuse_lookups(self) -> None:
        """Refuses tables in which the pipeline cannot look columns up; for who computes it without a start.

        Raises:
            MissingTableError: if one does not exist.
            RepeatedKeyError: if one has a key twice.
            SchemaMismatchError: if one has keys of another type.
        """
        branches = Branches(self.logical, self.lookups.take({}, {}))
        self._refuse_lookups_that_do_not_fit(branches, [self._batch_source(table) for table in self.logical.reads])

    def _refuse_lookups_that_do_not_fit(self, branches: Branches, events: Sequence[DataFrame]) -> None:
        for step, rows, table in branches.looked_up(events):
            refuse_keys_of_other_types(self.name, step, rows.schema, table.schema)

    def _refuse_reserved_names(self) -> None:
        """Columns of bronze that would take the place of those by which events are told apart."""
        for table, schema in zip(self.logical.reads, self._bronze_schemas, strict=True):
            if table.select is None and (reserved := given_to_events(schema.names)):
                raise SchemaMismatchError(
                    f"pipeline `{self.name}`: {table.name} has columns {reserved}, names that Tidemark gives to "
                    "columns of its own. Nothing was started or written. Name the columns that are read with `select` "
                    "on the source, these under other names."
                )

    def _refuse_names_that_exist(self) -> None:
        """A `Select` adds columns; one that replaced a column of bronze would make late rows say something else."""
        given = {name.casefold() for name in self._batch_source(self.logical.reads[0]).columns}
        added = [name for step in self.definition.row_steps for name in step.adds()]
        doubled = sorted(name for name in added if name.casefold() in given)
        if doubled:
            raise SchemaMismatchError(
                f"pipeline `{self.name}`: Select adds {doubled}, which {self.logical.reads[0].name} has already. "
                "Nothing was started or written. Give them other names."
            )

    def _refuse_a_user_that_is_no_column(self) -> None:
        """Where no column is called `user`, Spark takes the name for who runs the stream."""
        added = {name for step in self.definition.row_steps for name in step.adds()}
        own = {*chain.from_iterable(read for step in self.definition.steps for _, read in step.reads())}
        for table, schema in zip(self.logical.reads, self._bronze_schemas, strict=True):
            if table.select is None:
                given, read = {*schema.names, *added}, own
            else:
                given, read = {*schema.names}, {*table.reads()}
            if "user" in {name.casefold() for name in read} - {name.casefold() for name in given}:
                raise SchemaMismatchError(
                    f"pipeline `{self.name}`: expected a column `user` in {table.name}, found {sorted(schema.names)}. "
                    "Nothing was started or written. Name the column that is meant."
                )

    def _batch_source(self, table: Table) -> DataFrame:
        return self._events(self._bronze(table), table)

    def _events(self, bronze: DataFrame, table: Table) -> DataFrame:
        events = project(bronze, table, (*EVENT_COLUMNS, HEARTBEAT))
        side = self.logical.side_of(table.name)
        if not side.several or self._state_knows_no_sources:
            return events
        return with_source(events, side, table.name)

    @property
    def _state_knows_no_sources(self) -> bool:
        """Whether an earlier version has begun the checkpoint, whose state has no place for the source of an event.

        The result goes on without.
        """
        operator = self.logical.operator
        if operator is None or not operator.state.keeps_events:
            return False
        result, epoch = operator.output.result.name, current_epoch(self.lake, self.name)
        if epoch is None or not tables.exists(self.lake, result):
            return False
        if SOURCE_TABLE in {field.name for field in tables.open_table(self.lake, result).schema().fields}:
            return False
        return newest_batch(self.lake, epoch.folder, "offsets") is not None

    def _bronze(self, table: Table) -> DataFrame:
        return self.spark.read.format("delta").load(self.lake.table_path(table.name))

    def _result_schema(self, events: Sequence[DataFrame]) -> StructType:
        results = self.branches.transform.written(self.branches.results(events))
        if self.definition.top_n:
            results = top_n(results, self.definition.top_n, self.branches.operator.state.event_keys)
        return with_revision(results, self.logical, 0).schema

    def _quarantine_schema(self, events: Sequence[DataFrame]) -> StructType:
        schema = quarantine_schema(events, self.logical)
        if doubled := sorted({name for name in schema.names if schema.names.count(name) > 1}):
            raise SchemaMismatchError(
                f"pipeline `{self.name}` reads columns {doubled}, and "
                f"{self.branches.operator.output.quarantine.name} has columns of these names for why events are there. "
                "Nothing was started or written. Give the columns other names with `select` on the source."
            )
        return schema

    def _late_schema(self, events: Sequence[DataFrame]) -> StructType:
        schema = late_schema(events, self.logical, self.branches.lateness)
        doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if doubled:
            raise SchemaMismatchError(
                f"pipeline `{self.name}` reads columns {doubled}, and "
                f"{self.branches.operator.output.late.name} has columns of these names for what the events missed. "
                "Nothing was started or written. Give the columns other names with `select` on the source."
            )
        return schema

    # --- plan ---

    def plan(self) -> DataFrame:
        """Both branches over one source: it is read by one set of offsets."""
        return self.branches.both([self._stream(table) for table in self.logical.reads])

    def _stream(self, table: Table) -> DataFrame:
        options = {"skipChangeCommits": "true"}
        start = self._start(table)
        if not start.snapshot:
            options["startingVersion"] = str(start.version)
        if table.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(table.max_files_per_trigger)
        if table.max_bytes_per_trigger is not None:
            options["maxBytesPerTrigger"] = str(table.max_bytes_per_trigger)
        bronze = self.spark.readStream.format("delta").options(**options).load(self.lake.table_path(table.name))
        return self._events(bronze, table)

    def _start(self, table: Table) -> Start:
        """Where this epoch begins in a source table; a new one at its first commit, or where a reset emptied it.

        Where the log does not go back so far any more, or another program has taken rows away since, with what the
        table holds: its files are in order of arrival.
        """
        if (noted := self._starts.versions.get(table.name)) is not None:
            return Start(noted, table.name in self._starts.snapshots)
        if table.name not in self._planned_starts:
            commits = unsigned_commits(self.lake, table.name)
            emptied = (version for version, actions in commits if info_of(actions).get(EMPTIED) == "reset")
            first = next(emptied, 0)
            later = (actions for version, actions in commits if version > first)
            taken = any(takes_rows_away(actions) and decode(info_of(actions)) is None for actions in later)
            there = not taken and actions_at(self.lake, table.name, first) is not None
            start = Start(first) if there else Start(latest_version(self.lake, table.name), snapshot=True)
            self._planned_starts[table.name] = start
        return self._planned_starts[table.name]

    @cached_property
    def _planned_starts(self) -> dict[str, Start]:
        """Where the plan begins in each source table, as long as nothing is noted."""
        return {}

    @cached_property
    def _starts(self) -> Starts:
        """Where this epoch begins in its source tables; of an epoch that has not begun yet nothing is known."""
        epoch = current_epoch(self.lake, self.name)
        return (starts_of(self.lake, epoch) if epoch is not None else None) or Starts(versions={})

    def fix_starts(self) -> bool:
        """Notes where a new checkpoint begins in its source tables, before Spark plans its first batch.

        Spark asks for it again at each start until a batch is finished, and must get the same answer.
        """
        # The epoch may have been begun, or its history finished, by another since the plan was made.
        cut_us, planned_with = history_cut(self.lake, self.epoch), self.branches.cut_us
        self.branches = self.branches.beyond(cut_us)
        return self._fix_versions() or cut_us != planned_with

    def _fix_versions(self) -> bool:
        used = self._starts
        if (noted := starts_of(self.lake, self.epoch)) is not None:
            refuse_never(self.epoch, noted)
            # A reset may have come between the plan and now.
            self._starts = noted
            return noted != used
        self._starts = Starts()
        begin = {table.name: self._start(table) for table in self.logical.reads}
        planned = Starts(
            versions={name: start.version for name, start in begin.items()},
            snapshots=tuple(name for name, start in begin.items() if start.snapshot),
        )
        self._starts = fix_starts(self.lake, self.epoch, planned)
        # Another driver may have been first, with another look at the tables.
        return self._starts != planned

    # --- batches ---

    def process(self, batch: DataFrame, batch_id: int, bounds: BatchBounds) -> LedgerEntry:
        """Counts, splits, checks and commits one batch; a replayed one like any other.

        The counting pass materialises the whole plan even where every table already has the batch: Spark's state
        partitions have to run, or the query dies at each restart.
        """
        # The logs say it before the batch runs, and decide how it does.
        source_rows = self._rows_of_sources(bounds)
        known = None
        if self._may_be_known:
            # Of a checkpoint that is another than the table's, not even the late rows may be written.
            known = self.writer("result", self.logical.result.name).find(self.stamp("result", batch_id, 0))
            self._may_be_known = False
        computed = self._pass(batch, bounds, None if known else source_rows)
        try:
            computed.run()
            self.reached("materialised", batch_id)
            state, content = state_figures(self.query), computed.content()
            if repeated := max(computed.repeated_tasks, state.repeated_tasks):
                raise RepeatedTasksError(
                    f"pipeline `{self.name}`: {repeated} tasks of batch {batch_id} ran twice, as happens when a worker "
                    "is lost, and Spark counted twice what they read. Nothing of this batch was written; it runs again "
                    "at the next start."
                )
            entry = self._entry(account.known(computed.events), account.known(computed.figures), state, bounds)
            entry = self._with_source(entry, source_rows)
            if entry["quarantined"]:
                self._commit_quarantine(computed.set_aside, entry["quarantined"], batch_id, content["quarantine"])
            if entry.late_events and self.branches.operator.output.keeps_late:
                self._commit_late(computed.late, entry, state.dropped, batch_id, bounds, content["late"])
            return self._commit_result(computed, entry, batch_id, content["result"])
        finally:
            computed.close()

    def _pass(self, batch: DataFrame, bounds: BatchBounds, expected: int | None) -> KeepingPass | WritingPass:
        """How the batch is computed.

        Args:
            batch: as Spark hands it over.
            bounds: of it.
            expected: rows that it reads; None: unknown, or its result is in the table already.
        """
        operator, top = self.branches.operator, self.definition.top_n
        if (
            operator.output.gives_events
            and not self.branches.transform.one_branch
            and not operator.output.updates
            and not top
        ):
            fewest = stateful_partitions(self.query) * LEAST_ROWS_A_FILE
            if expected and expected >= fewest and (parts := around_state(batch, self.query)) is not None:
                return WritingPass(
                    self.logical,
                    self.branches,
                    bounds,
                    lake=self.lake,
                    columns=self._schemas["result"].names,
                    files=self._data_files,
                    around_state=parts,
                )
        return KeepingPass(self.logical, self.branches, bounds, batch)

    def _entry(
        self, counted: Mapping[str, int], kept: Mapping[str, int], state: StateFigures, bounds: BatchBounds
    ) -> LedgerEntry:
        operator = self.branches.operator
        terms = dict(operator.accounting.of_batch(counted, state.duplicates))
        terms |= {name: kept[name] for name in operator.accounting.result_terms}
        terms["rows"] = kept["rows"] - kept["withheld"]
        if any(equation.whole == "produced" for equation in self.logical.equations):
            terms["produced"] = kept["rows"]
        if kept["withheld"]:
            terms["withheld"] = kept["withheld"]
        if operator.lateness.in_windows:
            terms["pairs_late"] = kept["pairs_late"]
        if operator.state.operators:
            terms["state_rows"] = state.rows
        if operator.state.stores:
            by_store = rows_by_store(self.spark, str(self.query.runId))
            by_kind = {term: by_store.get(store, 0) for term, store in operator.state.stores.items()}
            # On a cluster the stores lie in other processes.
            terms |= by_kind if sum(by_kind.values()) == state.rows else {}
        entry = LedgerEntry(
            run=str(self.query.runId),
            started_ms=bounds.batch_time_ms,
            watermark_ms=bounds.watermark_ms,
            late_watermark_ms=bounds.late_watermark_ms,
            grace_ms=self.logical.grace_ms,
            reads=versions_read(self.definition, self._starts, bounds.begins, bounds.sources)
            | {table: (version, version) for table, version in self.looked_up.items()},
            table_ids=self.looked_up_ids,
            terms=terms,
            reasons={NO_SUCH_KEY: terms["quarantined"]} if terms.get("quarantined") else {},
            sources=bounds.sources,
        )
        if entry.late_events != kept["late_events"]:
            raise LedgerError(
                f"pipeline `{self.name}`: {entry.late_events} events are late by the count over all, "
                f"but {kept['late_events']} were kept. Nothing of this batch was written; the stream has stopped."
            )
        missed = kept["pairs_late"]
        if operator.lateness.counts_groups:
            fits = (state.dropped == 0) == (missed == 0) and state.dropped <= missed
        else:
            fits = state.dropped == entry.late_events
        if not fits:
            raise _disagreement(self.name, state.dropped, f"{missed} that are late")
        for equation in self.logical.equations:
            if equation.open is None and entry[equation.whole] != (found := sum(entry[p] for p in equation.parts)):
                raise LedgerError(
                    f"pipeline `{self.name}`: {named(equation.whole)} {entry[equation.whole]} {equation.unit}, "
                    f"accounts for {found}. Nothing of this batch was written; the stream has stopped."
                )
        return entry

    def _rows_of_sources(self, bounds: BatchBounds) -> int | None:
        """What the source tables hold between the batch's offsets, by their own logs; None: they do not tell.

        Raises:
            SourceEmptiedError: if a reset of an ingest took back what this pipeline has counted.
        """
        return read_by_batch(self.lake, self.definition, self._starts, bounds.begins, bounds.sources).rows

    def _with_source(self, entry: LedgerEntry, found: int | None) -> LedgerEntry:
        """The entry with the rows of its sources.

        Raises:
            LedgerError: if the batch has not read just that.
        """
        read = entry["read"] + entry["heartbeats"]
        if found is not None and found != read:
            raise LedgerError(
                f"pipeline `{self.name}`: a batch has read {read} rows, but the logs of its sources hold {found} "
                "between its offsets. Nothing of it was written; the stream has stopped."
            )
        return entry.with_terms(source_rows=found)

    def _commit_result(
        self, computed: KeepingPass | WritingPass, entry: LedgerEntry, batch_id: int, content: str | None
    ) -> LedgerEntry:
        changed, withheld = computed.figures["rows"] or 0, computed.figures["withheld"] or 0
        if isinstance(computed, KeepingPass) and self.branches.operator.output.updates:
            entry = self._upsert_result(computed.results, computed.size, entry, changed, batch_id, content)
        elif isinstance(computed, KeepingPass) and self.definition.top_n and changed > withheld:
            entry = self._append_chosen(computed.results, computed.size, entry, batch_id, content)
        else:
            count = changed - withheld
            entry = entry.with_terms(rows=count)
            stamp = self.stamp("result", batch_id, count, ledger=entry, content=content)
            self.writer("result", self.logical.result.name).commit(computed.append(count), stamp)
        self.reached("result_committed", batch_id)
        return entry

    def _append_chosen(
        self, rows: DataFrame, size: int, entry: LedgerEntry, batch_id: int, content: str | None
    ) -> LedgerEntry:
        top = self.definition.top_n
        assert top is not None
        results = self.branches.transform.written(rows.where(F.col(FATE).isNull()))
        results = top_n(results, top, self.branches.operator.state.event_keys).persist()
        count = results.count()
        entry = entry.with_terms(rows=count)
        stamp = self.stamp("result", batch_id, count, ledger=entry, content=content)
        revised = with_revision(results, self.logical, entry.started_ms)
        self.writer("result", self.logical.result.name).commit(Append(revised, count, size), stamp)
        results.unpersist()
        return entry

    def _upsert_result(
        self, rows: DataFrame, size: int, entry: LedgerEntry, count: int, batch_id: int, content: str | None
    ) -> LedgerEntry:
        groups, keys = self.logical.table("groups"), self.branches.operator.output.keys
        results = self.branches.transform.written(rows)
        revised = with_revision(results, self.logical, entry.started_ms)
        chosen = groups is not None and count > 0
        if groups is not None and count:
            writer = self.writer("groups", groups.name)
            change = Upsert(revised, count, size, keys)
            writer.commit(change, self.stamp("groups", batch_id, count, content=content))
            self.reached("groups_committed", batch_id)
            # Not only what has changed: the whole choice of each window that was touched.
            revised = with_revision(self._chosen(groups, results), self.logical, entry.started_ms).persist()
            count, size = revised.count(), size_of(revised)
        entry = entry.with_terms(rows=count)
        stamp = self.stamp("result", batch_id, count, ledger=entry, content=content)
        writer = self.writer("result", self.logical.result.name)
        writer.commit((ReplaceWindows if chosen else Upsert)(revised, count, size, keys), stamp)
        revised.unpersist()
        return entry

    def _commit_late(
        self,
        late: DataFrame,
        entry: LedgerEntry,
        dropped: int,
        batch_id: int,
        bounds: BatchBounds,
        content: str | None,
    ) -> None:
        operator = self.branches.operator
        bronze = Bronze(self.spark, self.lake, self.logical.reads, self._bronze_schemas)
        events, pairs = entry.late_events, entry.terms.get("pairs_late", entry.late_events)
        fetched = LateRows(self.logical, self.branches.lateness, bronze, bounds, self._schemas["late"].names)
        rows, found = fetched.rows(late, events, batch_id, self.epoch.number)
        try:
            if (found.events, found.pairs) != (events, pairs):
                raise LedgerError(
                    f"pipeline `{self.name}`: batch {batch_id} has {events} late events in {pairs} pairs, "
                    f"but bronze gives {found.events} in {found.pairs}. Nothing of it was written; the stream has "
                    "stopped."
                )
            if not found.fewest_groups <= dropped <= found.most_groups:
                raise _disagreement(self.name, dropped, f"{found.fewest_groups} late")
            writer = self.writer("late", operator.output.late.name)
            writer.commit(Append(rows, events, size_of(rows)), self.stamp("late", batch_id, events, content=content))
        finally:
            if isinstance(rows, DataFrame):
                rows.unpersist()
        self.reached("late_committed", batch_id)

    def _commit_quarantine(self, rows: DataFrame, events: int, batch_id: int, content: str | None) -> None:
        """Keeps the events whose key a table does not have."""
        bronze = Bronze(self.spark, self.lake, self.logical.reads, self._bronze_schemas)
        names = ", ".join(step.table for step in self.logical.lookups if step.missing == "quarantine")
        why = rows.selectExpr(
            SOURCE,
            f"{SEQ} AS {INGEST_SEQ}",
            *source_table(self.logical),
            f"{text_in_spark(NO_SUCH_KEY)} AS reason",
            f"{text_in_spark(f'{names} has no row with its key')} AS detail",
            f"{self.epoch.number} AS _epoch",
            f"{batch_id}L AS _batch_id",
        )
        columns = self._schemas["quarantine"].names
        found = bronze.beside(why.toArrow(), columns) if events <= FEW else bronze.beside_many(why, columns).persist()
        reasons = {NO_SUCH_KEY: events}
        stamp = self.stamp("quarantine", batch_id, events, content=content, reasons=reasons)
        try:
            writer = self.writer("quarantine", self.branches.operator.output.quarantine.name)
            writer.commit(Append(found, events, size_of(found)), stamp)
        finally:
            if isinstance(found, DataFrame):
                found.unpersist()
        self.reached("quarantine_committed", batch_id)

    def _groups(self, table: TableRef, ends_us: Sequence[int]) -> DataFrame:
        """The groups in the files that may hold windows with these ends."""
        ends = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=end) for end in sorted(ends_us)]
        groups = tables.open_table(self.lake, table.name)
        held = tables.files_holding(groups, WINDOW_END, ends)
        files = [f"{self.lake.table_path(table.name)}/{path}" for path in held]
        return self.spark.read.schema(self._schemas["groups"]).parquet(*files)

    def _chosen(self, groups_table: TableRef, changed: DataFrame) -> DataFrame:
        """The new result of every window that this batch touched, chosen from all of its groups."""
        windows = changed.select(WINDOW_END).distinct()
        ends = windows.select(F.unix_micros(WINDOW_END)).toArrow().column(0).to_pylist()
        groups = self._groups(groups_table, ends)
        if len(ends) <= FEW_WINDOWS:
            touched = groups.where(F.col(WINDOW_END).isin([F.timestamp_micros(F.lit(end)) for end in ends]))
        else:
            touched = groups.join(windows, WINDOW_END, "left_semi")
        columns = [name for name in groups.columns if name not in REVISED]
        filters = [step for step in self.definition.result_steps if not step.adds()]
        chosen = with_row_steps(touched.select(*columns_of(columns)), filters).where(F.col(FATE).isNull()).drop(FATE)
        top = self.definition.top_n
        return top_n(chosen, top, self.branches.operator.state.event_keys) if top else chosen


def _disagreement(pipeline: str, dropped: int, ours: str) -> LedgerError:
    return LedgerError(
        f"pipeline `{pipeline}`: Spark dropped {dropped} late groups, the late split finds {ours}. Nothing of this "
        "batch was written; the stream has stopped."
    )
