"""What is in the lake: one summary for each table, from logs and histories alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commit_records.history import epoch_ledger
from spark_jobs.lake.errors import MissingTableError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables.files import refuse_missing
from spark_jobs.lake.tables.opening import UNREADABLE, file_statistics, newest, open_table, row_count, table_folders
from spark_jobs.lake.tables.watermarks import published
from spark_jobs.plan import logical as plan
from spark_jobs.spec import Definition, Pipeline


@dataclass(frozen=True)
class TableSummary:
    """A table at a glance; of one that cannot be read only its name and why are known.

    Attributes:
        table: such as `gold.top_products`.
        rows: in the latest version.
        files: in the latest version.
        size_bytes: of these files.
        newest_event: greatest event time (bronze) or window end (results), to the millisecond.
        watermark: published by the pipeline that writes it: up to here its rows are final.
        late_share: late events among those read; None where nothing can be late.
        unreadable: why it cannot be read.
    """

    table: str
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    newest_event: datetime | None = None
    watermark: datetime | None = None
    late_share: float | None = None
    unreadable: str | None = None


def summaries(lake: Lake, definitions: Mapping[str, Definition]) -> tuple[TableSummary, ...]:
    """All tables of the lake, in order of layer and name."""
    writers = {definition.sink.table: definition for definition in definitions.values()}
    try:
        watermarks = published(lake)
    except UNREADABLE:
        watermarks = {}
    found = []
    for name in table_folders(lake):
        try:
            found.append(_summary(lake, name, writers.get(name), watermarks))
        except MissingTableError:
            continue
        except UNREADABLE as error:
            found.append(TableSummary(name, unreadable=first_line(error)))
    return tuple(found)


def _summary(lake: Lake, name: str, writer: Definition | None, watermarks: Mapping[str, datetime]) -> TableSummary:
    table = open_table(lake, name)
    refuse_missing(lake, name, table)
    statistics = file_statistics(table)
    is_result = isinstance(writer, Pipeline)
    column = _event_column(writer) if writer else None
    return TableSummary(
        table=name,
        rows=row_count(table),
        files=statistics.num_rows,
        size_bytes=sum(statistics.column("size_bytes").to_pylist()) if statistics.num_rows else 0,
        newest_event=newest(table, column, beside="_ingest_seq") if column else None,
        watermark=watermarks.get(writer.name) if writer and is_result else None,
        late_share=_late_share(lake, writer) if isinstance(writer, Pipeline) and writer.watermark else None,
    )


def _event_column(writer: Definition) -> str | None:
    """What tells how far a table is: the ends of its windows, or the times of its events."""
    if isinstance(writer, Pipeline):
        return next(reversed(plan.build(writer).result.statistics), None)
    return writer.event_time


def _late_share(lake: Lake, pipeline: Pipeline) -> float | None:
    epoch = current_epoch(lake, pipeline.name)
    if epoch is None:
        return None
    equations = plan.build(pipeline).equations
    totals = epoch_ledger(lake, pipeline.sink.table, pipeline.name, epoch.number, equations, last=1).totals
    return (totals["late"] + totals["partly_late"]) / totals["read"] if totals["read"] else None
