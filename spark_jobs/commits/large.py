"""Commits by Spark, for rows that do not fit in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.commits.changes import GONE, Append, Change, Remove, ReplaceWindows, Revise, Upsert, WrittenFiles
from spark_jobs.commits.merging import CommitId, measures, retrying, touched, within
from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.plan.columns import REVISION
from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.data_files import files_for
from spark_jobs.spark.values import same as same_value
from spark_jobs.spec.names import in_spark

_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class LargeCommits:
    """Commits to one table with Spark.

    Attributes:
        lake: where.
        table: such as `gold.top_products`.
    """

    lake: Lake
    table: str

    def commit(self, change: Change, commit_id: CommitId, metadata: str) -> None:
        """Commits a change; Delta skips one that the table remembers.

        Args:
            change: whose rows are a frame.
            commit_id: of the change.
            metadata: the commit's `userMetadata`.
        """
        if isinstance(change, WrittenFiles) or not isinstance(change.rows, DataFrame):
            raise TypeError(
                f"table {self.table}: expected a change whose rows are a frame, got {type(change).__name__}"
            )
        match change:
            case Append():
                self._append(change.rows, change.count, commit_id, metadata)
            case Upsert():
                self._merge(change, commit_id, metadata)
            case Remove():
                self._remove(change, commit_id, metadata)

    @property
    def _path(self) -> str:
        return self.lake.table_path(self.table)

    def _append(self, rows: DataFrame, count: int, commit_id: CommitId, metadata: str) -> None:
        (
            rows.coalesce(files_for(rows, count))
            .write.format("delta")
            .mode("append")
            .option("txnAppId", commit_id.writer)
            .option("txnVersion", commit_id.number)
            .option("userMetadata", metadata)
            .save(self._path)
        )

    def _merge(self, change: Upsert, commit_id: CommitId, metadata: str) -> None:
        rows, keys = change.rows, change.keys
        session, names = rows.sparkSession, [name for name in rows.columns if name != GONE]
        changed = " OR ".join(
            f"NOT {same_value(f't.{in_spark(name)}', f's.{in_spark(name)}', rows.schema[name].dataType)}"
            for name in measures(names, keys)
        )
        values = {in_spark(name): f"s.{in_spark(name)}" for name in names}
        # The total over the whole stream has no key: its table holds one row.
        same = [f"t.{in_spark(name)} <=> s.{in_spark(name)}" for name in keys]
        of_windows = None
        if isinstance(change, Revise):
            of_windows = within(change.between, "timestamp_micros", in_spark)
            changed = "true"  # who made the difference has compared
        elif "window_end" in keys:
            ends = rows.select(F.unix_micros("window_end")).distinct().toArrow().column(0)
            # Literals let Delta skip the files of other windows.
            of_windows = touched(sorted(ends.to_pylist()), "timestamp_micros")
        condition = " AND ".join([of_windows, *same] if of_windows else same) or "true"
        # MERGE ignores the options of a writer.
        settings = {_TXN_APP_ID: commit_id.writer, _TXN_VERSION: str(commit_id.number), _USER_METADATA: metadata}

        def execute() -> None:
            if isinstance(change, Revise):
                change.permitted(open_table(self.lake, self.table))
            source = rows if isinstance(change, Revise) else rows.withColumn(GONE, F.lit(False))
            if isinstance(change, ReplaceWindows) and of_windows:
                held = (
                    session.read.format("delta")
                    .load(self._path)
                    .alias("t")
                    .where(of_windows)
                    .select(*columns_of(rows.columns))
                )
                windows = rows.select("window_end").distinct()
                gone = (
                    held.join(windows, "window_end", "left_semi")
                    .alias("t")
                    .join(rows.alias("s"), F.expr(" AND ".join(same)), "left_anti")
                )
                # A key twice, as another program may have left it, would match its row twice.
                source = source.unionByName(gone.dropDuplicates(list(keys)).withColumn(GONE, F.lit(True)))
            with _session_settings(session, settings):
                (
                    DeltaTable.forPath(session, self._path)
                    .alias("t")
                    .merge(source.alias("s"), condition)
                    .whenMatchedDelete(f"s.{GONE}")
                    .whenMatchedUpdate(
                        f"NOT s.{GONE} AND ({changed})", {**values, in_spark(REVISION): "t.revision + 1"}
                    )
                    .whenNotMatchedInsert(f"NOT s.{GONE}", {**values, in_spark(REVISION): "1"})
                    .execute()
                )

        retrying(execute)

    def _remove(self, change: Remove, commit_id: CommitId, metadata: str) -> None:
        session, same = (
            change.rows.sparkSession,
            " AND ".join(f"t.{in_spark(name)} <=> s.{in_spark(name)}" for name in change.keys),
        )
        settings = {_TXN_APP_ID: commit_id.writer, _TXN_VERSION: str(commit_id.number), _USER_METADATA: metadata}

        def execute() -> None:
            with _session_settings(session, settings):
                (
                    DeltaTable.forPath(session, self._path)
                    .alias("t")
                    .merge(change.rows.alias("s"), same)
                    .whenMatchedDelete()
                    .execute()
                )

        retrying(execute)


@contextmanager
def _session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets what only MERGE reads from the session, and unsets all of it: the session is kept from batch to batch."""
    try:
        for key, value in settings.items():
            session.conf.set(key, value)
        yield
    finally:
        for key in settings:
            session.conf.unset(key)
