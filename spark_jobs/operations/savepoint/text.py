"""Savepoints as a person reads them."""

from collections.abc import Iterator
from datetime import UTC, datetime

from spark_jobs.lake.checkpoints.savepoints import Savepoint
from spark_jobs.lake.commands import command
from spark_jobs.operations.words import counted, size_text


def taken_text(savepoint: Savepoint) -> str:
    """What was saved."""
    tables = ", ".join(f"{name} at version {table.version}" for name, table in savepoint.tables.items())
    return (
        f"{savepoint.pipeline}: savepoint `{savepoint.name}` of {savepoint.subject}"
        f"{watermark_text(savepoint)}: {len(savepoint.files):,} files, {size_text(savepoint.size_bytes)}; {tables}.\n"
        f"Go back to it: {command('restore', savepoint.pipeline, '--to', savepoint.name)}"
    )


def watermark_text(savepoint: Savepoint) -> str:
    """The watermark after the batch, as half a sentence."""
    if not savepoint.watermark_ms:
        return ""
    return f", watermark {datetime.fromtimestamp(savepoint.watermark_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def description_lines(savepoint: Savepoint) -> Iterator[str]:
    """All that there is to say of a savepoint, a line for each thing."""
    yield f"{savepoint.pipeline}, savepoint {savepoint.name}, {savepoint.kind}"
    yield f"taken        {savepoint.taken_at:%Y-%m-%d %H:%M:%S} UTC by {savepoint.by}"
    if savepoint.note:
        yield f"note         {savepoint.note}"
    yield f"batch        {savepoint.batch} of epoch {savepoint.epoch}{watermark_text(savepoint)}"
    for offset in savepoint.offsets:
        yield f"has read     {offset}"
    for name, table in savepoint.tables.items():
        rows = "" if table.rows is None else f", {counted(table.rows, 'row')}"
        yield f"writes       {name} at version {table.version}{rows}"
    for name, table in savepoint.sources.items():
        yield f"reads        {name} from version {table.version} on"
    for name, version in savepoint.lookups.items():
        yield f"looks up in  {name} at version {version}"
    yield f"files        {len(savepoint.files):,}, {size_text(savepoint.size_bytes)}, in {savepoint.folder}"
