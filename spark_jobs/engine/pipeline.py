"""A stateful pipeline: its step, the late split, results and the ledger, in one query.

The plan has two branches over one source (`transforms/branches.py`). What the batch's step gave goes to the result;
above the narrow branch each batch keeps the events that Spark's operator dropped in silence.
"""

from collections.abc import Mapping
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.commits.changes import is_nested
from spark_jobs.engine import balancing, fitting, result_tables
from spark_jobs.engine.batch_columns import BatchColumns
from spark_jobs.engine.fetching import FEW_BYTES, FEW_ROWS, FetchedPass, FetchingPass, FetchPlan, KeptPass
from spark_jobs.engine.lookups import LookupMovedError, Lookups
from spark_jobs.engine.passes import LEAST_ROWS_A_FILE, KeepingPass, WritingPass
from spark_jobs.engine.query import Failpoint, PlanOutdatedError, Query, unobserved
from spark_jobs.engine.reading import BronzeReader
from spark_jobs.engine.writing import BatchWriter
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import current_epoch, history_cut, note_raised
from spark_jobs.lake.checkpoints.halts import Halt
from spark_jobs.lake.checkpoints.offsets import LogSpan
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commit_records.history import find_stamp
from spark_jobs.lake.commit_records.stamps import Role
from spark_jobs.lake.errors import RepeatedTasksError
from spark_jobs.lake.tables import opening as tables
from spark_jobs.plan.logical import LogicalPlan, build, with_quarantine
from spark_jobs.spark.data_files import DataFiles
from spark_jobs.spark.growing import Growth
from spark_jobs.spark.partitions import around_state
from spark_jobs.spark.progress import BatchBounds, StateFigures, state_figures, stateful_partitions
from spark_jobs.spark.state import rows_by_store
from spark_jobs.spec import Pipeline
from spark_jobs.transforms.branches import Branches

AnyPass = KeepingPass | WritingPass | FetchedPass


class PipelineQuery(Query[Pipeline]):
    """Reads bronze, writes results, keeps what came too late for them and accounts for every event.

    Args:
        spark: as of any query.
        lake: as of any query.
        definition: as of any query.
        failpoint: as of any query.
        growth: in which others of the session fill tables that it reads; None: they do not.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        definition: Pipeline,
        *,
        failpoint: Failpoint = unobserved,
        growth: Growth | None = None,
    ) -> None:
        super().__init__(spark, lake, definition, failpoint=failpoint)
        self._growth = growth

    branches: Branches
    _schemas: Mapping[Role, StructType]
    """Columns of each table that it writes."""
    _columns: BatchColumns | None = None
    _fetch_plan: FetchPlan | None = None
    _was_begun: tuple[int, int] | None = None
    """The epoch and the number of the batch that was planned and not finished when the query started."""
    _skip: Halt | None = None
    """The decision by which the batch that comes first is skipped; None: it is not."""
    _is_first_batch = True
    _may_be_known = True
    """Whether the tables may have the batch that comes next: it is the first one after a start."""

    @property
    def output_mode(self) -> str:  # type: ignore[override]
        """Spark's output mode is the sink's."""
        return self.definition.sink.mode

    @property
    def logical(self) -> LogicalPlan:
        """The logical plan of the definition: its tables, operator and equations."""
        return self._usual if self._skip is None else with_quarantine(self._usual)

    @cached_property
    def _usual(self) -> LogicalPlan:
        return build(self.definition)

    @cached_property
    def lookups(self) -> Lookups:
        """The tables in which columns are looked up."""
        return Lookups(self.spark, self.lake, self.name, self._usual.lookups)

    @cached_property
    def reader(self) -> BronzeReader:
        """The tables that it reads."""
        return BronzeReader(self.spark, self.lake, self.definition, self._usual, self._growth)

    def _begin_plan(self) -> None:
        """Takes a version of each lookup: the one that a batch was begun with, or the newest."""
        cut_us = history_cut(self.lake, current_epoch(self.lake, self.name))
        lookups = self.lookups.take(*self._versions_begun_with())
        self.branches = Branches(self.logical, lookups, cut_us=cut_us, skips=self._skip is not None)
        self._is_first_batch = self._may_be_known = True
        self._is_noted = False

    def _begun(self) -> tuple[int, int] | None:
        """The epoch and the number of the batch that is planned and not finished; None: there is none."""
        epoch = current_epoch(self.lake, self.name)
        if epoch is None:
            return None
        planned, finished = (newest_batch(self.lake, epoch.folder, log) for log in ("offsets", "commits"))
        return None if planned is None or planned == finished else (epoch.number, planned)

    def _skipped_by(self) -> Halt | None:
        """The decision that the batch which was begun is skipped; None: it is not, or there is none."""
        begun = self._was_begun
        decided = self.halts.decided(*begun) if begun is not None else None
        return decided if decided is not None and decided.choice == "skip" else None

    def _versions_begun_with(self) -> tuple[dict[str, int], dict[str, str]]:
        """Of the batch that is planned and not finished, as far as a table has a part of it; and the tables' ids."""
        begun = self._was_begun if self.logical.lookups else None
        if begun is None:
            return {}, {}
        for table in self.logical.tables:
            if not tables.exists(self.lake, table.name):
                continue
            found = find_stamp(self.lake, table.name, lambda stamp: stamp.pipeline == self.name)
            if found is not None and (found.epoch, found.batch_id) == begun:
                return dict(found.lookups), dict(found.lookup_ids)
        return {}, {}

    @property
    def by_clock(self) -> bool:
        """Whether its step does something by the clock."""
        return self._usual.operator is not None and self._usual.operator.state.by_clock

    @property
    def reads_history(self) -> bool:
        """Whether this is the first query of an epoch that begins at a cut."""
        return self.branches.cut_us is not None

    def before_batch(self, batch_id: int) -> None:
        """Ends the query where a newer version of a lookup is to be taken, or the batch before was one to skip."""
        # The first batch after a start runs in any case: it may be one that was begun, and a table that changes all the
        # time must not keep the query from going on.
        first, self._is_first_batch = self._is_first_batch, False
        if self._skip is not None and not first:
            raise PlanOutdatedError(self.name)
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

    def create_tables(self) -> None:
        """The result, and beside it what the definition needs: late rows, the groups of a live ranking."""
        self._was_begun = self._begun()
        self._skip = self._skipped_by()
        pipeline, plan, reader = self.definition, self.logical, self.reader
        reader.look()
        fitting.refuse_names(pipeline, plan, reader)
        self._begin_plan()
        events = [reader.events(table) for table in plan.reads]
        fitting.refuse_sides(pipeline, plan, self.branches, events)
        fitting.refuse_lookups(pipeline, self.branches, events)
        self._schemas = result_tables.schemas_of(pipeline, plan, self.branches, events)
        result_tables.create_tables(self.lake, plan, self._schemas)

    def refuse_lookups(self) -> None:
        """Refuses tables in which the pipeline cannot look columns up; for who computes it without a start.

        Raises:
            MissingTableError: if one does not exist.
            RepeatedKeyError: if one has a key twice.
            SchemaMismatchError: if one has keys of another type.
        """
        branches = Branches(self.logical, self.lookups.take({}, {}))
        events = [self.reader.events(table) for table in self.logical.reads]
        fitting.refuse_lookups(self.definition, branches, events)

    def plan(self) -> DataFrame:
        """Both branches over one source: it is read by one set of offsets."""
        untouched = self.branches.skips
        return self.branches.both([self.reader.stream(table, untouched=untouched) for table in self.logical.reads])

    def fix_starts(self) -> bool:
        """Notes where a new checkpoint begins in its source tables, before Spark plans its first batch.

        Spark asks for it again at each start until a batch is finished, and must get the same answer.
        """
        # The epoch may have been begun, or its history finished, by another since the plan was made.
        cut_us, planned_with = history_cut(self.lake, self.epoch), self.branches.cut_us
        self.branches = self.branches.beyond(cut_us)
        return self.reader.fix_versions(self.epoch) or cut_us != planned_with

    def process(self, batch: DataFrame, batch_id: int, bounds: BatchBounds) -> LedgerEntry:
        """Counts, splits, checks and commits one batch; one that is tried again like any other.

        The counting pass materialises the whole plan even where every table already has the batch: Spark's state
        partitions have to run, or the query dies at each restart.
        """
        # The logs say it before the batch runs, and decide how it does.
        span = self.reader.between(bounds)
        source_rows = span.rows
        known = None
        if self._may_be_known:
            # Of a checkpoint that is another than the table's, not even the late rows may be written.
            known = self.writer("result", self.logical.result.name).find(self.stamp("result", batch_id, 0))
            self._may_be_known = False
        computed = self._pass(batch, batch_id, bounds, LogSpan(None) if known else span)
        try:
            computed.run()
            self.failpoint("materialised", batch_id)
            state, content = state_figures(self.spark, self.query), computed.content()
            if repeated := max(computed.repeated_tasks, state.repeated_tasks):
                raise RepeatedTasksError(
                    f"pipeline `{self.name}`: {repeated} tasks of batch {batch_id} ran twice, as happens when a worker "
                    "is lost, and Spark counted twice what they read. Nothing of this batch was written; it runs again "
                    "at the next start."
                )
            entry = self._entry(computed.events, computed.figures, state, bounds)
            entry = balancing.with_source_rows(self.name, entry, source_rows)
            writer, rows = self._batch_writer(bounds, batch_id), self._fetched(computed, entry)
            if entry["quarantined"]:
                writer.quarantine(rows.set_aside, entry["quarantined"], content["quarantine"])
            if entry.late_events and self.branches.operator.output.keeps_late:
                writer.late(rows.late, entry, state.dropped, content["late"])
            written = writer.result(rows, entry, content["result"])
        finally:
            computed.close()
        self._note_version()
        return written

    def _note_version(self) -> None:
        """Notes a raised version once it has written a batch: before that, the one before can still go on."""
        if not self._is_noted:
            note_raised(self.lake, self.epoch, self.definition)
            self._is_noted = True

    def _batch_writer(self, bounds: BatchBounds, batch_id: int) -> BatchWriter:
        return BatchWriter(
            query=self,
            plan=self.logical,
            branches=self.branches,
            schemas=self._schemas,
            bronze=self.reader.bronze(untouched=self.branches.skips),
            bounds=bounds,
            batch_id=batch_id,
        )

    def _pass(self, batch: DataFrame, batch_id: int, bounds: BatchBounds, span: LogSpan) -> AnyPass:
        """How the batch is computed.

        Args:
            batch: as Spark hands it over.
            batch_id: of it.
            bounds: of it.
            span: what it reads; of unknown size where its result is in the table already.
        """
        expected = span.rows
        operator, top = self.branches.operator, self.definition.top_n
        if (
            operator.output.gives_events
            and not self.branches.transform.one_branch
            and not operator.output.updates
            and not top
            and not self.branches.skips
        ):
            partitions = stateful_partitions(self.spark, self.query)
            fewest = partitions * LEAST_ROWS_A_FILE
            if expected and expected >= fewest and (parts := around_state(batch, partitions)) is not None:
                return WritingPass(self._asked(parts[0]), bounds, self._data_files, parts)
        if self._gives_few(span, batch_id):
            return FetchingPass(self._fetch_plan_of(batch), bounds, batch)
        return KeepingPass(self._asked(batch), bounds, batch)

    def _fetched(self, computed: AnyPass, entry: LedgerEntry) -> AnyPass:
        """The same batch with its rows in memory, where Spark has kept few of them.

        Args:
            computed: the batch.
            entry: of it.
        """
        if not isinstance(computed, KeepingPass) or not self._may_be_fetched():
            return computed
        rows = (computed.figures["rows"] or 0) + entry.late_events + entry["quarantined"]
        if not 0 < rows <= FEW_ROWS or computed.size > FEW_BYTES:
            return computed
        fetched = KeptPass(computed)
        fetched.run()
        return fetched

    def _may_be_fetched(self) -> bool:
        """Whether nothing more is chosen from the rows of a batch, and its changes can be made of rows in memory."""
        output = self.branches.operator.output
        if self.definition.top_n or output.keeps_groups or self.branches.skips:
            return False
        return not (output.updates and is_nested(self._schemas["result"]))

    def _asked(self, results: DataFrame) -> BatchColumns:
        """What is asked of the rows of each batch.

        Args:
            results: those that the step has given, others perhaps among them.
        """
        if self._columns is None or self._columns.branches is not self.branches:
            written = self._schemas["result"].names
            self._columns = BatchColumns(self.logical, self.branches, results.columns, written)
        return self._columns

    def _fetch_plan_of(self, batch: DataFrame) -> FetchPlan:
        """The plan of its small batches, made with the first one."""
        asked = self._asked(batch)
        if self._fetch_plan is None or self._fetch_plan.asked is not asked:
            self._fetch_plan = FetchPlan(asked, batch)
        return self._fetch_plan

    def _gives_few(self, span: LogSpan, batch_id: int) -> bool:
        """Whether it is known before a batch runs that its rows are few, and nothing more is chosen from them.

        Args:
            span: what it reads.
            batch_id: of it.
        """
        output = self.branches.operator.output
        if not self._may_be_fetched():
            return False
        # Where it failed before, its rows may have been more than fit in memory.
        if (self.epoch.number, batch_id) == self._was_begun:
            return False
        in_state = self._rows_in_state(batch_id) if output.from_state else 0
        if span.rows is None or span.size is None or in_state is None:
            return False
        most = output.most_rows(span.rows, in_state)
        return most is not None and span.rows + most <= FEW_ROWS and span.size <= FEW_BYTES

    def _rows_in_state(self, batch_id: int) -> int | None:
        """Rows of the state before a batch; None: nothing tells."""
        if batch_id == 0:
            return 0
        entry = self.latest if self.latest_batch_id == batch_id - 1 else None
        if entry is None:
            result = self.logical.result.name
            found = find_stamp(self.lake, result, lambda stamp: stamp.pipeline == self.name and stamp.role == "result")
            entry = found.ledger if found is not None else None
            if found is None or (found.epoch, found.batch_id) != (self.epoch.number, batch_id - 1):
                return None
        return entry.terms.get("state_rows") if entry is not None else None

    def _entry(
        self, counted: Mapping[str, int], kept: Mapping[str, int], state: StateFigures, bounds: BatchBounds
    ) -> LedgerEntry:
        """The ledger row of a batch, whose figures do not contradict each other."""
        run = str(self.query.runId)
        plan, operator = self.logical, self.branches.operator
        terms = balancing.terms_of(plan, operator, counted, kept, state, lambda: rows_by_store(self.spark, run))
        entry = LedgerEntry(
            run=run,
            started_ms=bounds.batch_time_ms,
            watermark_ms=bounds.watermark_ms,
            late_watermark_ms=bounds.late_watermark_ms,
            grace_ms=plan.grace_ms,
            reads=self.reader.versions_read(bounds)
            | {table: (version, version) for table, version in self.looked_up.items()},
            table_ids=self.looked_up_ids,
            terms=terms,
            reasons={self.branches.reason: terms["quarantined"]} if terms.get("quarantined") else {},
            decision_id=self._skip.decision_id if self._skip is not None else None,
            sources=bounds.sources,
        )
        balancing.refuse_imbalance(plan, operator, entry, kept, state)
        return entry
