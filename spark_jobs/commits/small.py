"""Commits without Spark, for rows that fit in memory.

To look up a transaction id costs Spark two jobs over the table's log at each commit (0.3 to 0.5 s on two cores),
`deltalake` a few milliseconds. Both write the same id, and both fail where another writer commits it at the same moment
(docs/decisions/0002).
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame

from spark_jobs.commits.changes import GONE, Append, Change, ReplaceWindows, Revise, Upsert, WrittenFiles
from spark_jobs.commits.merging import CommitId, measures, retrying, touched, within
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LedgerError
from spark_jobs.lake.tables.appends import COMPRESSED, append, append_files
from spark_jobs.lake.tables.held import HeldTable
from spark_jobs.lake.tables.opening import open_table, rows_holding, rows_without
from spark_jobs.plan.columns import REVISION
from spark_jobs.spark.frames import fetch
from spark_jobs.spec.names import in_delta


@dataclass(frozen=True)
class SmallCommits:
    """Commits to one table with `deltalake`.

    Attributes:
        lake: where.
        table: such as `gold.top_products`.
        held: the table, where somebody commits to it again and again; None: it is opened.
    """

    lake: Lake
    table: str
    held: HeldTable | None = None

    def commit(self, change: Change, commit_id: CommitId, metadata: str) -> None:
        """Commits a change unless the table remembers it.

        Args:
            change: whose rows are `few`.
            commit_id: of the change.
            metadata: the commit's `userMetadata`.

        Raises:
            LedgerError: if the rows are not as many as the change says.
        """
        table = self._open()
        if _knows(table, commit_id):
            return
        properties = CommitProperties(
            custom_metadata={"userMetadata": metadata},
            app_transactions=[Transaction(commit_id.writer, commit_id.number)],
        )
        match change:
            case Append():
                rows = self._collect(change, table)
                self._add(table, commit_id, lambda opened: append(self.lake, self.table, opened, rows, properties))
            case WrittenFiles():
                self._add(
                    table,
                    commit_id,
                    lambda opened: append_files(self.lake, self.table, opened, change.files, properties),
                )
            case Upsert():
                content = self._collect(change, table)
                retrying(lambda: self._merge(change, content, commit_id, properties))

    def _open(self) -> DeltaTable:
        return self.held.newest() if self.held is not None else open_table(self.lake, self.table, to_write=True)

    def _add(self, table: DeltaTable, commit_id: CommitId, add: Callable[[DeltaTable], None]) -> None:
        """Appends; again where another writer has taken files away, which `deltalake` takes for a conflict."""
        opened: DeltaTable | None = table

        def execute() -> None:
            nonlocal opened
            tried, opened = opened or self._open(), None
            if not _knows(tried, commit_id):
                add(tried)

        retrying(execute)

    def _collect(self, change: Append | Upsert, table: DeltaTable) -> pa.Table:
        """The rows with the columns of the table."""
        schema = pa.schema(table.schema().to_arrow())
        if isinstance(change, Revise):
            schema = schema.append(pa.field(GONE, pa.bool_()))
        if not change.count:
            return schema.empty_table()
        found = fetch(change.rows.coalesce(1)) if isinstance(change.rows, DataFrame) else change.rows
        content = found.select(schema.names).cast(schema)
        if content.num_rows != change.count:
            raise LedgerError(
                f"table {self.table}: {change.count} rows are to be written, but their plan gives {content.num_rows} "
                "when it is read again. Nothing of it was written here."
            )
        return content

    def _merge(self, change: Upsert, content: pa.Table, commit_id: CommitId, properties: CommitProperties) -> None:
        table = self._open()
        if _knows(table, commit_id):
            return
        keys, names = change.keys, [name for name in content.column_names if name != GONE]
        values = {in_delta(name): f"s.{in_delta(name)}" for name in names}
        changed = " OR ".join(
            f"(t.{in_delta(name)} IS DISTINCT FROM s.{in_delta(name)})" for name in measures(names, keys)
        )
        same = [f"(t.{in_delta(name)} IS NOT DISTINCT FROM s.{in_delta(name)})" for name in keys]
        source = content
        if isinstance(change, Revise):
            change.permitted(table)
            same.insert(0, within(change.between, "to_timestamp_micros", in_delta))
            changed = "true"  # who made the difference has compared
        elif "window_end" in keys:
            ends = sorted(content.column("window_end").cast(pa.int64()).unique().to_pylist())
            same.insert(0, touched(ends, "to_timestamp_micros"))
            if isinstance(change, ReplaceWindows):
                instants = pa.array(ends).cast(content.schema.field("window_end").type).to_pylist()
                held = rows_holding(self.lake, self.table, "window_end", instants, opened=table)
                gone = rows_without(held.select(names).cast(content.schema), content, keys)
                source = pa.concat_tables([_marked(content, gone=False), _marked(gone, gone=True)])
        if GONE not in source.column_names:
            source = _marked(source, gone=False)
        (
            table.merge(
                source,
                " AND ".join(same) or "true",
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
                writer_properties=COMPRESSED,
            )
            .when_matched_delete(f"s.{GONE}")
            .when_matched_update(
                {**values, in_delta(REVISION): "t.revision + 1"}, predicate=f"NOT s.{GONE} AND ({changed})"
            )
            .when_not_matched_insert({**values, in_delta(REVISION): "1"}, predicate=f"NOT s.{GONE}")
            .execute()
        )


def _marked(rows: pa.Table, *, gone: bool) -> pa.Table:
    return rows.append_column(GONE, pa.array([gone] * rows.num_rows, pa.bool_()))


def _knows(table: DeltaTable, commit_id: CommitId) -> bool:
    """Whether the table remembers this commit or a later one of the same writer."""
    known = table.transaction_version(commit_id.writer)
    return known is not None and known >= commit_id.number
