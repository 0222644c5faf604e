"""Expectations of a table as a whole, by DuckDB: Great Expectations has none that fit what was added."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from deltalake import DeltaTable
from sqlglot import TokenType

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.audit import checks
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commit_records.history import epoch_ledger
from spark_jobs.lake.errors import MissingTableError, TidemarkError, first_line
from spark_jobs.lake.tables import query
from spark_jobs.lake.tables.opening import UNREADABLE, newest, open_table, table_folders
from spark_jobs.lake.tables.quality import Result
from spark_jobs.plan import logical
from spark_jobs.plan.columns import FINAL_AFTER, HEARTBEAT, INGEST_SEQ, WINDOW_END
from spark_jobs.plan.personal import PersonalColumns
from spark_jobs.quality.frames import ROWS, SAMPLES, DuckDbRows
from spark_jobs.quality.masking import (
    TableColumns,
    makes_names_of_values,
    masked,
    masked_results,
    personal_outputs,
    reads_personal,
    tables_read,
)
from spark_jobs.quality.suites import Suite, sql_type
from spark_jobs.spec import (
    Conservation,
    CustomSql,
    Fresh,
    OverTime,
    Referential,
    TableExpectation,
    Unique,
    Volume,
)
from spark_jobs.spec.durations import format_duration
from spark_jobs.spec.equivalence import comparable
from spark_jobs.spec.names import in_duckdb
from spark_jobs.spec.personal import concealed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FEWEST_INTERVALS = 3
"""A median of fewer says nothing."""


@dataclass(frozen=True)
class TableUnderCheck:
    """A table that is checked.

    Attributes:
        lake: where.
        suite: of the table.
        opened: the table.
        held: the rows that are new, with the columns that its expectations name.
        personal: which columns' values are not shown.
        now: by the clock.
    """

    lake: Lake
    suite: Suite
    opened: DeltaTable
    held: DuckDbRows
    personal: PersonalColumns
    now: datetime

    @property
    def hidden(self) -> frozenset[str]:
        """The columns of the table whose values are not shown."""
        return self.personal.of(self.suite.table)

    @property
    def names(self) -> list[str]:
        """The columns of the table."""
        return [field.name for field in self.opened.schema().fields]

    def time_of(self, expectation: OverTime) -> str:
        """The time that it goes by."""
        names = self.names
        default = WINDOW_END if WINDOW_END in names else self.suite.event_time
        found = expectation.column or default
        if found is None or found not in names:
            raise _NotPossibleError(
                f"{self.suite.table} has no column {found!r}; say column=, one of {', '.join(names)}"
                if found
                else f"its rows have no time: say column=, one of {', '.join(names)}"
            )
        return found


class _NotPossibleError(TidemarkError):
    """What an expectation asks for is not there."""


def needs_rows(expectation: TableExpectation) -> bool:
    """Whether it is about the rows that are new, so that nothing is to be done where there are none."""
    return isinstance(expectation, Unique | Referential)


def look(checked: TableUnderCheck, expectation: TableExpectation) -> Result:
    """What a check finds of one expectation; what cannot be looked at is not as expected."""
    ways: Mapping[type, Callable[[TableUnderCheck, Any], Result]] = {
        Unique: _unique,
        Referential: _referential,
        Fresh: _fresh,
        Volume: _volume,
        Conservation: _conservation,
        CustomSql: _custom_sql,
    }
    try:
        missing = [name for name in expectation.read if name not in checked.names]
        if missing:
            raise _NotPossibleError(f"{checked.suite.table} has no column {', '.join(map(repr, missing))}")
        return ways[type(expectation)](checked, expectation)
    except duckdb.Error as error:
        told = first_line(error)
        hidden = {name.casefold() for name in (*checked.hidden, *checked.personal.declared)}
        if hidden & {name.casefold() for name in (*expectation.read, *checked.names)}:
            told = concealed(_kind(error), str(error), checked.names)
        return Result(expectation.name, expectation.severity, False, f"cannot be checked: {told}")
    except (_NotPossibleError, MissingTableError, query.QueryError) as error:
        return Result(expectation.name, expectation.severity, False, f"cannot be checked: {error}")


def _unique(checked: TableUnderCheck, expectation: Unique) -> Result:
    keys = [in_duckdb(name) for name in expectation.columns]
    # A column of the key may be called so.
    times = "__times" if "times" in {name.casefold() for name in expectation.columns} else "times"
    connection = checked.held.connection
    connection.execute(f"CREATE OR REPLACE TEMP TABLE new_keys AS SELECT DISTINCT {', '.join(keys)} FROM {ROWS}")
    same = " AND ".join(f"held_rows.{key} IS NOT DISTINCT FROM new_keys.{key}" for key in keys)
    with _whole(checked, "held_rows", checked.opened, expectation.columns):
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE twice AS "
            f"SELECT {', '.join(f'held_rows.{key}' for key in keys)}, count(*) AS {times} FROM held_rows "
            f"SEMI JOIN new_keys ON {same} GROUP BY ALL HAVING count(*) > 1"
        )
    extra, groups = _row(connection, f"SELECT coalesce(sum({times} - 1), 0), count(*) FROM twice")
    rows = checked.held.count
    samples = query.fetch_rows(connection, f"SELECT * FROM twice ORDER BY {times} DESC LIMIT {SAMPLES}")
    return Result(
        expectation.name,
        expectation.severity,
        not extra,
        f"keys that occur more than once: {groups:,}, rows too many: {extra:,}" if extra else "each key occurs once",
        int(extra),
        rows,
        masked(samples, checked.hidden),
    )


def _referential(checked: TableUnderCheck, expectation: Referential) -> Result:
    other = open_table(checked.lake, expectation.table)
    others = expectation.other_columns or expectation.columns
    known = [field.name for field in other.schema().fields]
    if missing := [name for name in others if name not in known]:
        raise _NotPossibleError(f"{expectation.table} has no column {', '.join(map(repr, missing))}")
    mine_of, theirs_of = ({f.name: sql_type(f.type) for f in each.schema().fields} for each in (checked.opened, other))
    for mine, theirs in zip(expectation.columns, others, strict=True):
        if mine_of[mine] != theirs_of[theirs] and not comparable(mine_of[mine], theirs_of[theirs]):
            types = f"{mine!r} is {mine_of[mine]} and {theirs!r} is {theirs_of[theirs]}"
            raise _NotPossibleError(f"{types}: cast one of them where it is written")
    connection = checked.held.connection
    pairs = list(zip(map(in_duckdb, expectation.columns), map(in_duckdb, others), strict=True))
    same = " AND ".join(f"{ROWS}.{mine} = others.{theirs}" for mine, theirs in pairs)
    given = " AND ".join(f"{mine} IS NOT NULL" for mine, _ in pairs)
    with _whole(checked, "others", other, others):
        try:
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE lost AS SELECT {', '.join(mine for mine, _ in pairs)} FROM {ROWS} "
                f"ANTI JOIN others ON {same} WHERE {given}"
            )
        except duckdb.BinderException as error:
            raise _NotPossibleError(f"its columns cannot be compared: {str(error).splitlines()[0]}") from error
    (count,) = _row(connection, "SELECT count(*) FROM lost")
    samples = query.fetch_rows(connection, f"SELECT DISTINCT * FROM lost LIMIT {SAMPLES}")
    rows = checked.held.count
    return Result(
        expectation.name,
        expectation.severity,
        not count,
        f"{count:,} of {rows:,} rows refer to nothing in {expectation.table}",
        int(count),
        rows,
        masked(samples, checked.hidden),
    )


def _fresh(checked: TableUnderCheck, expectation: Fresh) -> Result:
    column = checked.time_of(expectation)
    # Heartbeats are no events, and have no sequence number.
    beside = INGEST_SEQ if HEARTBEAT in checked.names else None
    newest_time = newest(checked.opened, column, beside=beside)
    if newest_time is None:
        newest_time = _newest_scanned(checked, column)
    if newest_time is None:
        return Result(expectation.name, expectation.severity, False, f"no row has a {column}")
    if not isinstance(newest_time, datetime):
        raise _NotPossibleError(f"{column!r} is no time")
    age = checked.now - newest_time
    said = f"{format_duration(timedelta(seconds=max(0, int(age.total_seconds()))))} ago"
    return Result(
        expectation.name,
        expectation.severity,
        age < expectation.younger_than,
        f"newest {column}: {newest_time:%Y-%m-%d %H:%M:%S} UTC, {said}",
    )


def _newest_scanned(checked: TableUnderCheck, column: str) -> Any:
    rows = checked.opened.to_pyarrow_dataset().scanner(columns=[column], filter=_events(checked.names)).to_reader()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("times", rows)
        return _row(connection, f"SELECT max({in_duckdb(column)}) FROM times")[0]


def _volume(checked: TableUnderCheck, expectation: Volume) -> Result:
    column = checked.time_of(expectation)
    per_us = expectation.per // timedelta(microseconds=1)
    last = _newest_scanned(checked, column)
    if last is None:
        return Result(expectation.name, expectation.severity, True, "no rows yet")
    if not isinstance(last, datetime):
        raise _NotPossibleError(f"{column!r} is no time")
    # The newest interval is not over.
    judged = (last - _EPOCH) // timedelta(microseconds=1) // per_us - 1
    step = expectation.every // expectation.per if expectation.every is not None else 1
    compared = [judged - step * back for back in range(expectation.intervals, 0, -1)]
    counts = _counts(checked, column, per_us, compared[0], judged)
    before = [counts.get(number, 0) for number in compared]
    # What lies before the first row is no interval without rows.
    while before and not before[0]:
        before.pop(0)
    if len(before) < _FEWEST_INTERVALS:
        said = f"{len(before)} whole intervals before it; expected {_FEWEST_INTERVALS} to compare with"
        return Result(expectation.name, expectation.severity, True, said)
    usual, found = median(before), counts.get(judged, 0)
    holds = (expectation.min_share is None or found >= expectation.min_share * usual) and (
        expectation.max_share is None or found <= expectation.max_share * usual
    )
    begin = _EPOCH + timedelta(microseconds=judged * per_us)
    apart = f", {format_duration(expectation.every)} apart," if expectation.every is not None else ""
    said = f"{found:,} rows from {begin:%Y-%m-%d %H:%M}, the median of {len(before)} before{apart} is {usual:,g}"
    return Result(expectation.name, expectation.severity, holds, said)


def _counts(checked: TableUnderCheck, column: str, per_us: int, first: int, last: int) -> dict[int, int]:
    """Interval -> rows in it, of a range of intervals."""
    begin, end = (_EPOCH + timedelta(microseconds=number * per_us) for number in (first, last + 1))
    kind = pa.timestamp("us", "UTC")
    inside = (pc.field(column) >= pa.scalar(begin, kind)) & (pc.field(column) < pa.scalar(end, kind))
    events = _events(checked.names)
    rows = checked.opened.to_pyarrow_dataset().scanner(
        columns=[column], filter=inside if events is None else inside & events
    )
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("times", rows.to_reader())
        # `//` rounds towards zero, and times before 1970 are negative.
        found = connection.execute(
            f"SELECT CAST(floor(epoch_us({in_duckdb(column)}) / {per_us}) AS BIGINT), count(*) FROM times GROUP BY ALL"
        ).fetchall()
    return {int(number): int(count) for number, count in found}


def _conservation(checked: TableUnderCheck, expectation: Conservation) -> Result:
    definition = checked.suite.definition
    epoch = current_epoch(checked.lake, definition.name)
    if epoch is None:
        raise _NotPossibleError(f"`{definition.name}` has no checkpoint on this lake, so no ledger")
    equations = logical.build(definition).equations
    ledger = epoch_ledger(checked.lake, checked.suite.table, definition.name, epoch.number, equations, last=1)
    found = checks(checked.lake, definition, epoch.number, ledger)
    wrong = [said for holds, said in found if not holds]
    said = "; ".join(wrong) if wrong else f"{len(found)} equations hold; batches: {ledger.totals.batches:,}"
    return Result(expectation.name, expectation.severity, not wrong, said)


def _custom_sql(checked: TableUnderCheck, expectation: CustomSql) -> Result:
    sql = _without_end(expectation.sql)
    tables = _columns_of(checked, tables_read(sql))
    try:
        # On lines of its own: it may end in a comment.
        names, rows = query.run(checked.lake, f"SELECT * FROM (\n{sql}\n) LIMIT {SAMPLES}")
        (count,) = query.run(checked.lake, f"SELECT count(*) FROM (\n{sql}\n)")[1][0]
    except query.QueryError as error:
        cause = error.__cause__
        # Said before any row is read. Where a PIVOT makes names of values, a message that lists names is no such one.
        early = isinstance(cause, duckdb.ParserException | duckdb.CatalogException | duckdb.PermissionException)
        early = early or (isinstance(cause, duckdb.BinderException) and not makes_names_of_values(sql))
        if early or not checked.personal.declared or not reads_personal(sql, tables):
            raise
        known = frozenset(name for each in tables.values() for name in each.names)
        raise _NotPossibleError(
            f"query {sql!r}: {concealed(_kind(cause or error), str(cause or error), known)}"
        ) from None
    hidden = personal_outputs(sql, names, tables) if checked.personal.declared else [False] * len(names)
    said = f"{count:,} rows are wrong" if count else "no row is wrong"
    samples = masked_results(rows, names, hidden, sql=sql, tables=tables)
    return Result(expectation.name, expectation.severity, not count, said, int(str(count)), None, samples)


def _columns_of(checked: TableUnderCheck, names: Collection[str]) -> dict[str, TableColumns]:
    """The columns of the tables that a query names, as it sees them."""
    found = {}
    for table in table_folders(checked.lake):
        if table.casefold() not in names:
            continue
        try:
            columns = [field.name for field in open_table(checked.lake, table).schema().fields]
        except (MissingTableError, *UNREADABLE):
            continue
        columns += ["is_final"] if FINAL_AFTER in columns else []
        found[table] = TableColumns(columns, checked.personal.of(table))
    return found


def _kind(error: BaseException) -> str:
    """What kind of error DuckDB says that it is."""
    kind, _, rest = str(error).partition(":")
    return kind if rest and kind.endswith("Error") and kind.replace(" ", "").isalpha() else type(error).__name__


def _without_end(sql: str) -> str:
    """A query up to the semicolon that ends it; a comment may follow."""
    tokens = sqlglot.tokenize(sql, dialect="duckdb")
    ends = tokens and tokens[-1].token_type is TokenType.SEMICOLON
    return sql[: tokens[-1].start] if ends else sql


class _whole:
    """Columns of a whole table as a table of DuckDB, for a while."""

    def __init__(self, checked: TableUnderCheck, name: str, opened: DeltaTable, columns: Iterable[str]) -> None:
        self._connection, self._name = checked.held.connection, name
        names = [field.name for field in opened.schema().fields]
        self._rows = opened.to_pyarrow_dataset().scanner(columns=list(columns), filter=_events(names)).to_reader()

    def __enter__(self) -> None:
        # Not the dataset itself: DuckDB pushes conditions into it that Arrow cannot compare texts by.
        self._connection.register("rows_of_table", self._rows)
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {self._name} AS SELECT * FROM rows_of_table")
        self._connection.unregister("rows_of_table")

    def __exit__(self, *error: object) -> None:
        self._connection.execute(f"DROP TABLE {self._name}")


def _events(names: Collection[str]) -> Any:
    """Which rows are events, for Arrow; None: all."""
    return ~pc.field(HEARTBEAT) if HEARTBEAT in names else None


def _row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    # All of it: the connection takes nothing else before a result is at its end.
    found: tuple[Any, ...] = connection.execute(sql).fetchall()[0]
    return found
