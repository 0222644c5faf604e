"""`ops.ledger`: what the commits of every table have said, kept when the logs of the tables are cut.

One row for each commit: who made it, what became of its events, and its actions as its log had them, without the
statistics that nobody asks for again. And for each epoch, now and then, a row with what its entries add up to: who
looks at the ledger reads that, and the commits since.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import open_table

TABLE = "ops.ledger"

BATCH, SIDE, HEARTBEAT, REVISION, REPLAY, RESET, OTHER, SUMS = (
    "batch",
    "side",
    "heartbeat",
    "revision",
    "replay",
    "reset",
    "other",
    "sums",
)
"""Kinds of rows: a batch's commit that has its ledger entry, one to a table beside it, a heartbeat, a backfill or a
repair, a replay of quarantined rows, a reset that emptied the table, a commit of another program or of maintenance; the
sums of an epoch."""

SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("table_id", pa.string()),
        ("version", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("kind", pa.string()),
        ("pipeline", pa.string()),
        ("epoch", pa.int64()),
        ("batch_id", pa.int64()),
        ("role", pa.string()),
        ("rows_added", pa.int64()),
        ("terms", pa.map_(pa.string(), pa.int64())),
        ("content", pa.string()),
    ]
)
"""Of `ops.ledger`. `rows_added`: that the commit brings to readers of the table, null where statistics do not tell;
`content`: the actions of the commit, or the sums, as JSON."""

_WHICH = ("version", "kind", "pipeline", "epoch")
"""Columns that tell which rows are asked for; next to nothing beside `content`."""

Actions = list[dict[str, Any]]


def writer_of(table: str, table_id: str) -> str:
    """Under which transaction id `ops.ledger` remembers up to which version it has a table's commits."""
    return f"ledger/{table}/{table_id}"


class KeptCommits:
    """The commits of one table that `ops.ledger` has.

    Args:
        lake: where.
        table: such as `gold.top_products`.
    """

    def __init__(self, lake: Lake, table: str) -> None:
        self._table = table
        self._opened: DeltaTable | None
        try:
            self._opened = open_table(lake, TABLE)
            # A table that was removed and made again has a history of its own.
            self._table_id = str(open_table(lake, table).metadata().id)
        except MissingTableError:
            self._opened = None
            self._table_id = ""

    @property
    def below(self) -> int:
        """Versions below this one are kept."""
        found = (
            self._opened.transaction_version(writer_of(self._table, self._table_id))
            if self._opened is not None
            else None
        )
        return 0 if found is None else found + 1

    def newest_first(
        self,
        *,
        below: int | None = None,
        first: int = 0,
        kinds: Sequence[str] = (),
        pipeline: str | None = None,
        epochs: Sequence[int] = (),
        limit: int | None = None,
    ) -> list[tuple[int, Actions]]:
        """Version and actions of commits, the newest first.

        Args:
            below: only versions before this one; None: any.
            first: and none before this one.
            kinds: only these kinds; empty: any commit.
            pipeline: only those of this pipeline; None: any.
            epochs: only those of these epochs; empty: any.
            limit: so many at most.
        """
        conditions = [f"version >= {first}", "kind IN $kinds"]
        conditions += [f"version < {below}"] if below is not None else []
        conditions += ["pipeline = $pipeline"] if pipeline is not None else []
        conditions += [f"epoch IN ({', '.join(map(str, epochs))})"] if epochs else []
        values: dict[str, Any] = {"kinds": list(kinds or (BATCH, SIDE, HEARTBEAT, REVISION, REPLAY, RESET, OTHER))}
        values |= {"pipeline": pipeline} if pipeline is not None else {}
        found = self._contents(" AND ".join(conditions), values, limit)
        return [(version, json.loads(content)) for version, content in found]

    def sums(self, pipeline: str, epoch: int) -> tuple[int, str] | None:
        """The newest sums of an epoch: the version up to which, itself included, and the sums as JSON."""
        found = self._contents(
            "kind = $kind AND pipeline = $pipeline AND epoch = $epoch",
            {"kind": SUMS, "pipeline": pipeline, "epoch": epoch},
            1,
        )
        return found[0] if found else None

    def epochs(self) -> list[tuple[str, int]]:
        """Pipelines and epochs of which there are sums."""
        found = self._query("SELECT DISTINCT pipeline, epoch FROM kept WHERE kind = $kind", {"kind": SUMS}, _WHICH)
        return [(str(pipeline), int(epoch)) for pipeline, epoch in found]

    def rows_added(self, first: int, below: int) -> tuple[int | None, tuple[int, int] | None]:
        """What the commits of a range of versions have brought to readers of the table.

        Args:
            first: version.
            below: up to it.

        Returns:
            Rows, None where statistics do not tell; and of the newest reset among them the version and when it was, in
            milliseconds since 1970; None: there is none.
        """
        found = self._query(
            "SELECT sum(rows_added), count(*) FILTER (rows_added IS NULL), max(version) FILTER (kind = $reset), "
            "max(epoch_ms(committed_at)) FILTER (kind = $reset) "
            f"FROM kept WHERE kind <> $sums AND version >= {first} AND version < {below}",
            {"reset": RESET, "sums": SUMS},
            (*_WHICH, "committed_at", "rows_added"),
        )
        total, unknown, emptied, at = found[0] if found else (0, 0, None, None)
        return (None if unknown else int(total or 0)), (None if emptied is None else (int(emptied), int(at)))

    @cached_property
    def _dataset(self) -> Any:
        return None if self._opened is None else self._opened.to_pyarrow_dataset()

    def _contents(self, where: str, values: dict[str, Any], limit: int | None) -> list[tuple[int, str]]:
        """Version and content of rows, the newest first. Contents are large: they are read of these versions alone."""
        chosen = f"FROM kept WHERE {where} ORDER BY version DESC" + (f" LIMIT {limit}" if limit is not None else "")
        versions = [int(version) for (version,) in self._query(f"SELECT version {chosen}", values, _WHICH)]
        if not versions:
            return []
        found = self._query(f"SELECT version, content {chosen}", values, (*_WHICH, "content"), versions)
        return [(int(version), str(content)) for version, content in found]

    def _query(
        self, sql: str, values: dict[str, Any], columns: Sequence[str], versions: Sequence[int] | None = None
    ) -> list[tuple[Any, ...]]:
        if self._dataset is None:
            return []
        import pyarrow.dataset as ds  # imports pandas, which every start of a command would wait for

        # Arrow leaves out files by their statistics; DuckDB, whose conditions are of several columns, does the rest.
        asked = (ds.field("table") == self._table) & (ds.field("table_id") == self._table_id)
        if versions is not None:
            # Files are left out by the bounds, rows by the list.
            between = (ds.field("version") >= min(versions)) & (ds.field("version") <= max(versions))
            asked = asked & between & ds.field("version").isin(versions)
        mine = self._dataset.scanner(columns=list(columns), filter=asked)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("kept", mine.to_reader())
            return connection.execute(sql, values).fetchall()


def changes_rows(actions: Actions) -> bool:
    """Whether a commit brings other rows to readers; those of maintenance, or of a ledger alone, do not."""
    files = (action.get("add") or action.get("remove") for action in actions)
    return any(file and file.get("dataChange", True) for file in files)


def takes_rows_away(actions: Actions) -> bool:
    """Whether a commit takes rows from readers: deletes, updates, overwrites, a table that is replaced."""
    return any(action["remove"].get("dataChange", True) for action in actions if "remove" in action)


def files_of(actions: Actions) -> set[str]:
    """The data files that a commit adds or takes away, relative to the table."""
    found = (action.get("add") or action.get("remove") for action in actions)
    return {str(file["path"]) for file in found if file}


class AddedFile(NamedTuple):
    """A data file that a commit brings to readers.

    Attributes:
        rows: in it; None where its statistics do not tell.
        size: in bytes.
    """

    rows: int | None
    size: int


def files_added(actions: Actions) -> list[AddedFile]:
    """The data files that a commit brings to readers, in its order."""
    if takes_rows_away(actions):
        return []  # a commit that takes rows away is no event: streams pass over all of it
    added = [action["add"] for action in actions if "add" in action]
    return [AddedFile(_rows_of(add), int(add["size"])) for add in added if add.get("dataChange", True)]


def _rows_of(add: dict[str, Any]) -> int | None:
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    return None if add.get("deletionVector") or rows is None else int(rows)
