"""Idempotent commits: each table of a batch gets its rows exactly once, and a commit that was skipped is noticed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import CommitProperties, Transaction
from deltalake import DeltaTable as Table
from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

from spark_jobs.lake import Lake
from spark_jobs.lake.appends import append
from spark_jobs.lake.continuity import RESTORE_OR_RESET
from spark_jobs.lake.durable import force_commit
from spark_jobs.lake.errors import CheckpointError, ConcurrentDriverError, LedgerError
from spark_jobs.lake.history import commit_at, find_stamp, latest_version
from spark_jobs.lake.stamps import Role, Stamp, decode
from spark_jobs.lake.tables import open_table, prune_log_checkpoints, rows_holding, rows_without

_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

_SAME_TRANSACTION = "Concurrent transaction"
"""What `deltalake` says where another writer commits the same transaction id."""

_ROWS_PER_FILE = 1_000_000
_FEW_ROWS, _FEW_BYTES = 50_000, 256 * 2**20
FEW_WINDOWS = 1_000
"""So many windows are named one by one where a table is searched for them, more by the first and the last of them."""

_GONE = "__gone"
"""Marks the rows of a merge that are to be deleted."""

# What Spark and `deltalake` call the number of rows that an append wrote.
_ROWS_WRITTEN = ("numOutputRows", "num_added_rows")


# A job that fails reaches Python as the one, an error of the plan as the other.
_SPARK_ERRORS = (Py4JJavaError, PySparkException)


@dataclass
class TableWriter:
    """Writes the batches of one query to one of its tables.

    Attributes:
        lake: where.
        table: such as `gold.top_products__late`.
        role: which of the query's tables it is.
        pipeline: name of the pipeline.
        query_id: of Spark's checkpoint; another checkpoint must not be taken for this one.
        epoch: of the checkpoint; a reset restarts batch numbers, which the table would otherwise skip as known.
    """

    lake: Lake
    table: str
    role: Role
    pipeline: str
    query_id: str
    epoch: int

    def __post_init__(self) -> None:
        self._version = latest_version(self.lake, self.table)

    @property
    def txn_app_id(self) -> str:
        """The id under which Delta remembers the newest batch of this query in this table."""
        return f"{self.pipeline}/{self.table}/{self.query_id}/{self.epoch}"

    @property
    def path(self) -> str:
        """The table's address."""
        return self.lake.table_path(self.table)

    def append(self, rows: DataFrame | pa.Table, stamp: Stamp, *, size: int = 0) -> Stamp:
        """Appends the rows of a batch once, however often it is called.

        Few rows are collected and committed without Spark: looking up a transaction id costs Spark two jobs over the
        table's log at each commit (0.3 to 0.5 s on two cores), `deltalake` a few milliseconds. Both write the same id
        and both fail where another writer commits it at the same moment (docs/decisions/0002).

        Args:
            rows: of the batch.
            stamp: of the batch; `stamp.rows` is the number of `rows`.
            size: what they take in memory at most, in bytes, see `size_of`; too large ones are few in no case.

        Returns:
            The stamp that the table has: of this commit, or of the one that a replay found.

        Raises:
            ConcurrentDriverError: if another driver commits the same batch at this moment.
            LedgerError: if the write was skipped though the table does not have this batch, or wrote another number
                of rows than the batch's plan holds.
        """
        with _conflicts_explained(self, stamp):
            if isinstance(rows, pa.Table) or _are_few(stamp, size):
                self._append_few(rows, stamp)
            else:
                self._append_many(rows, stamp)
        found = self._verify(stamp, _ROWS_WRITTEN)
        if found is None:
            raise LedgerError(
                f"table {self.table}: batch {stamp.batch_id} of `{self.pipeline}`, epoch {self.epoch}, was skipped "
                f"as known, though the table's history does not have it. The stream has stopped; nothing was "
                f"written. The checkpoint has been reset meanwhile: start the stream again; or a reset was "
                f"interrupted: repeat it, `tidemark reset {self.pipeline}`."
            )
        return found

    def _append_many(self, rows: DataFrame, stamp: Stamp) -> None:
        (
            rows.coalesce(max(1, -(-stamp.rows // _ROWS_PER_FILE)))
            .write.format("delta")
            .mode("append")
            .option("txnAppId", self.txn_app_id)
            .option("txnVersion", stamp.batch_id)
            .option("userMetadata", stamp.encode())
            .save(self.path)
        )

    def _append_few(self, rows: DataFrame | pa.Table, stamp: Stamp) -> None:
        table = open_table(self.lake, self.table)
        if not self._knows(table, stamp):
            content = self._collect(rows, table, stamp)
            append(self.lake, self.table, table, content, self._commit_properties(stamp))

    def _knows(self, table: Table, stamp: Stamp) -> bool:
        """Whether the table remembers this batch or a later one of the same epoch."""
        known = table.transaction_version(self.txn_app_id)
        return known is not None and known >= stamp.batch_id

    def _commit_properties(self, stamp: Stamp) -> CommitProperties:
        return CommitProperties(
            custom_metadata={"userMetadata": stamp.encode()},
            app_transactions=[Transaction(self.txn_app_id, stamp.batch_id)],
        )

    def _collect(self, rows: DataFrame | pa.Table, table: Table, stamp: Stamp) -> pa.Table:
        """The rows of the batch, with the columns of the table."""
        schema = pa.schema(table.schema().to_arrow())
        if not stamp.rows:
            return schema.empty_table()
        found = rows if isinstance(rows, pa.Table) else rows.coalesce(1).toArrow()
        content = found.select(schema.names).cast(schema)
        if content.num_rows != stamp.rows:
            raise LedgerError(
                f"table {self.table}: batch {stamp.batch_id} of `{self.pipeline}` holds {stamp.rows} rows, but its "
                f"plan gives {content.num_rows} when it is read again. Nothing of it was written here; the stream has "
                "stopped."
            )
        return content

    def upsert(
        self, rows: DataFrame, stamp: Stamp, *, keys: Sequence[str], replace_windows: bool = False, size: int = 0
    ) -> None:
        """Merges the rows of a batch by key, once; a row that did not change keeps its `revision`.

        Few rows are merged without Spark, as in `append`.

        Args:
            rows: the new state of every group that changed; with `replace_windows` all rows of every window touched.
            stamp: of the batch; `stamp.rows` is the number of `rows`.
            keys: what identifies a row.
            replace_windows: whether rows of a touched window that are not in `rows` are deleted.
            size: as `append`.

        Raises:
            ConcurrentDriverError, LedgerError: as `append`.
        """
        nested = any(isinstance(field.dataType, ArrayType | MapType | StructType) for field in rows.schema)
        merge = self._merge_few if _are_few(stamp, size) and not nested else self._merge_many
        # Without rows a merge would read the whole table for nothing.
        if stamp.rows:
            with _conflicts_explained(self, stamp):
                merge(rows, stamp, keys, replace_windows)
        if self._verify(stamp, ()) is None:
            # A merge that changes nothing commits nothing: the ledger row needs a commit all the same.
            self.append(rows.limit(0), stamp.model_copy(update={"rows": 0}))

    def _merge_few(self, rows: DataFrame, stamp: Stamp, keys: Sequence[str], replace_windows: bool) -> None:
        table = open_table(self.lake, self.table)
        if not self._knows(table, stamp):
            content = self._collect(rows, table, stamp)
            _retrying(lambda: self._merge_once(content, stamp, keys, replace_windows))

    def _merge_once(self, content: pa.Table, stamp: Stamp, keys: Sequence[str], replace_windows: bool) -> None:
        table = open_table(self.lake, self.table)
        if self._knows(table, stamp):
            return
        names = content.column_names
        values = {name: f's."{name}"' for name in names}
        changed = " OR ".join(f'(t."{name}" IS DISTINCT FROM s."{name}")' for name in _measures(names, keys))
        same = [f'(t."{name}" IS NOT DISTINCT FROM s."{name}")' for name in keys]
        gone = content.slice(0, 0)
        if "window_end" in keys:
            ends = sorted(content.column("window_end").cast(pa.int64()).unique().to_pylist())
            same.insert(0, _touched(ends, "to_timestamp_micros"))
            if replace_windows:
                instants = pa.array(ends).cast(content.schema.field("window_end").type).to_pylist()
                held = rows_holding(self.lake, self.table, "window_end", instants, opened=table)
                gone = rows_without(held.select(names).cast(content.schema), content, keys)
        marks = pa.array([False] * content.num_rows + [True] * gone.num_rows)
        (
            table.merge(
                pa.concat_tables([content, gone]).append_column(_GONE, marks),
                " AND ".join(same) or "true",
                source_alias="s",
                target_alias="t",
                commit_properties=self._commit_properties(stamp),
            )
            .when_matched_delete(f"s.{_GONE}")
            .when_matched_update({**values, "revision": "t.revision + 1"}, predicate=f"NOT s.{_GONE} AND ({changed})")
            .when_not_matched_insert({**values, "revision": "1"}, predicate=f"NOT s.{_GONE}")
            .execute()
        )

    def _merge_many(self, rows: DataFrame, stamp: Stamp, keys: Sequence[str], replace_windows: bool) -> None:
        session = rows.sparkSession
        changed = " OR ".join(f"NOT (t.`{name}` <=> s.`{name}`)" for name in _measures(rows.columns, keys))
        values = {name: f"s.`{name}`" for name in rows.columns}
        # The total over the whole stream has no key: its table holds one row.
        same = [f"t.`{name}` <=> s.`{name}`" for name in keys]
        touched = None
        if "window_end" in keys:
            ends = rows.select(F.unix_micros("window_end")).distinct().toArrow().column(0)
            # Literals let Delta skip the files of other windows.
            touched = _touched(sorted(ends.to_pylist()), "timestamp_micros")
        condition = " AND ".join([touched, *same] if touched else same) or "true"

        def execute() -> None:
            source = rows.withColumn(_GONE, F.lit(False))
            if replace_windows and touched:
                held = session.read.format("delta").load(self.path).alias("t").where(touched).select(*rows.columns)
                windows = rows.select("window_end").distinct()
                gone = (
                    held.join(windows, "window_end", "left_semi")
                    .alias("t")
                    .join(rows.alias("s"), F.expr(" AND ".join(same)), "left_anti")
                )
                # A key twice, as another program may have left it, would match its row twice.
                source = source.unionByName(gone.dropDuplicates(list(keys)).withColumn(_GONE, F.lit(True)))
            with _session_settings(session, self._txn_settings(stamp)):
                (
                    DeltaTable.forPath(session, self.path)
                    .alias("t")
                    .merge(source.alias("s"), condition)
                    .whenMatchedDelete(f"s.{_GONE}")
                    .whenMatchedUpdate(f"NOT s.{_GONE} AND ({changed})", {**values, "revision": "t.revision + 1"})
                    .whenNotMatchedInsert(f"NOT s.{_GONE}", {**values, "revision": "1"})
                    .execute()
                )

        _retrying(execute)

    def _txn_settings(self, stamp: Stamp) -> dict[str, str]:
        return {
            _TXN_APP_ID: self.txn_app_id,
            _TXN_VERSION: str(stamp.batch_id),
            _USER_METADATA: stamp.encode(),
        }

    def _verify(self, stamp: Stamp, row_metrics: tuple[str, ...]) -> Stamp | None:
        """Looks for the batch in the table's own log: a skip is right only if it is there."""
        while (commit := commit_at(self.lake, self.table, self._version + 1)) is not None:
            self._version += 1
            found = decode(commit)
            if found is not None and self._is_ours(found, stamp):
                force_commit(self.lake, self.table, self._version)
                prune_log_checkpoints(self.lake, self.table, self._version)
                written = sum(int(commit.get("operationMetrics", {}).get(name, 0)) for name in row_metrics)
                if row_metrics and written != stamp.rows:
                    raise LedgerError(
                        f"table {self.table}: batch {stamp.batch_id} of `{self.pipeline}` holds {stamp.rows} rows, "
                        f"but {written} were written in version {self._version}. The stream has stopped; run "
                        f"`tidemark ledger {self.pipeline}`."
                    )
                # It may be another driver's, of the same number.
                self._refuse_other_plan(found, stamp)
                self._refuse_other_rows(found, stamp, counted=bool(row_metrics))
                return found
        before = self.find(stamp)
        if before is not None:
            # An upsert that changed nothing has no rows of its own, whatever it was given.
            self._refuse_other_rows(before, stamp, counted=bool(row_metrics))
        return before

    def _refuse_other_rows(self, found: Stamp, stamp: Stamp, *, counted: bool) -> None:
        """A replay must give the rows that the table has: another number, or as many others, means a changed input."""
        same_content = found.content == stamp.content
        if same_content and (found.rows == stamp.rows or not counted):
            return
        raise LedgerError(
            f"table {self.table}: batch {stamp.batch_id} of `{self.pipeline}` was written with {_described(found)}; "
            f"its replay gives {_described(stamp)}{'' if found.rows != stamp.rows else ' that differ'}. The stream has "
            "stopped; nothing more was written. What the batch reads has changed since it was first read, as where a "
            "file was moved away: bring it back as it was, then start the stream again."
        )

    def has(self, stamp: Stamp) -> bool:
        """Whether the table has exactly this commit."""
        return self.find(stamp) == stamp

    def find(self, stamp: Stamp) -> Stamp | None:
        """This batch's commit, looked for no further back than this writer's commit before it.

        Raises:
            CheckpointError: if the table has another batch of this number: the checkpoint is not the one that wrote it.
        """

        def is_ours_or_older(found: Stamp) -> bool:
            same_writer = (found.pipeline, found.role) == (stamp.pipeline, stamp.role)
            return same_writer and (found.epoch, found.batch_id) <= (stamp.epoch, stamp.batch_id)

        found = find_stamp(self.lake, self.table, is_ours_or_older)
        if found is None or not self._is_ours(found, stamp):
            return None
        self._refuse_other_plan(found, stamp)
        return found

    def _refuse_other_plan(self, found: Stamp, stamp: Stamp) -> None:
        if difference := found.differs(stamp):
            raise CheckpointError(
                f"table {self.table}: has another batch {stamp.batch_id} of `{self.pipeline}`, epoch {self.epoch}, "
                f"than its checkpoint ({difference}). The checkpoint was lost, or is an older copy. Nothing was "
                f"written. {RESTORE_OR_RESET.format(pipeline=self.pipeline)}"
            )

    def _is_ours(self, found: Stamp, stamp: Stamp) -> bool:
        return (found.pipeline, found.epoch, found.batch_id, found.role) == (
            stamp.pipeline,
            stamp.epoch,
            stamp.batch_id,
            stamp.role,
        )


def _described(stamp: Stamp) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(stamp.reasons.items()))
    return f"{stamp.rows:,} rows" + (f" ({reasons})" if reasons else "")


def _are_few(stamp: Stamp, size: int) -> bool:
    """Whether the rows of a batch may be collected."""
    return not stamp.rows or (stamp.rows <= _FEW_ROWS and size <= _FEW_BYTES)


def _touched(ends_us: Sequence[int], instant: str) -> str:
    """A condition by which a merge leaves out the files of other windows.

    Args:
        ends_us: ends of the windows, in microseconds since 1970, ascending.
        instant: the function that makes a time of them.
    """
    if len(ends_us) > FEW_WINDOWS:
        return f"t.window_end BETWEEN {instant}({ends_us[0]}) AND {instant}({ends_us[-1]})"
    return f"t.window_end IN ({', '.join(f'{instant}({end})' for end in ends_us)})"


def _measures(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """What a revision is made for, if it changes."""
    return [name for name in columns if name not in (*keys, "revised_at", "revision")]


@contextmanager
def _session_settings(session: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Sets what only MERGE reads from the session, and unsets all of it: the session is kept from batch to batch."""
    try:
        for key, value in settings.items():
            session.conf.set(key, value)
        yield
    finally:
        for key in settings:
            session.conf.unset(key)


@contextmanager
def _conflicts_explained(writer: TableWriter, stamp: Stamp) -> Iterator[None]:
    try:
        yield
    except (*_SPARK_ERRORS, CommitFailedError) as error:
        # A commit whose answer got lost fails against itself: then the table has this batch, from this driver.
        if isinstance(error, CommitFailedError) and writer.has(stamp):
            return
        if "ConcurrentTransactionException" in str(error) or _SAME_TRANSACTION in str(error):
            raise ConcurrentDriverError(
                f"pipeline `{writer.pipeline}`: another driver committed batch {stamp.batch_id} to {writer.table} at "
                "the same moment. This driver stops; the other one continues. Nothing was written twice."
            ) from error
        raise


# The conditions of Delta's errors, which their texts begin with; the names of the classes are not in all of them.
_CONFLICTS = ("DELTA_CONCURRENT_APPEND", "DELTA_CONCURRENT_DELETE_READ", "DELTA_CONCURRENT_DELETE_DELETE")


def _is_conflict(error: BaseException) -> bool:
    """Whether another writer changed the same files; a driver that commits the same batch is another matter."""
    if isinstance(error, CommitFailedError):
        return _SAME_TRANSACTION not in str(error)
    return any(name in str(error) for name in _CONFLICTS)


@retry(
    retry=retry_if_exception(_is_conflict),
    stop=stop_after_attempt(8),
    wait=wait_random_exponential(multiplier=0.2, max=5),
    reraise=True,
)
def _retrying(execute: Callable[[], None]) -> None:
    """Other writers may change the same files; the idempotent id makes another try safe."""
    execute()
