"""Which event a row is of: the source table that the event was read from, and its number there.

An id is the source's own and may come twice. Numbers count up in each table, so that two tables have the same ones.
Only table and number together tell events apart. Everything that finds an event again goes by them: in the tables
beside a result, in the result, in the source (docs/decisions/0027). In a `Join` the table tells the side as well: no
table is read twice.

Rows that earlier versions wrote name no table. Where their side has one table alone, it is that one; where it has
several, it is the one whose event of this number also has their id and arrived when they say.
"""

from collections.abc import Callable, Collection, Iterable

from spark_jobs.plan.columns import EVENT_ID, INGEST_SEQ, INGEST_TIME, SIDE, SOURCE_TABLE

MAY_BE_NULL = (SOURCE_TABLE, SIDE, EVENT_ID)

IDENTITY = ("_epoch", "_batch_id", INGEST_SEQ, *MAY_BE_NULL)
"""Columns that tell apart the rows beside a result, as far as a table has them; nulls are equal.

The source table and the number do. The side and the id are for rows that name no table.
"""

OF_OLDER = (EVENT_ID, INGEST_TIME)
"""What tells, beside its number, of which table an event is whose row names none."""


def event_columns(*, several: bool, prefix: str = "") -> tuple[str, ...]:
    """The columns of a result row that no two events of one side share.

    Args:
        several: whether the side has several source tables.
        prefix: of the names of the side's columns.
    """
    names = (EVENT_ID, INGEST_SEQ, *((INGEST_TIME, SOURCE_TABLE) if several else ()))
    return tuple(f"{prefix}{name}" for name in names)


def same_event(one: Callable[[str], str], other: Callable[[str], str], *, several: bool) -> str:
    """Whether two rows of one side are of the same event; SQL of Spark as well as of DuckDB.

    Args:
        one: the name that a column has in the one row; in SQL.
        other: likewise, in the other.
        several: whether the side has several source tables.
    """
    same = f"{one(INGEST_SEQ)} = {other(INGEST_SEQ)}"
    if not several:
        return same
    older = " AND ".join(f"{one(name)} IS NOT DISTINCT FROM {other(name)}" for name in OF_OLDER)
    return f"{same} AND coalesce({one(SOURCE_TABLE)} = {other(SOURCE_TABLE)}, {older})"


def as_in(columns: Collection[str], names: Iterable[str]) -> list[str]:
    """Columns of a table as SQL of Spark and of DuckDB; texts that a table of an earlier version lacks are null.

    Args:
        columns: that the table has.
        names: of those that are asked for.
    """
    return [name if name in columns else f"CAST(NULL AS STRING) AS {name}" for name in names]
