"""What other programs have changed in the tables of a pipeline, and what of it a backfill has put right since.

A commit that nobody of Tidemark has signed is counted from the data files that its log entry names: which rows it took
away or added. Until a backfill with `--force` has computed the range of all of them, nothing in the table is sure, and
repairs are refused. Such a backfill books in its own commit by how much the table had changed, beside what it has
changed itself: the ledger balances, and the commit is put right (`Revision.replaced`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from spark_jobs.lake.accounting.ledger_table import Actions, changes_rows, takes_rows_away
from spark_jobs.lake.checkpoints.lineage import Lineage, lineage
from spark_jobs.lake.checkpoints.reset import EMPTIED
from spark_jobs.lake.commit_records.history import info_of, unsigned_commits
from spark_jobs.lake.commit_records.revisions import Revision, decode_revision, revisions
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.files import gone
from spark_jobs.lake.tables.opening import file_statistics, open_table
from spark_jobs.plan.columns import EVENTS
from spark_jobs.plan.operators import Operator
from spark_jobs.spec.names import first_of, in_duckdb

_MOST_BYTES = 2**30
"""Of data files that are read to count what one commit has changed: about a minute, and less than 100 bytes a row."""

_LITTLE_AT_ONCE: Mapping[str, Any] = {"batch_size": 65_536, "batch_readahead": 2, "fragment_readahead": 1}


@dataclass(frozen=True)
class ForeignChange:
    """A commit of another program, as far as nothing has put it right.

    Attributes:
        table: such as `gold.top_products`.
        version: of the table.
        operation: what the commit calls itself.
        rows: a row for each one that it has added (`rows` 1) or taken away (-1): where it lies (`placed_us`; null:
            nowhere) and how many events it stands for (`events`, negative where it is gone). None: they were not
            counted.
        doubled: whether the table has rows twice that it has added.
        uncounted: why they were not, if they were not.
    """

    table: str
    version: int
    operation: str
    rows: pa.Table | None
    doubled: bool = False
    uncounted: str = "data files are gone"

    @property
    def name(self) -> str:
        """The change in a few words: the operation and the version."""
        return f"{self.table} (version {self.version}, {self.operation})"

    def describe(self) -> str:
        """The change in a line: who, when, which rows."""
        if self.rows is None:
            return f"{self.name}: what it changed cannot be counted, because {self.uncounted}"
        added, taken = (self.rows.filter(pc.equal(self.rows["rows"], sign)) for sign in (1, -1))
        found = [f"{which} {_counted(part)}" for which, part in (("took", taken), ("added", added)) if part.num_rows]
        twice = "; there are rows twice now" if self.doubled else ""
        return f"{self.name}: {' and '.join(found)}{twice}"

    def within(self, begin_us: int, end_us: int) -> "ForeignChange":
        """The part of it that lies in a range."""
        return self._of(self._inside(begin_us, end_us))

    def without(self, begin_us: int, end_us: int) -> "ForeignChange":
        """The part of it that does not."""
        return self._of(pc.invert(self._inside(begin_us, end_us)))

    @property
    def is_put_right(self) -> bool:
        """Whether nothing of it is left."""
        return self.rows is not None and not self.rows.num_rows

    @property
    def span_us(self) -> tuple[int, int] | None:
        """A range that has all of it; None: none has."""
        if self.rows is None or self.rows["placed_us"].null_count:
            return None
        least, most = pc.min(self.rows["placed_us"]).as_py(), pc.max(self.rows["placed_us"]).as_py()
        return int(least), int(most) + 1

    @property
    def terms(self) -> Mapping[str, int]:
        """By how much it changes what a ledger says of the table."""
        if self.rows is None:
            return {}
        found = {"rows": self.rows["rows"], "pairs_revised": self.rows["events"]}
        return {term: int(pc.sum(column).as_py() or 0) for term, column in found.items()}

    def _inside(self, begin_us: int, end_us: int) -> Any:
        placed = self.rows["placed_us"] if self.rows is not None else pa.array([], pa.int64())
        return pc.fill_null(pc.and_(pc.greater_equal(placed, begin_us), pc.less(placed, end_us)), False)

    def _of(self, chosen: Any) -> "ForeignChange":
        return self if self.rows is None else replace(self, rows=self.rows.filter(chosen))


@dataclass(frozen=True)
class Correction:
    """What a backfill of a range has put right.

    Attributes:
        versions: as `Revision.replaced`.
        terms: by how much all of it had changed what a ledger says of the table.
    """

    versions: Mapping[int, bool]
    terms: Mapping[str, int]


def book(changes: Iterable[ForeignChange], begin_us: int, end_us: int) -> tuple[Correction, list[ForeignChange]]:
    """What is put right of changes where a range has what the events give, and what is left of them.

    What cannot be counted is left, and so is what is there twice: a backfill does not take one of two rows away.
    """
    versions: dict[int, bool] = {}
    terms: Counter[str] = Counter()
    left = []
    for each in changes:
        inside, rest = each.within(begin_us, end_us), each.without(begin_us, end_us)
        if each.doubled or each.rows is None or inside.is_put_right:
            left.append(each)
            continue
        versions[each.version] = rest.is_put_right
        for term, count in inside.terms.items():
            terms[term] += count
        left += [] if rest.is_put_right else [rest]
    return Correction(versions, dict(terms)), left


def foreign_changes(lake: Lake, table: str, operator: Operator, pipeline: str, epoch: int) -> Iterator[ForeignChange]:
    """What other programs have changed in a table of results and nothing has put right, the newest first.

    Args:
        lake: where.
        table: of results, or of all groups.
        operator: that gives its rows.
        pipeline: its name.
        epoch: of its checkpoint.
    """
    known: list[Revision] | None = None
    for version, actions in _commits(lake, table, lineage(lake, pipeline, epoch)):
        if known is None:
            known = [each for _, each in revisions(lake, table, pipeline, epoch)]
        told = [each for each in known if version in each.replaced]
        if any(each.replaced[version] for each in told):
            continue
        left = _change(lake, table, version, actions, operator)
        for each in told:
            left = left.without(each.begin_us or 0, each.end_us or 0)
        if not left.is_put_right:
            yield left


def _commits(lake: Lake, table: str, which: Lineage) -> Iterator[tuple[int, Actions]]:
    """The commits of an epoch that change rows and that nobody has signed, the newest first."""
    for version, actions in unsigned_commits(lake, table):
        if which.undone(table, version):
            continue
        commit = info_of(actions)
        stamp = decode(commit)
        if commit.get(EMPTIED) == "reset" or (stamp is not None and stamp.epoch < which.epochs[0]):
            return  # what was before the epoch
        ours = stamp is not None or decode_revision(commit) is not None or EMPTIED in commit
        if ours or not changes_rows(actions) or (not takes_rows_away(actions) and _no_rows(commit, version)):
            continue
        yield version, actions


def _no_rows(commit: dict[str, object], version: int) -> bool:
    """Whether a commit that nobody signed has written nothing: a tombstone of a reset, the first of a table."""
    metrics = commit.get("operationMetrics")
    found = metrics.items() if isinstance(metrics, dict) else ()
    counts = [int(value) for name, value in found if "ow" in name and str(value).isdigit()]
    # Not every program says how many rows it has written.
    return sum(counts) == 0 if counts else version == 0


def _change(lake: Lake, table: str, version: int, actions: Actions, operator: Operator) -> ForeignChange:
    operation = str(info_of(actions).get("operation", "unknown"))
    files = {
        kind: [each for action in actions if (each := action.get(kind)) and each.get("dataChange", True)]
        for kind in ("remove", "add")
    }
    every = [each for kind in files.values() for each in kind]
    unknown = ForeignChange(table, version, operation, None)
    if any(each.get("deletionVector") for each in every):
        return replace(unknown, uncounted="it marks rows as deleted in a way that is not understood here")
    if gone(lake, table, [str(each["path"]) for each in every]):
        return unknown
    opened = open_table(lake, table)
    if (size := _size(every, opened if operator.output.updates else None)) > _MOST_BYTES:
        why = f"that takes {size / 2**30:,.1f} GiB of data files, and no more than {_MOST_BYTES / 2**30:,.1f} are read"
        return replace(unknown, uncounted=why)
    schema = pa.schema(opened.schema().to_arrow())
    removed, added = ([unquote(str(each["path"])) for each in files[kind]] for kind in ("remove", "add"))
    try:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            counting = _Counting(connection, schema, operator)
            counting.fill("of_taken", _batches_of(lake, table, schema, removed))
            counting.fill("of_added", _batches_of(lake, table, schema, added))
            counting.subtract()
            if counting.needed:
                there = opened.to_pyarrow_dataset().scanner(columns=list(counting.needed), **_LITTLE_AT_ONCE)
                counting.compare(there.to_batches())
            return replace(unknown, rows=counting.rows(), doubled=counting.doubled())
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        return replace(unknown, uncounted=f"data files cannot be read: {first_line(error)}")


def _size(files: Iterable[Mapping[str, Any]], whole: DeltaTable | None) -> int:
    """The bytes to be read, by the log: of files, and of a whole table."""
    of_table: list[int] = file_statistics(whole)["size_bytes"].to_pylist() if whole is not None else []
    return sum(int(each.get("size") or 0) for each in files) + sum(of_table)


@dataclass(frozen=True)
class _Counting:
    """Counts what a commit has changed, in a database that holds a few bytes for each row, whatever its columns are."""

    connection: duckdb.DuckDBPyConnection
    schema: pa.Schema
    operator: Operator

    @property
    def _keys(self) -> list[str]:
        return [name for name in self.operator.output.row_keys if name in self.schema.names]

    @property
    def _key(self) -> str:
        return f"hash(({', '.join([*map(in_duckdb, self._keys), '0'])}))"

    @property
    def _whole(self) -> str:
        # A file that is written anew has most of its rows as they were; texts compare values of every type.
        return f"hash(({', '.join(f'{in_duckdb(name)}::VARCHAR' for name in self.schema.names)}, 0))"

    @property
    def needed(self) -> Sequence[str]:
        """The columns of the table as it is now that are compared with what has changed."""
        return self.schema.names if self.operator.output.updates else self._keys

    def fill(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Reads the rows of data files into a table of their hashes."""
        by, columns = self.operator.recomputation.placed_by, self.schema.names
        placed = f"epoch_us({first_of(by, in_duckdb)})" if by else "NULL::BIGINT"
        events = f"{in_duckdb(EVENTS)}::BIGINT" if EVENTS in columns else "0::BIGINT"
        self.connection.execute(
            f"CREATE TEMP TABLE {name} (whole UBIGINT, key UBIGINT, placed_us BIGINT, events BIGINT)"
        )
        self._insert(name, f"{self._whole}, {self._key}, {placed}, {events}", batches)

    def subtract(self) -> None:
        """Leaves the rows that are on one side alone."""
        self.connection.execute(
            "CREATE TEMP TABLE changed AS "
            "SELECT -1::BIGINT AS rows, * FROM (FROM of_taken EXCEPT ALL FROM of_added) UNION ALL "
            "SELECT 1::BIGINT AS rows, * FROM (FROM of_added EXCEPT ALL FROM of_taken)"
        )

    def compare(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Reads the rows that the table has now under a key that has changed."""
        self.connection.execute("CREATE TEMP TABLE now (whole UBIGINT, key UBIGINT)")
        whole = self._whole if self.operator.output.updates else "NULL"
        self._insert("now", f"{whole}, {self._key} AS key", batches, "key IN (SELECT key FROM changed)")
        if self.operator.output.updates:
            # A stream writes a group that changes as its state has it, whatever the table had.
            self.connection.execute("DELETE FROM changed WHERE rows = 1 AND whole NOT IN (SELECT whole FROM now)")
            self.connection.execute(
                "DELETE FROM changed WHERE rows = -1 AND key IN (SELECT key FROM now) "
                "AND key NOT IN (SELECT key FROM changed WHERE rows = 1)"
            )

    def rows(self) -> pa.Table:
        """As `ForeignChange.rows`."""
        found = "SELECT placed_us, rows, rows * coalesce(events, 0) AS events FROM changed"
        return self.connection.sql(found).to_arrow_table()

    def doubled(self) -> bool:
        """As `ForeignChange.doubled`."""
        if not self._keys:
            return False
        twice = self.connection.execute(
            "SELECT count(*) FROM (SELECT key FROM now GROUP BY ALL HAVING count(*) > 1) "
            "SEMI JOIN (FROM changed WHERE rows = 1) USING (key)"
        ).fetchone()
        return bool(twice and twice[0])

    def _insert(self, name: str, selected: str, batches: Iterable[pa.RecordBatch], where: str = "true") -> None:
        # One by one: an error of Arrow that DuckDB meets while it reads from it may block both.
        for batch in batches:
            self.connection.register("part", pa.Table.from_batches([batch]))
            self.connection.execute(f"INSERT INTO {name} SELECT * FROM (SELECT {selected} FROM part) WHERE {where}")
            self.connection.unregister("part")


def _batches_of(lake: Lake, table: str, schema: pa.Schema, paths: Sequence[str]) -> Iterable[pa.RecordBatch]:
    """The rows of data files, a few at once."""
    import pyarrow.dataset as ds  # imports pandas, which every start of a command would wait for

    if not paths:
        return ()
    found = ds.dataset(
        paths,
        schema=schema,
        # Spark writes timestamps as INT96, which would be read in nanoseconds and overflow in 2262.
        format=ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")),
        filesystem=PyFileSystem(DeltaStorageHandler(lake.table_uri(table), lake.storage_options)),
    )
    batches: Iterable[pa.RecordBatch] = found.scanner(**_LITTLE_AT_ONCE).to_batches()
    return batches


def _counted(rows: pa.Table) -> str:
    number, events = rows.num_rows, abs(int(pc.sum(rows["events"]).as_py() or 0))
    of = f" of {events:,} event{'' if events == 1 else 's'}" if events else ""
    return f"{number:,} row{'' if number == 1 else 's'}{of}"
