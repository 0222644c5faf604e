"""From which columns of which tables each column of a result is computed."""

from collections.abc import Mapping

from spark_jobs.spec import Ingest, Pipeline
from spark_jobs.spec.steps.base import KnownColumns, Origins, origins_of_table


def known_columns(definitions: Mapping[str, object]) -> KnownColumns:
    """The columns of every bronze table that a registered ingest writes."""
    return {each.sink.table: tuple(each.columns) for each in definitions.values() if isinstance(each, Ingest)}


def lineage(pipeline: Pipeline, known: KnownColumns) -> Origins:
    """Result column -> the columns that it is computed from, such as `bronze.sales.quantity`.

    Only values count, not which rows there are: what a `Where` reads, and the key of a join, is no origin.

    Args:
        pipeline: whose result it is.
        known: columns of the tables that it reads.
    """
    found: dict[str, frozenset[str]] = {}
    for table in pipeline.source_tables:
        for name, origins in origins_of_table(table, known).items():
            found[name] = found.get(name, frozenset()) | origins
    given: Origins = found
    for step in pipeline.steps:
        given = step.origins(given, pipeline.event_time, known)
    return given
