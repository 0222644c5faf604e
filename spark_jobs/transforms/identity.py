"""Events by their identity (`plan/identity.py`): named after their table, and found again in what is said of them."""

from collections.abc import Iterable
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan.columns import INGEST_SEQ, SIDE, SOURCE_TABLE
from spark_jobs.plan.identity import IDENTITY, OF_OLDER, as_in, same_event
from spark_jobs.plan.operators import Side
from spark_jobs.spec.names import in_spark

_THAT = "__that_"


def with_source(events: DataFrame, side: Side, table: str) -> DataFrame:
    """The events of a source table, with `SOURCE_TABLE` where their side has several."""
    return events.withColumn(SOURCE_TABLE, F.lit(table)) if side.several else events


def with_identity(rows: DataFrame, names: Iterable[str] = IDENTITY) -> DataFrame:
    """Rows beside a result, with all of `IDENTITY`, or with other columns: what their table lacks is null."""
    return rows.selectExpr("*", *as_in(rows.columns, [name for name in names if name not in rows.columns]))


def matched(
    events: DataFrame, said: DataFrame, side: Side, table: str, *, how: Literal["left", "left_anti"] = "left"
) -> DataFrame:
    """The events of a source table beside what is said of them, or those of which nothing is.

    Args:
        events: of the table, as `with_source` names them.
        said: rows with `INGEST_SEQ`, `OF_OLDER` and, as far as they are known, `SOURCE_TABLE` and `SIDE` of an event;
            the other columns are added to it.
        side: whose the table is.
        table: its name.
        how: to join them.
    """
    said = with_identity(said, (SOURCE_TABLE, SIDE))
    of_table = F.col(SOURCE_TABLE) == table
    older = F.col(SOURCE_TABLE).isNull() & (F.col(SIDE).isNull() | (F.col(SIDE) == side.name))
    mine = said.where(of_table | older)
    event = [INGEST_SEQ, SOURCE_TABLE, *OF_OLDER]
    if side.several:
        # Two rows that name no table may be alike.
        mine = mine.dropDuplicates(event)
    mine = mine.drop(SIDE).withColumnsRenamed({name: f"{_THAT}{name}" for name in event})
    same = same_event(in_spark, lambda name: in_spark(f"{_THAT}{name}"), several=side.several)
    found = events.join(mine, F.expr(same), how)
    return found.drop(*(f"{_THAT}{name}" for name in event))
