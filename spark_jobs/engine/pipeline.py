"""A stateful pipeline: windows, the late split, results and the ledger, in one query.

The plan has two branches over one source. The first is Spark's own stateful aggregation. The second carries every
event as a narrow row (sequence number, event time, whether it passed `Where`); above it, each batch keeps the events
of which a window ended at or before W(N-1): exactly those whose pairs Spark's operator drops in silence.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.commits.tables import SchemaMismatchError, create_table
from spark_jobs.commits.writer import FEW_WINDOWS
from spark_jobs.engine.query import Query
from spark_jobs.lake import tables
from spark_jobs.lake.checkpoints import Starts, current_epoch, fix_starts, starts_of
from spark_jobs.lake.errors import LedgerError, MissingTableError, RepeatedTasksError
from spark_jobs.lake.ledger import LedgerRow
from spark_jobs.lake.offsets import read_by_batch
from spark_jobs.lake.reset import EMPTIED
from spark_jobs.spark.frames import size_of
from spark_jobs.spark.observed import Observed
from spark_jobs.spark.progress import BatchBounds, StateFigures, state_figures
from spark_jobs.spec import Late, Pipeline, Select, Session, Table, Where, Window
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.expressions import columns
from spark_jobs.transforms.aggregation import EVENTS, aggregate, top_n, with_result_steps
from spark_jobs.transforms.content import digest, digest_sql
from spark_jobs.transforms.events import PASSED, project, with_row_steps
from spark_jobs.transforms.grid import first_end_us, last_end_us, window_count
from spark_jobs.transforms.late import EVENT_COLUMNS, INGEST_SEQ, KEY, SEQ, SOURCE, TIME, Bronze, LateRows, late_schema

HEARTBEAT = "_heartbeat"
_LEAST_LONG = -(2**63)
# Which branch a row comes from.
_NARROW, _RESULT = f"{SOURCE} IS NOT NULL", f"{SOURCE} IS NULL"


class PipelineQuery(Query[Pipeline]):
    """Reads bronze, writes results, keeps what came too late for them and accounts for every event."""

    @property
    def output_mode(self) -> str:  # type: ignore[override]
        """Spark's output mode is the sink's."""
        return self.definition.sink.mode

    @property
    def updates(self) -> bool:
        """Whether results are upserted while they change."""
        return self.definition.sink.mode == "update"

    @property
    def late_policy(self) -> Late | None:
        """What becomes of late events; None where nothing is ever late."""
        return self.definition.watermark.late if self.definition.watermark else None

    # --- tables ---

    def create_tables(self) -> None:
        """The result, and beside it what the definition needs: late rows, the groups of a live ranking."""
        for read in self.definition.tables:
            if not tables.exists(self.lake, read.name):
                raise MissingTableError(
                    f"pipeline `{self.name}` reads {read.name}, which does not exist in {self.lake.uri}. Nothing "
                    f"was started. Fill it with an ingest first, or run `tidemark run {self.name} --with-sources`."
                )
        self._bronze_schemas = [self._bronze(read).schema for read in self.definition.tables]
        self._refuse_names_that_exist()
        self._refuse_a_user_that_is_no_column()
        table, result = self.definition.sink.table, self._result_schema()
        late = self._late_schema() if self.late_policy in (Late.SIDE_OUTPUT, Late.UPDATE) else None
        statistics = ("window_start", "window_end") if self.definition.aggregate.window else ()
        create_table(self.lake, table, result, statistics=statistics)
        if self.updates and self.definition.top_n:
            self._groups_schema = StructType([field for field in result if field.name != "rank"])
            create_table(self.lake, f"{table}__groups", self._groups_schema, statistics=statistics)
        if late is not None:
            create_table(self.lake, f"{table}__late", late)

    def _refuse_names_that_exist(self) -> None:
        """A `Select` adds columns; one that replaced a column of bronze would make late rows say something else."""
        given = {name.casefold() for name in self._batch_source(self.definition.tables[0]).columns}
        added = [name for step in self.definition.row_steps if isinstance(step, Select) for name in step.columns]
        doubled = sorted(name for name in added if name.casefold() in given)
        if doubled:
            raise SchemaMismatchError(
                f"pipeline `{self.name}`: Select adds {doubled}, which {self.definition.tables[0].name} has already. "
                "Nothing was started or written. Give them other names."
            )

    def _refuse_a_user_that_is_no_column(self) -> None:
        """Where no column is called `user`, Spark takes the name for who runs the stream."""
        steps = self.definition.row_steps
        selects = [step.columns for step in steps if isinstance(step, Select)]
        texts = [step.condition for step in steps if isinstance(step, Where)]
        texts += [
            *chain.from_iterable(select.values() for select in selects),
            *self.definition.aggregate.measures.values(),
        ]
        own = {*self.definition.aggregate.by, *chain.from_iterable(map(columns, texts))}
        for table, schema in zip(self.definition.tables, self._bronze_schemas, strict=True):
            if table.select is None:
                given, read = {*schema.names, *chain.from_iterable(selects)}, own
            else:
                given, read = {*schema.names}, {*chain.from_iterable(map(columns, table.select.values()))}
            if "user" in {name.casefold() for name in read} - {name.casefold() for name in given}:
                raise SchemaMismatchError(
                    f"pipeline `{self.name}`: expected a column `user` in {table.name}, found {sorted(schema.names)}. "
                    "Nothing was started or written. Name the column that is meant."
                )

    def _batch_source(self, table: Table) -> DataFrame:
        return project(self._bronze(table), table, (*EVENT_COLUMNS, HEARTBEAT))

    def _bronze(self, table: Table) -> DataFrame:
        return self.spark.read.format("delta").load(self.lake.table_path(table.name))

    def _union(self, sources: Mapping[int, DataFrame]) -> DataFrame:
        return reduce(lambda left, right: left.unionByName(right), sources.values())

    def _result_schema(self) -> StructType:
        batch = self._union({index: self._batch_source(t) for index, t in enumerate(self.definition.tables)})
        results = self._results(batch)
        if self.definition.top_n:
            results = top_n(results, self.definition.top_n, self.definition.aggregate.by)
        if self.updates:
            results = self._with_revision(results, 0)
        return results.schema

    def _late_schema(self) -> StructType:
        schema = late_schema(self._union({i: self._batch_source(t) for i, t in enumerate(self.definition.tables)}))
        doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if doubled:
            raise SchemaMismatchError(
                f"pipeline `{self.name}` reads columns {doubled}, and {self.definition.sink.table}__late has columns "
                "of these names for what the events missed. Nothing was started or written. Give the columns other "
                "names with `select` on the source."
            )
        return schema

    # --- plan ---

    def plan(self) -> DataFrame:
        """Both branches over one source: it is read by one set of offsets."""
        sources = {index: self._stream(table) for index, table in enumerate(self.definition.tables)}
        marked = {index: self._with_watermark(stream) for index, stream in sources.items()}
        results = self._results(self._union(marked))
        narrow = self._union({index: self._narrow(stream, index) for index, stream in sources.items()})
        return results.unionByName(narrow, allowMissingColumns=True)

    def _stream(self, table: Table) -> DataFrame:
        options = {"startingVersion": str(self._first_version(table)), "skipChangeCommits": "true"}
        if table.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(table.max_files_per_trigger)
        if table.max_bytes_per_trigger is not None:
            options["maxBytesPerTrigger"] = str(table.max_bytes_per_trigger)
        bronze = self.spark.readStream.format("delta").options(**options).load(self.lake.table_path(table.name))
        return project(bronze, table, (*EVENT_COLUMNS, HEARTBEAT))

    def _first_version(self, table: Table) -> int:
        """Where this epoch begins in a source table; a new one at its first commit, or where a reset emptied it."""
        if (noted := self._starts.versions.get(table.name)) is not None:
            return noted
        if table.name not in self._planned_starts:
            history = tables.history(tables.open_table(self.lake, table.name))
            emptied = (commit["version"] for commit in history if commit.get(EMPTIED) == "reset")
            self._planned_starts[table.name] = next(emptied, 0)
        return self._planned_starts[table.name]

    @cached_property
    def _planned_starts(self) -> dict[str, int]:
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
        used = self._starts
        if (noted := starts_of(self.lake, self.epoch)) is not None:
            # A reset may have come between the plan and now.
            self._starts = noted
            return noted != used
        self._starts = Starts()
        planned = Starts(versions={table.name: self._first_version(table) for table in self.definition.tables})
        self._starts = fix_starts(self.lake, self.epoch, planned)
        # Another driver may have been first, with another look at the tables.
        return self._starts != planned

    def _with_watermark(self, stream: DataFrame) -> DataFrame:
        watermark, event_time = self.definition.watermark, self.definition.event_time
        if watermark is None or event_time is None:
            return stream
        return stream.withWatermark(event_time, f"{duration_ms(watermark.engine_delay)} milliseconds")

    def _results(self, events: DataFrame) -> DataFrame:
        """The aggregation over the events that passed; heartbeats only move the watermark."""
        passed = with_row_steps(events, self.definition.row_steps, only=~F.col(HEARTBEAT))
        counted = F.col(PASSED) & ~F.col(HEARTBEAT)
        if (time := self._window_time) is not None:
            # An event without a time belongs to no window. Naming the time also keeps the filter above the watermark:
            # Spark pushes any other below it, and the rows that it removes would not move the watermark.
            # A comparison, because Spark would see through a mere test for null where the time cannot be null.
            never = F.col(time).isNull() | (F.unix_micros(time) < F.lit(_LEAST_LONG))
            counted = F.when(never, F.lit(False)).otherwise(counted)
        step = self.definition.aggregate
        results = aggregate(passed.where(counted), step, self.definition.event_time)
        return with_result_steps(results, self.definition.result_steps)

    def _narrow(self, stream: DataFrame, index: int) -> DataFrame:
        events = with_row_steps(stream, self.definition.row_steps, only=~F.col(HEARTBEAT))
        time = F.col(self._window_time) if self._window_time else F.lit(0).cast("timestamp")
        key = [F.col(f"`{name}`") for name in self.definition.aggregate.by]
        return events.select(
            time.alias(TIME),
            F.when(~F.col(HEARTBEAT), F.col(INGEST_SEQ)).alias(SEQ),
            F.col(PASSED),
            F.lit(index).alias(SOURCE),
            # A hash passes over nulls: without their flags (null, a) and (a, null) would be one key.
            F.xxhash64(F.lit(0), *chain.from_iterable((F.isnull(column), column) for column in key)).alias(KEY),
        )

    # --- batches ---

    def process(self, batch: DataFrame, batch_id: int, bounds: BatchBounds) -> LedgerRow:
        """Counts, splits, checks and commits one batch; a replayed one like any other.

        The counting pass materialises the whole plan even where every table already has the batch: Spark's state
        partitions have to run, or the query dies at each restart.
        """
        late = f"({SEQ} IS NOT NULL AND {PASSED} AND {self._is_late(first_end_us, bounds.late_watermark_ms)})"
        observed = Observed(batch, self._counts(bounds))
        kept = observed.rows.where(f"{_RESULT} OR {late}").persist()
        try:
            figures = kept.selectExpr(
                f"count(CASE WHEN {_RESULT} THEN 1 END) AS rows",
                f"sum({EVENTS}) AS pairs_result",
                f"count({SOURCE}) AS late_events",
                f"sum(CASE WHEN {_NARROW} THEN {self._late_windows(bounds)} END) AS pairs_late",
                # Not the measures: sums of floating-point numbers may differ in their last digits.
                *digest_sql(_hash(_RESULT, (*self.definition.key_columns, EVENTS)), prefix="result"),
                *digest_sql(_hash(_NARROW, (SEQ, SOURCE)), prefix="late"),
            ).collect()[0]
            self.reached("materialised", batch_id)
            state = state_figures(self.query)
            content = {
                role: digest([(figures[f"{role}_xor"], figures[f"{role}_sum"])] if figures[f"{role}_sum"] else ())
                for role in ("result", "late")
            }
            if repeated := max(observed.repeated_tasks, state.repeated_tasks):
                raise RepeatedTasksError(
                    f"pipeline `{self.name}`: {repeated} tasks of batch {batch_id} ran twice, as happens when a worker "
                    "is lost, and Spark counted twice what they read. Nothing of this batch was written; it runs again "
                    "at the next start."
                )
            ledger = self._ledger(observed.figures, figures.asDict(), state, bounds)
            ledger = self._with_source(ledger, bounds)
            if self.latest is None:
                # Of a checkpoint that is another than the table's, not even the late rows may be written.
                self.writer("result", self.definition.sink.table).find(self.stamp("result", batch_id, 0))
            if ledger.pairs_late and self.late_policy in (Late.SIDE_OUTPUT, Late.UPDATE):
                self._commit_late(kept, ledger, state.dropped_groups, batch_id, bounds, content["late"])
            return self._commit_result(kept, ledger, figures["rows"], batch_id, bounds, content["result"])
        finally:
            kept.unpersist()

    @property
    def _windowed(self) -> bool:
        return self.definition.aggregate.window is not None

    @property
    def _window_time(self) -> str | None:
        """The column that windows go by; None for a running total."""
        return self.definition.event_time if self._windowed else None

    def _is_late(self, end_us: Callable[[str, Window], str], watermark_ms: int) -> str:
        """Whether a window of the event has passed the watermark."""
        window = self.definition.aggregate.window
        return "false" if window is None else f"({end_us(TIME, window)} <= {watermark_ms * 1000}L)"

    def _late_windows(self, bounds: BatchBounds) -> str:
        """How many windows of a late event are late."""
        window = self.definition.aggregate.window
        if window is None:
            return "0L"
        if isinstance(window, Session):
            return "1L"
        past_us = f"({bounds.late_watermark_ms * 1000}L - {first_end_us(TIME, window)})"
        return f"least({past_us} div {duration_ms(window.every) * 1000}L + 1L, {window_count(TIME, window)})"

    def _counts(self, bounds: BatchBounds) -> list[Column]:
        """The figures over every event of the batch, taken in the same pass and apart from what is kept."""
        event = f"({_NARROW} AND {SEQ} IS NOT NULL)"
        passed = f"({event} AND {PASSED} AND {TIME} IS NOT NULL)"
        counts = {
            "read": event,
            "filtered": f"{event} AND NOT {PASSED}",
            "timeless": f"{event} AND {PASSED} AND {TIME} IS NULL",
            "heartbeats": f"{_NARROW} AND {SEQ} IS NULL",
            "on_time": passed,
        }
        columns = []
        window, watermark = self.definition.aggregate.window, self.definition.watermark
        if window is not None and watermark is not None:
            grace_ms = duration_ms(watermark.grace)
            any_late = self._is_late(first_end_us, bounds.late_watermark_ms)
            all_late = self._is_late(last_end_us, bounds.late_watermark_ms)
            counts["on_time"] = f"{passed} AND NOT {any_late}"
            counts["late"] = f"{passed} AND {all_late}"
            counts["partly_late"] = f"{passed} AND {any_late} AND NOT {all_late}"
            if grace_ms:
                published = self._is_late(first_end_us, bounds.late_watermark_ms + grace_ms)
                counts["within_grace"] = f"{passed} AND NOT {any_late} AND {published}"
            columns.append(F.expr(f"sum(CASE WHEN {passed} THEN {window_count(TIME, window)} END)").alias("pairs"))
        counted = {name: F.expr(f"count(CASE WHEN {condition} THEN 1 END)") for name, condition in counts.items()}
        return [column.alias(name) for name, column in counted.items()] + columns

    def _ledger(
        self,
        counted: Mapping[str, int | None],
        kept: Mapping[str, int | None],
        state: StateFigures,
        bounds: BatchBounds,
    ) -> LedgerRow:
        watermark = self.definition.watermark
        count = {name: value or 0 for name, value in counted.items()}
        ledger = LedgerRow(
            started_ms=bounds.batch_time_ms,
            watermark_ms=bounds.watermark_ms,
            late_watermark_ms=bounds.late_watermark_ms,
            grace_ms=duration_ms(watermark.grace) if watermark else 0,
            **{**count, "pairs": count.get("pairs", count["on_time"])},
            pairs_late=kept["pairs_late"] or 0,
            pairs_result=None if self.updates else kept["pairs_result"] or 0,
            state_groups=state.groups,
            sources=bounds.sources,
        )
        if ledger.late + ledger.partly_late != kept["late_events"]:
            raise LedgerError(
                f"pipeline `{self.name}`: {ledger.late + ledger.partly_late} events are late by the count over all, "
                f"but {kept['late_events']} were kept. Nothing of this batch was written; the stream has stopped."
            )
        if (state.dropped_groups == 0) != (ledger.pairs_late == 0) or state.dropped_groups > ledger.pairs_late:
            raise _disagreement(self.name, state.dropped_groups, f"{ledger.pairs_late} late (event, window) pairs")
        return ledger

    def _with_source(self, ledger: LedgerRow, bounds: BatchBounds) -> LedgerRow:
        """The ledger row with what the source tables hold between the batch's offsets, by their own logs.

        Raises:
            SourceEmptiedError: if a reset of an ingest took back what this pipeline has counted.
            LedgerError: if the batch has not read just that.
        """
        found = read_by_batch(self.lake, self.definition, self._starts, bounds.begins, bounds.sources).rows
        read = ledger.read + ledger.heartbeats
        if found is not None and found != read:
            raise LedgerError(
                f"pipeline `{self.name}`: a batch has read {read} rows, but the logs of its sources hold {found} "
                "between its offsets. Nothing of it was written; the stream has stopped."
            )
        return ledger.model_copy(update={"source_rows": found})

    def _commit_result(
        self,
        kept: DataFrame,
        ledger: LedgerRow,
        changed: int,
        batch_id: int,
        bounds: BatchBounds,
        content: str | None,
    ) -> LedgerRow:
        table, size = self.definition.sink.table, size_of(kept)
        results = kept.where(_RESULT).drop(TIME, SEQ, PASSED, SOURCE, KEY)
        top, by = self.definition.top_n, self.definition.aggregate.by
        writer = self.writer("result", table)
        if not self.updates:
            rows = changed
            if top and changed:
                results = top_n(results, top, by).persist()
                rows = results.count()
            ledger = ledger.model_copy(update={"rows": rows})
            writer.append(results, self.stamp("result", batch_id, rows, ledger=ledger, content=content), size=size)
            results.unpersist()
        else:
            revised = self._with_revision(results, bounds.batch_time_ms)
            keys = self.definition.key_columns
            if top and changed:
                groups = self.writer("groups", f"{table}__groups")
                stamp = self.stamp("groups", batch_id, changed, content=content)
                groups.upsert(revised, stamp, keys=keys, size=size)
                self.reached("groups_committed", batch_id)
                revised = self._with_revision(self._ranked(groups.table, results), bounds.batch_time_ms).persist()
            rows = changed
            if top and changed:
                # Not only what has changed: the whole ranking of each window that was touched.
                rows, size = revised.count(), size_of(revised)
            ledger = ledger.model_copy(update={"rows": rows})
            stamp = self.stamp("result", batch_id, rows, ledger=ledger, content=content)
            writer.upsert(revised, stamp, keys=keys, replace_windows=top is not None, size=size)
            revised.unpersist()
        self.reached("result_committed", batch_id)
        return ledger

    def _commit_late(
        self,
        kept: DataFrame,
        ledger: LedgerRow,
        dropped: int,
        batch_id: int,
        bounds: BatchBounds,
        content: str | None,
    ) -> None:
        bronze = Bronze(self.spark, self.lake, self.definition.tables, self._bronze_schemas)
        events = ledger.late + ledger.partly_late
        late = kept.where(_NARROW)
        rows, found = LateRows(self.definition, bronze, bounds).rows(late, events, batch_id, self.epoch.number)
        try:
            if (found.events, found.pairs) != (events, ledger.pairs_late):
                raise LedgerError(
                    f"pipeline `{self.name}`: batch {batch_id} has {events} late events in {ledger.pairs_late} pairs, "
                    f"but bronze gives {found.events} in {found.pairs}. Nothing of it was written; the stream has "
                    "stopped."
                )
            if not found.fewest_groups <= dropped <= found.most_groups:
                raise _disagreement(self.name, dropped, f"{found.fewest_groups} late groups")
            writer = self.writer("late", f"{self.definition.sink.table}__late")
            writer.append(rows, self.stamp("late", batch_id, events, content=content))
        finally:
            if isinstance(rows, DataFrame):
                rows.unpersist()
        self.reached("late_committed", batch_id)

    def _with_revision(self, results: DataFrame, batch_time_ms: int) -> DataFrame:
        watermark = self.definition.watermark
        if watermark is not None and self._windowed:
            grace_us = F.lit(duration_ms(watermark.grace) * 1000)
            final = F.timestamp_micros(F.unix_micros("window_end") + grace_us)
            results = results.withColumn("final_after", final)
        return results.withColumns(
            {"revision": F.lit(1).cast("bigint"), "revised_at": F.timestamp_millis(F.lit(batch_time_ms))}
        )

    def _groups(self, table: str, ends_us: Sequence[int]) -> DataFrame:
        """The groups in the files that may hold windows with these ends."""
        ends = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=end) for end in sorted(ends_us)]
        groups = tables.open_table(self.lake, table)
        files = [f"{self.lake.table_path(table)}/{path}" for path in tables.files_holding(groups, "window_end", ends)]
        return self.spark.read.schema(self._groups_schema).parquet(*files)

    def _ranked(self, groups_table: str, changed: DataFrame) -> DataFrame:
        """The new ranking of every window that this batch touched, over all of its groups."""
        top = self.definition.top_n
        if top is None:
            raise ValueError("no ranking is defined")
        windows = changed.select("window_end").distinct()
        ends = windows.select(F.unix_micros("window_end")).toArrow().column(0).to_pylist()
        groups = self._groups(groups_table, ends)
        if len(ends) <= FEW_WINDOWS:
            touched = groups.where(F.col("window_end").isin([F.timestamp_micros(F.lit(end)) for end in ends]))
        else:
            touched = groups.join(windows, "window_end", "left_semi")
        columns = [name for name in groups.columns if name not in ("final_after", "revision", "revised_at")]
        return top_n(touched.select(*columns), top, self.definition.aggregate.by)


def _hash(kind: str, columns: Sequence[str]) -> str:
    """SQL of a hash of the rows of one branch; null for those of the other."""
    return f"CASE WHEN {kind} THEN xxhash64({', '.join(f'`{name}`' for name in columns)}) END"


def _disagreement(pipeline: str, dropped: int, ours: str) -> LedgerError:
    return LedgerError(
        f"pipeline `{pipeline}`: Spark dropped {dropped} late groups, the late split finds {ours}. Nothing of this "
        "batch was written; the stream has stopped."
    )
