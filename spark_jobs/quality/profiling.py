"""What the rows of a table are like, and the expectations that these rows would satisfy."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb

from spark_jobs.lake import Lake
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.query import connect, fetch_rows, view_of
from spark_jobs.plan.columns import FINAL_AFTER, HEARTBEAT, REVISED_AT, REVISION, WINDOW_END
from spark_jobs.spec.durations import format_duration
from spark_jobs.spec.names import in_duckdb, visible
from spark_jobs.spec.personal import is_personal

MOST_VALUES = 20
"""A text column with at most so many values may be a set."""

_ROWS_FOR_A_VALUE = 20
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_OWN = frozenset({FINAL_AFTER, REVISION, REVISED_AT, "is_final"})
_INTERVALS = tuple(timedelta(seconds=seconds) for seconds in (60, 3600, 86_400, 7 * 86_400))
_FEW_NULLS = 0.01
_STEADY = 20
"""Intervals of which the fullest has more than so many times the rows of the emptiest say nothing about a volume."""


@dataclass(frozen=True)
class ColumnProfile:
    """What the values of a column are like.

    Attributes:
        name: of the column.
        type: as DuckDB calls it.
        nulls: rows without a value.
        distinct: about so many values.
        smallest: of the values; None: nested, or nothing but nulls.
        greatest: of the values; as before.
        values: all of them, if it is a text of few values.
    """

    name: str
    type: str
    nulls: int
    distinct: int
    smallest: Any = None
    greatest: Any = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """What the rows of a table are like.

    Attributes:
        table: such as `gold.top_products`.
        version: of the table.
        rows: without heartbeats.
        columns: in their order.
        key: columns that identify a row; none were found: empty.
        volume: of the whole intervals of `per`: the smallest and the greatest share of their median; None: too few.
        per: length of these intervals.
        newest: the newest time.
        gap: the longest time between two rows that follow one another.
    """

    table: str
    version: int
    rows: int
    columns: tuple[ColumnProfile, ...]
    key: tuple[str, ...] = ()
    volume: tuple[float, float] | None = None
    per: timedelta | None = None
    newest: datetime | None = None
    gap: timedelta | None = None


def profile(lake: Lake, table: str, *, event_time: str | None, keys: Collection[tuple[str, ...]] = ()) -> Profile:
    """Looks at all rows of a table, with DuckDB.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        event_time: by which the rows of a table without windows go.
        keys: sets of columns that may identify a row, the likeliest first; each column alone is tried after them.

    Raises:
        MissingTableError: if there is none.
    """
    version = int(open_table(lake, table).version())
    with connect(lake) as connection:
        view = view_of(table)
        described = connection.execute(f"DESCRIBE SELECT * FROM {view}").fetchall()
        types = {str(name): str(kind) for name, kind, *_ in described}
        where = f"WHERE NOT {HEARTBEAT}" if HEARTBEAT in types else ""
        connection.execute(f"CREATE TEMP VIEW profiled AS SELECT * FROM {view} {where}")
        names = [name for name in types if not name.startswith("_") and name not in _OWN]
        rows, columns = _columns(connection, {name: types[name] for name in names})
        time = WINDOW_END if WINDOW_END in types else event_time
        key = _key(connection, columns, rows, [*keys, *((each.name,) for each in columns)])
        if not rows or time not in types:
            return Profile(table, version, rows, columns, key)
        newest, gap = _gaps(connection, time)
        per, volume = _volume(connection, time)
        return Profile(table, version, rows, columns, key, volume, per, newest, gap)


def _columns(connection: duckdb.DuckDBPyConnection, types: dict[str, str]) -> tuple[int, tuple[ColumnProfile, ...]]:
    """One pass for all columns; another for the values of those that have few."""
    parts = ["count(*)"]
    for name, kind in types.items():
        column = in_duckdb(name)
        ends = (f"min({column})", f"max({column})") if _is_single(kind) else ("NULL", "NULL")
        parts += [f"count({column})", f"approx_count_distinct({column})", *ends]
    rows, *figures = connection.execute(f"SELECT {', '.join(parts)} FROM profiled").fetchall()[0]
    profiles = []
    for place, (name, kind) in enumerate(types.items()):
        known, distinct, smallest, greatest = figures[4 * place : 4 * place + 4]
        profiles.append(ColumnProfile(name, kind, rows - known, min(distinct, known), smallest, greatest))
    few = [
        each.name
        for each in profiles
        if each.type == "VARCHAR" and each.distinct <= MOST_VALUES and rows >= _ROWS_FOR_A_VALUE * each.distinct > 0
    ]
    if few:
        lists = ", ".join(f"list_sort(list(DISTINCT {in_duckdb(name)}))" for name in few)
        values = dict(zip(few, connection.execute(f"SELECT {lists} FROM profiled").fetchall()[0], strict=True))
        profiles = [
            ColumnProfile(**{**vars(each), "values": tuple(v for v in values.get(each.name, ()) if v is not None)})
            for each in profiles
        ]
    return int(rows), tuple(profiles)


def _is_single(kind: str) -> bool:
    return not any(mark in kind for mark in ("STRUCT", "MAP", "[", "BLOB"))


def _key(
    connection: duckdb.DuckDBPyConnection,
    columns: Collection[ColumnProfile],
    rows: int,
    candidates: Collection[tuple[str, ...]],
) -> tuple[str, ...]:
    """The first of some sets of columns that has other values in each row."""
    known = {each.name: each for each in columns}
    for names in candidates:
        if not names or any(name not in known for name in names) or rows < 2:
            continue
        alone = known[names[0]]
        # A measure may be unique by chance; a count of values that is far off need not be looked at.
        if len(names) == 1 and (alone.type not in ("VARCHAR", "UUID") or alone.distinct < 0.9 * rows):
            continue
        taken = ", ".join(map(in_duckdb, names))
        sql = f"SELECT 1 FROM profiled GROUP BY {taken} HAVING count(*) > 1 LIMIT 1"
        if not connection.execute(sql).fetchall():
            return tuple(names)
    return ()


def _gaps(connection: duckdb.DuckDBPyConnection, time: str) -> tuple[datetime | None, timedelta | None]:
    column = in_duckdb(time)
    times = f"SELECT DISTINCT {column} AS t FROM profiled WHERE {column} IS NOT NULL"
    gaps = f"SELECT t, epoch_us(t) - epoch_us(lag(t) OVER (ORDER BY t)) AS gap FROM ({times})"
    sql = f"SELECT max(t) AS newest, max(gap) AS gap_us FROM ({gaps})"
    (row,) = fetch_rows(connection, sql)
    return row["newest"], timedelta(microseconds=row["gap_us"]) if row["gap_us"] is not None else None


def _volume(connection: duckdb.DuckDBPyConnection, time: str) -> tuple[timedelta | None, tuple[float, float] | None]:
    """By the shortest intervals that are about alike; the first and the last are not whole."""
    column = in_duckdb(time)
    for per in _INTERVALS:
        us = per // timedelta(microseconds=1)
        sql = (
            f"SELECT count(*) AS filled, max(i) - min(i) + 1 AS spanned, min(n) / median(n) AS low, "
            f"max(n) / median(n) AS high FROM (SELECT i, n FROM (SELECT epoch_us({column}) // {us} AS i, count(*) AS n "
            f"FROM profiled WHERE {column} IS NOT NULL GROUP BY ALL) QUALIFY i > min(i) OVER () AND i < max(i) OVER ())"
        )
        (row,) = fetch_rows(connection, sql)
        steady = row["filled"] >= 4 and row["filled"] == row["spanned"] and row["high"] <= _STEADY * row["low"]
        if steady:
            return per, (float(row["low"]), float(row["high"]))
    return None, None


def row_proposals(found: Profile, personal: Collection[str], *, of_ingest: bool = False) -> Iterator[str]:
    """Lines of code for the expectations on rows, each with what was seen.

    Args:
        found: what the rows are like.
        personal: columns whose values are not shown.
        of_ingest: as rules of an ingest, which set a row aside; those that only warn say so in their own word.
    """
    warns = 'on_failure="warn"' if of_ingest else 'severity="warn"'
    for each in found.columns if found.rows else ():
        share = each.nulls / found.rows
        if not each.nulls:
            yield f"NotNull({as_python(each.name)}),"
        elif share <= _FEW_NULLS:
            yield f"NotNull({as_python(each.name)}, {warns}),  # {each.nulls:,} of {found.rows:,} have none"
        if is_personal(each.name, personal):
            continue
        if each.values:
            shown = ", ".join(map(as_python, each.values)) + ("," if len(each.values) == 1 else "")
            yield f"OneOf({as_python(each.name)}, ({shown})),"
        elif each.type.startswith(_NUMBERS) and _is_finite(each.smallest) and _is_finite(each.greatest):
            low, high = rounded(each.smallest, up=False), rounded(each.greatest, up=True)
            seen = f"  # seen: {each.smallest} to {each.greatest}"
            yield f"Between({as_python(each.name)}, min={low}, max={high}),{seen}"


def table_proposals(found: Profile, *, windowed: bool) -> Iterator[str]:
    """Lines of code for the expectations on the table as a whole."""
    if found.key:
        yield f"Unique({', '.join(map(as_python, found.key))}),"
    if found.gap:
        allowed = _tidy(2 * found.gap)
        what = "windows" if windowed else "events"
        yield f'Fresh("{format_duration(allowed)}"),  # the longest time between two {what}: {_said(found.gap)}'
    if found.per is not None and found.volume is not None:
        low, high = found.volume
        shares = f"min_share={rounded(low / 2, up=False)}, max_share={rounded(high * 2, up=True)}"
        seen = f"  # seen: {low:.2g} to {high:.2g} of the median"
        yield f'Volume("{format_duration(found.per)}", {shares}),{seen}'
    yield "Conservation(),"


def as_python(text: str) -> str:
    """A text as a literal of Python, in double quotes where it needs no other, and in ASCII where a person sees less.

    What a terminal obeys, or would show in another order, stands there as its code.
    """
    written = repr(text)
    if any(visible(each) != each for each in text):
        written = ascii(text)
    return f'"{text}"' if written == f"'{text}'" and '"' not in text else written


def _is_finite(value: Any) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def rounded(value: float | Decimal, *, up: bool) -> float | int:
    """To two digits, away from what was seen; whole numbers below a hundred stay."""
    number = Decimal(str(value))
    if not number:
        return 0
    step = Decimal(1).scaleb(number.adjusted() - 1)
    if number == number.to_integral_value():
        step = max(step, Decimal(1))
    whole = (number / step).to_integral_value("ROUND_CEILING" if up else "ROUND_FLOOR") * step
    return int(whole) if whole == whole.to_integral_value() else float(whole)


def _tidy(span: timedelta) -> timedelta:
    """The next longer span that a person would write."""
    for unit in (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)):
        if span <= 48 * unit or unit == timedelta(days=1):
            return max(math.ceil(span / unit), 1) * unit
    raise AssertionError


def _said(span: timedelta) -> str:
    return str(timedelta(seconds=math.ceil(span.total_seconds())))
