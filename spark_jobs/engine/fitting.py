"""Refuses a pipeline that does not fit the tables that it reads, before anything is started or written."""

from collections.abc import Sequence
from itertools import chain

from pyspark.sql import DataFrame

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.engine.lookups import refuse_keys_of_other_types
from spark_jobs.engine.reading import BronzeReader
from spark_jobs.plan.columns import given_to_events
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spec import METADATA_COLUMNS, Pipeline
from spark_jobs.transforms.branches import Branches


def refuse_names(pipeline: Pipeline, plan: LogicalPlan, reader: BronzeReader) -> None:
    """Refuses names of columns that would mean something else than they say.

    Args:
        pipeline: that reads.
        plan: of it.
        reader: of its tables.

    Raises:
        SchemaMismatchError: if there are such.
    """
    _refuse_reserved_names(pipeline, plan, reader)
    _refuse_names_that_exist(pipeline, plan, reader)
    _refuse_a_user_that_is_no_column(pipeline, plan, reader)


def refuse_sides(pipeline: Pipeline, plan: LogicalPlan, branches: Branches, events: Sequence[DataFrame]) -> None:
    """Refuses the two sides of a join: a name that both have would mean one of two columns.

    Args:
        pipeline: that joins.
        plan: of it.
        branches: of it.
        events: of each table that it reads.

    Raises:
        SchemaMismatchError: if they do not fit.
    """
    if len(plan.sides) == 1:
        return
    left, right = events[0].schema, events[-1].schema
    shared = (set(left.names) & set(right.names)) - {*METADATA_COLUMNS}
    keys = branches.operator.state.event_keys
    doubled = sorted(shared - set(keys))
    if doubled:
        raise SchemaMismatchError(
            f"pipeline `{pipeline.name}`: both sides of the Join have {doubled}. Nothing was started or written. "
            f"Rename those of {plan.reads[-1].name} with `select`."
        )
    for key in shared & set(keys):
        types = left[key].dataType.simpleString(), right[key].dataType.simpleString()
        if types[0] != types[1]:
            raise SchemaMismatchError(
                f"pipeline `{pipeline.name}`: the Join compares `{key}`, a {types[0]}, with a {types[1]}. Nothing was "
                "started or written. Cast one of them with `select`."
            )


def refuse_lookups(pipeline: Pipeline, branches: Branches, events: Sequence[DataFrame]) -> None:
    """Refuses tables in which columns are looked up by keys of another type.

    Args:
        pipeline: that looks them up.
        branches: of it.
        events: of each table that it reads.

    Raises:
        SchemaMismatchError: if one has such keys.
    """
    for step, rows, table in branches.looked_up(events):
        refuse_keys_of_other_types(pipeline.name, step, rows.schema, table.schema)


def _refuse_reserved_names(pipeline: Pipeline, plan: LogicalPlan, reader: BronzeReader) -> None:
    """Columns of bronze that would take the place of those by which events are told apart."""
    for table, schema in zip(plan.reads, reader.schemas, strict=True):
        if table.select is None and (reserved := given_to_events(schema.names)):
            raise SchemaMismatchError(
                f"pipeline `{pipeline.name}`: {table.name} has columns {reserved}, names that Tidemark gives to "
                "columns of its own. Nothing was started or written. Name the columns that are read with `select` "
                "on the source, these under other names."
            )


def _refuse_names_that_exist(pipeline: Pipeline, plan: LogicalPlan, reader: BronzeReader) -> None:
    """A `Select` adds columns; one that replaced a column of bronze would make late rows say something else."""
    given = {name.casefold() for name in reader.events(plan.reads[0]).columns}
    added = [name for step in pipeline.row_steps for name in step.adds()]
    doubled = sorted(name for name in added if name.casefold() in given)
    if doubled:
        raise SchemaMismatchError(
            f"pipeline `{pipeline.name}`: Select adds {doubled}, which {plan.reads[0].name} has already. "
            "Nothing was started or written. Give them other names."
        )


def _refuse_a_user_that_is_no_column(pipeline: Pipeline, plan: LogicalPlan, reader: BronzeReader) -> None:
    """Where no column is called `user`, Spark takes the name for who runs the stream."""
    added = {name for step in pipeline.row_steps for name in step.adds()}
    own = {*chain.from_iterable(read for step in pipeline.steps for _, read in step.reads())}
    for table, schema in zip(plan.reads, reader.schemas, strict=True):
        if table.select is None:
            given, read = {*schema.names, *added}, own
        else:
            given, read = {*schema.names}, {*table.reads()}
        if "user" in {name.casefold() for name in read} - {name.casefold() for name in given}:
            raise SchemaMismatchError(
                f"pipeline `{pipeline.name}`: expected a column `user` in {table.name}, found {sorted(schema.names)}. "
                "Nothing was started or written. Name the column that is meant."
            )
