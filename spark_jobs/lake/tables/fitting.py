"""Whether pipelines fit the tables of a lake; known without a JVM."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from deltalake import DeltaTable

from spark_jobs.lake.checkpoints.ran import as_it_began
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import newest_numbered
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.opening import UNREADABLE, exists, open_table
from spark_jobs.plan.fitting import Types, misfits
from spark_jobs.plan.logical import build
from spark_jobs.spec import METADATA_COLUMNS, Definition, DefinitionError, Ingest, Pipeline
from spark_jobs.spec.durations import format_duration


def refuse_misfit(lake: Lake, pipeline: Pipeline, beside: Iterable[Definition] = ()) -> None:
    """Refuses a pipeline that does not fit the tables which it reads.

    Args:
        lake: where they are.
        pipeline: that reads them.
        beside: what runs with it, and may make tables that are not there yet, or add columns.

    Raises:
        MissingTableError: if there is no table that it reads, and nothing beside makes it.
        DefinitionError: if it reads a column that is not there, or compares values that cannot be.
    """
    written = {each.sink.table: each for each in beside}
    for table in pipeline.tables:
        if table.name not in written and not exists(lake, table.name):
            raise MissingTableError(
                f"pipeline `{pipeline.name}` reads {table.name}, which does not exist in {lake.uri}. Nothing was "
                f"started. Fill it with an ingest first, or run `{command('run', pipeline.name, '--with-sources')}`."
            )
    names = (*(table.name for table in pipeline.tables), *pipeline.lookups)
    known = {name: types for name in names if (types := _types(lake, name, written)) is not None}
    writers = {table.name: written.get(table.name) or _last_writer(lake, table.name) for table in pipeline.tables}
    for wrong in chain(misfits(pipeline, known), _further_ahead(pipeline, writers)):
        raise DefinitionError(
            f"pipeline `{pipeline.name}` does not fit its source: {wrong}. Nothing was started or written."
        )


def _last_writer(lake: Lake, table: str) -> Definition | None:
    """The ingest that has filled a table, as it began; None: there is none, or nobody can say."""
    try:
        newest = newest_numbered(lake, table)
        return as_it_began(lake, newest.pipeline) if newest is not None else None
    except (*UNREADABLE, CheckpointError):
        return None  # told where it is read


def _further_ahead(pipeline: Pipeline, writers: Mapping[str, Definition | None]) -> Iterator[str]:
    """What is wrong with a pipeline for which events have no time that an ingest lets pass: they would be timeless."""
    for side in build(pipeline).sides:
        for table in side.tables:
            writer = writers[table.name]
            if not isinstance(writer, Ingest) or writer.event_time != side.time_column(table):
                continue
            if writer.max_future > pipeline.max_future:
                limit = format_duration(writer.max_future)
                yield (
                    f"`{writer.name}` lets times of {table.name} be {limit} ahead of their arrival, and the pipeline "
                    f"takes {format_duration(pipeline.max_future)}; the events between would be in no window: write "
                    f"max_future={limit!r} into the pipeline"
                )


def _types(lake: Lake, name: str, written: Mapping[str, Definition]) -> Types | None:
    """The columns of a table as the run will find them; None: they are not known before it."""
    writer = written.get(name)
    if isinstance(writer, Pipeline):
        return None
    declared = {**dict.fromkeys(METADATA_COLUMNS, ""), **writer.payload} if isinstance(writer, Ingest) else {}
    if not exists(lake, name):
        return declared or None
    try:
        return {**declared, **_of_delta(open_table(lake, name))}
    except UNREADABLE:
        return None  # told where it is read


def _of_delta(table: DeltaTable) -> Types:
    fields = json.loads(table.schema().to_json())["fields"]
    return {each["name"]: each["type"] if isinstance(each["type"], str) else each["type"]["type"] for each in fields}
