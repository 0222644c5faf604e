"""The tables that a pipeline writes, and their columns."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from spark_jobs.commits.tables import SchemaMismatchError, create_table
from spark_jobs.lake import Lake
from spark_jobs.lake.commit_records.stamps import Role
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.plan.meanings import column_comments
from spark_jobs.spec import Pipeline
from spark_jobs.transforms.aggregation import top_n
from spark_jobs.transforms.branches import Branches
from spark_jobs.transforms.late import late_schema, quarantine_schema
from spark_jobs.transforms.results import with_revision


def schemas_of(
    pipeline: Pipeline, plan: LogicalPlan, branches: Branches, events: Sequence[DataFrame]
) -> dict[Role, StructType]:
    """The columns of each table that a pipeline writes: the result, and beside it what the definition needs.

    Args:
        pipeline: that writes.
        plan: of it.
        branches: of it.
        events: of each table that it reads.

    Raises:
        SchemaMismatchError: if columns that are read take the names of others beside them.
    """
    schemas: dict[Role, StructType] = {"result": _result_schema(pipeline, plan, branches, events)}
    if plan.table("late") is not None:
        schemas["late"] = _late_schema(pipeline, plan, branches, events)
    if plan.table("quarantine") is not None:
        schemas["quarantine"] = _quarantine_schema(pipeline, plan, branches, events)
    if plan.table("groups") is not None:
        # All that is in the result but the rank, which only a choice of groups has.
        schemas["groups"] = StructType([field for field in schemas["result"] if field.name != "rank"])
    return schemas


def create_tables(lake: Lake, plan: LogicalPlan, schemas: Mapping[Role, StructType]) -> None:
    """Makes the tables of a pipeline unless they exist, the result last.

    Args:
        lake: where.
        plan: of the pipeline.
        schemas: columns by role.

    Raises:
        SchemaMismatchError: if one has other columns.
    """
    for table in reversed(plan.tables):
        comments = column_comments(plan.definition, table.role)
        create_table(lake, table.name, schemas[table.role], statistics=table.statistics, comments=comments)


def _result_schema(
    pipeline: Pipeline, plan: LogicalPlan, branches: Branches, events: Sequence[DataFrame]
) -> StructType:
    results = branches.transform.written(branches.results(events))
    if pipeline.top_n:
        results = top_n(results, pipeline.top_n, branches.operator.state.event_keys)
    return with_revision(results, plan, 0).schema


def _quarantine_schema(
    pipeline: Pipeline, plan: LogicalPlan, branches: Branches, events: Sequence[DataFrame]
) -> StructType:
    schema = quarantine_schema(events, plan)
    if doubled := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise SchemaMismatchError(
            f"pipeline `{pipeline.name}` reads columns {doubled}, and "
            f"{branches.operator.output.quarantine.name} has columns of these names for why events are there. "
            "Nothing was started or written. Give the columns other names with `select` on the source."
        )
    return schema


def _late_schema(pipeline: Pipeline, plan: LogicalPlan, branches: Branches, events: Sequence[DataFrame]) -> StructType:
    schema = late_schema(events, plan, branches.lateness)
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise SchemaMismatchError(
            f"pipeline `{pipeline.name}` reads columns {doubled}, and "
            f"{branches.operator.output.late.name} has columns of these names for what the events missed. "
            "Nothing was started or written. Give the columns other names with `select` on the source."
        )
    return schema
