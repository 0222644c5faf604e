"""What happens to each event before it meets a step that remembers events."""

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, DateType, StructField, TimestampNTZType, TimestampType

from spark_jobs.plan.columns import FATE, HEARTBEAT, INGEST_SEQ, VERSION_RANGE
from spark_jobs.spark.columns import column
from spark_jobs.spark.trying import tried
from spark_jobs.spec import Enrich, Select, Table, Where
from spark_jobs.spec.names import column_named, in_spark
from spark_jobs.spec.steps import StepSpec

FILTERED, WITHHELD, UNMATCHED, QUARANTINED, HISTORY = 1, 2, 3, 4, 5
"""What `FATE` may be, as a byte: a text would cost the counting pass a tenth more."""

_FATE_OF_MISSING = {"null": None, "drop": UNMATCHED, "quarantine": QUARANTINED}
_FOUND, _LOOKUP = "__found", "__lookup_"


def _byte(fate: int | None) -> Column:
    return F.lit(fate).cast("tinyint")


def project(bronze: DataFrame, table: Table, keep: Iterable[str]) -> DataFrame:
    """The columns that a source table gives to a pipeline: its `select`, or all of them; and those to keep."""
    if table.select is None:
        return bronze
    return bronze.select(*(F.expr(sql).alias(name) for name, sql in table.select.items()), *keep)


def passed_over(bronze: DataFrame, table: Table, keep: Iterable[str], event_time: str | None) -> DataFrame:
    """As `project`, of events that nothing may fail at: what is computed is null but for their time, where it can be.

    Args:
        bronze: of the source table.
        table: says which columns it gives.
        keep: further columns.
        event_time: the column that moves the watermark; None: none does.
    """
    if table.select is None:
        return bronze
    # Not a literal: Spark would leave out of a key what is the same in all rows, and the state has a place for it.
    never = F.col(HEARTBEAT) & F.col(INGEST_SEQ).isNotNull()
    given = []
    for field in project(bronze, table, ()).schema:
        sql = table.select[field.name]
        value = F.expr(sql)
        if column_named(sql) is None:
            is_time = field.name == event_time
            value = tried(bronze.sparkSession, value) if is_time else F.when(never, value)
            value = _or_else(value, field) if bronze.isStreaming else value
        given.append(value.alias(field.name))
    return bronze.select(*given, *keep)


def _or_else(value: Column, field: StructField) -> Column:
    """A value that is null as of a column: the state of a query takes no null where there never was one."""
    if field.nullable:
        return value
    if isinstance(field.dataType, DateType | TimestampType | TimestampNTZType):
        return F.coalesce(value, F.lit("1970-01-01").cast(field.dataType))
    if isinstance(field.dataType, AtomicType):
        return F.coalesce(value, F.lit("0").cast(field.dataType))
    return value


def with_row_steps(
    rows: DataFrame,
    steps: Iterable[StepSpec],
    *,
    only: Column | None = None,
    removed: int = FILTERED,
    lookups: Mapping[str, DataFrame] | None = None,
) -> DataFrame:
    """Adds the columns of every `Select`, and `FATE`: what removes a row; null where nothing does.

    Nothing is removed here, so that the ledger can count what is.

    Args:
        rows: to which they are added: events, or results.
        steps: of the definition.
        only: where nothing removes them afterwards: rows of which this is not true, and those that a `Where` before a
            `Select` removes, have null in its columns; an expression may raise an error on what was to be removed.
        removed: the fate of what a `Where` removes.
        lookups: table -> its rows, for `Enrich`; each key once, with `VERSION_RANGE` once in each.
    """
    has_fate = False
    for step in steps:
        match step:
            case Select():
                given = {name: F.expr(sql) for name, sql in step.columns.items()}
                if only is not None:
                    passed = F.col(FATE).isNull() if has_fate else F.lit(True)
                    given = {name: F.when(only & passed, value) for name, value in given.items()}
                rows = rows.withColumns(given)
            case Where():
                fate = F.when(~F.coalesce(F.expr(step.condition), F.lit(False)), _byte(removed))
                rows = rows.withColumn(FATE, F.coalesce(F.col(FATE), fate) if has_fate else fate)
                has_fate = True
            case Enrich():
                rows = _enriched(rows, step, (lookups or {})[step.table])
                if (fate_of_missing := _FATE_OF_MISSING[step.missing]) is not None:
                    fate = F.when(F.col(_FOUND).isNull(), _byte(fate_of_missing))
                    rows = rows.withColumn(FATE, F.coalesce(F.col(FATE), fate) if has_fate else fate)
                    has_fate = True
                rows = rows.drop(_FOUND)
    return rows.drop(VERSION_RANGE) if has_fate else rows.drop(VERSION_RANGE).withColumn(FATE, _byte(None))


def _enriched(rows: DataFrame, step: Enrich, table: DataFrame) -> DataFrame:
    """The rows with the columns of an `Enrich`, and `_FOUND`: null where the table does not have the key."""
    on = (*step.on, *((VERSION_RANGE,) if VERSION_RANGE in table.columns else ()))
    keys = [column(name).alias(f"{_LOOKUP}{name}") for name in on]
    new = [column(theirs).alias(name) for name, theirs in step.columns.items()]
    found = table.select(*keys, *new, F.lit(True).alias(_FOUND))
    equal = " AND ".join(f"{in_spark(name)} = {in_spark(_LOOKUP + name)}" for name in on)
    joined = rows.join(F.broadcast(found), F.expr(equal), "left")
    return joined.drop(*(f"{_LOOKUP}{name}" for name in on))
