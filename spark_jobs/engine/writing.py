"""Writes one batch of a pipeline: what is set aside and what is late first, the result with the ledger row last."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.commits.changes import Append, Change, ReplaceWindows, Upsert, is_nested
from spark_jobs.commits.merging import FEW_WINDOWS
from spark_jobs.engine.balancing import disagreement
from spark_jobs.engine.fetching import FEW_BYTES, FEW_ROWS, FetchedPass
from spark_jobs.engine.passes import KeepingPass, WritingPass
from spark_jobs.engine.query import Query
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.commit_records.stamps import Role
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.tables import opening as tables
from spark_jobs.plan.columns import FATE, WINDOW_END
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.plan.tables import TableRef
from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.frames import fetch, size_of
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spec import Pipeline
from spark_jobs.transforms.aggregation import top_n
from spark_jobs.transforms.branches import Branches
from spark_jobs.transforms.events import with_row_steps
from spark_jobs.transforms.late import FEW, Bronze, LateRows, with_batch
from spark_jobs.transforms.results import REVISED, with_revision


@contextmanager
def _computed(rows: DataFrame, *, most: int | None, size: int) -> Iterator[tuple[DataFrame | pa.Table, int]]:
    """Rows that are computed once, and their number: in the memory of this process if they are few, else in Spark's.

    Args:
        rows: to be computed.
        most: so many they are at most; None: nobody knows.
        size: about so many bytes they take in memory at most.
    """
    if most is not None and most <= FEW_ROWS and size <= FEW_BYTES:
        found = fetch(rows)
        yield found, found.num_rows
        return
    kept = rows.persist()
    try:
        yield kept, kept.count()
    finally:
        kept.unpersist()


@dataclass(frozen=True)
class BatchWriter:
    """The writer of one batch.

    Attributes:
        query: that runs it.
        plan: of the pipeline.
        branches: of it.
        schemas: columns of its tables, by role.
        bronze: its source tables.
        bounds: of the batch.
        batch_id: of it.
    """

    query: Query[Pipeline]
    plan: LogicalPlan
    branches: Branches
    schemas: Mapping[Role, StructType]
    bronze: Bronze
    bounds: BatchBounds
    batch_id: int

    def late(self, late: DataFrame | pa.Table, entry: LedgerEntry, dropped: int, content: str | None) -> None:
        """Keeps the late events.

        Args:
            late: the verdict on each.
            entry: of the batch.
            dropped: groups that Spark has dropped.
            content: a digest of the narrow rows.

        Raises:
            LedgerError: if bronze has others.
        """
        operator, name = self.branches.operator, self.query.name
        events, pairs = entry.late_events, entry.terms.get("pairs_late", entry.late_events)
        fetched = LateRows(self.branches.lateness, self.bronze, self.schemas["late"].names)
        rows, recount = fetched.rows(late, events, self.batch_id, self.query.epoch.number)
        try:
            if (recount.events, recount.pairs) != (events, pairs):
                raise LedgerError(
                    f"pipeline `{name}`: batch {self.batch_id} has {events} late events in {pairs} pairs, "
                    f"but bronze gives {recount.events} in {recount.pairs}. Nothing of it was written; the stream has "
                    "stopped."
                )
            if not recount.fewest_groups <= dropped <= recount.most_groups:
                raise disagreement(name, dropped, f"{recount.fewest_groups} late")
            self._commit("late", operator.output.late.name, Append(rows, events, size_of(rows)), events, content)
        finally:
            if isinstance(rows, DataFrame):
                rows.unpersist()
        self.query.failpoint("late_committed", self.batch_id)

    def quarantine(self, rows: DataFrame | pa.Table, events: int, content: str | None) -> None:
        """Keeps the events whose key a table does not have, or all of a batch that is skipped.

        Args:
            rows: the verdict on each.
            events: how many they are.
            content: a digest of the narrow rows.
        """
        bronze = self.bronze
        said = {"reason": self.branches.reason, "detail": self.branches.detail}
        why = with_batch(rows, self.batch_id, self.query.epoch.number, said)
        columns = self.schemas["quarantine"].names
        if isinstance(why, DataFrame) and events > FEW:
            whole_rows = bronze.beside_many(why, columns).persist()
        else:
            whole_rows = bronze.beside(why.toArrow() if isinstance(why, DataFrame) else why, columns)
        table = self.branches.operator.output.quarantine.name
        try:
            change = Append(whole_rows, events, size_of(whole_rows))
            self._commit("quarantine", table, change, events, content, reasons={self.branches.reason: events})
        finally:
            if isinstance(whole_rows, DataFrame):
                whole_rows.unpersist()
        self.query.failpoint("quarantine_committed", self.batch_id)

    def result(
        self, computed: KeepingPass | WritingPass | FetchedPass, entry: LedgerEntry, content: str | None
    ) -> LedgerEntry:
        """Commits the result with the ledger row.

        Args:
            computed: the batch.
            entry: of it.
            content: a digest of its result rows.

        Returns:
            The ledger row that was committed.
        """
        changed, withheld = computed.figures["rows"] or 0, computed.figures["withheld"] or 0
        if isinstance(computed, FetchedPass) and self.branches.operator.output.updates:
            entry = entry.with_terms(rows=changed)
            rows = computed.results
            change = Upsert(rows, changed, rows.nbytes, self.branches.operator.output.keys)
            self._commit("result", self.plan.result.name, change, changed, content, ledger=entry)
        elif isinstance(computed, KeepingPass) and self.branches.operator.output.updates:
            entry = self._upsert(computed.results, computed.size, entry, changed, content)
        elif isinstance(computed, KeepingPass) and self.query.definition.top_n and changed > withheld:
            entry = self._append_chosen(computed.results, computed.size, entry, changed, content)
        else:
            count = changed - withheld
            entry = entry.with_terms(rows=count)
            self._commit("result", self.plan.result.name, computed.append(count), count, content, ledger=entry)
        self.query.failpoint("result_committed", self.batch_id)
        return entry

    def _append_chosen(
        self, rows: DataFrame, size: int, entry: LedgerEntry, given: int, content: str | None
    ) -> LedgerEntry:
        top = self.query.definition.top_n
        assert top is not None
        results = self.branches.transform.written(rows.where(F.col(FATE).isNull()))
        results = top_n(results, top, self.branches.operator.state.event_keys)
        with _computed(with_revision(results, self.plan, entry.started_ms), most=given, size=size) as (chosen, count):
            entry = entry.with_terms(rows=count)
            change = Append(chosen, count, size)
            self._commit("result", self.plan.result.name, change, count, content, ledger=entry)
        return entry

    def _upsert(self, rows: DataFrame, size: int, entry: LedgerEntry, count: int, content: str | None) -> LedgerEntry:
        groups, keys = self.plan.table("groups"), self.branches.operator.output.keys
        results = self.branches.transform.written(rows)
        revised = with_revision(results, self.plan, entry.started_ms)
        if groups is None or not count:
            entry = entry.with_terms(rows=count)
            change = Upsert(revised, count, size, keys)
            self._commit("result", self.plan.result.name, change, count, content, ledger=entry)
            return entry
        self._commit("groups", groups.name, Upsert(revised, count, size, keys), count, content)
        self.query.failpoint("groups_committed", self.batch_id)
        # Not only what has changed: the whole choice of each window that was touched.
        chosen = with_revision(self._chosen(groups, results), self.plan, entry.started_ms)
        # Each row that has changed lies in one window, of which so many are chosen.
        top = self.query.definition.top_n
        each = top.n if top is not None and not is_nested(chosen.schema) else None
        most = None if each is None else count * each
        with _computed(chosen, most=most, size=size * (each or 1)) as (found, rows_chosen):
            entry = entry.with_terms(rows=rows_chosen)
            replaced = ReplaceWindows(found, rows_chosen, size_of(found), keys)
            self._commit("result", self.plan.result.name, replaced, rows_chosen, content, ledger=entry)
        return entry

    def _commit(self, role: Role, table: str, change: Change, rows: int, content: str | None, **more: object) -> None:
        stamp = self.query.stamp(role, self.batch_id, rows, content=content, **more)
        self.query.writer(role, table).commit(change, stamp)

    def _groups(self, table: TableRef, ends_us: Sequence[int]) -> DataFrame:
        """The groups in the files that may hold windows with these ends."""
        lake = self.query.lake
        ends = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=end) for end in sorted(ends_us)]
        held = tables.files_holding(tables.open_table(lake, table.name), WINDOW_END, ends)
        files = [f"{lake.table_path(table.name)}/{path}" for path in held]
        return self.query.spark.read.schema(self.schemas["groups"]).parquet(*files)

    def _chosen(self, groups_table: TableRef, changed: DataFrame) -> DataFrame:
        """The new result of every window that this batch touched, chosen from all of its groups."""
        windows = changed.select(WINDOW_END).distinct()
        ends = windows.select(F.unix_micros(WINDOW_END)).toArrow().column(0).to_pylist()
        groups = self._groups(groups_table, ends)
        if len(ends) <= FEW_WINDOWS:
            touched = groups.where(F.col(WINDOW_END).isin([F.timestamp_micros(F.lit(end)) for end in ends]))
        else:
            touched = groups.join(windows, WINDOW_END, "left_semi")
        definition = self.query.definition
        columns = [name for name in groups.columns if name not in REVISED]
        filters = [step for step in definition.result_steps if not step.adds()]
        chosen = with_row_steps(touched.select(*columns_of(columns)), filters).where(F.col(FATE).isNull()).drop(FATE)
        top = definition.top_n
        return top_n(chosen, top, self.branches.operator.state.event_keys) if top else chosen
