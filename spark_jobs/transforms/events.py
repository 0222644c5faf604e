"""What happens to each event before it is grouped."""

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.spec import Select, Table, Where

PASSED = "__passed"


def project(bronze: DataFrame, table: Table, keep: Iterable[str]) -> DataFrame:
    """The columns that a source table gives to a pipeline: its `select`, or all of them; and those to keep."""
    if table.select is None:
        return bronze
    return bronze.select(*(F.expr(sql).alias(name) for name, sql in table.select.items()), *keep)


def with_row_steps(events: DataFrame, steps: Iterable[Where | Select], *, only: Column | None = None) -> DataFrame:
    """Adds the columns of every `Select`, and `__passed`: whether every `Where` is true of the event.

    Nothing is removed here, so that the ledger can count what `Where` removes.

    Args:
        events: to which they are added.
        steps: of the definition.
        only: where nothing removes them afterwards: rows of which this is not true, and those that a `Where` before a
            `Select` removes, have null in its columns; an expression may raise an error on what was to be removed.
    """
    passed: Column = F.lit(True)
    for step in steps:
        if isinstance(step, Select):
            given = {name: F.expr(sql) for name, sql in step.columns.items()}
            if only is not None:
                given = {name: F.when(only & passed, column) for name, column in given.items()}
            events = events.withColumns(given)
        else:
            passed = passed & F.coalesce(F.expr(step.condition), F.lit(False))
            events = events.withColumn(PASSED, passed)
            passed = F.col(PASSED)
    return events if PASSED in events.columns else events.withColumn(PASSED, passed)
