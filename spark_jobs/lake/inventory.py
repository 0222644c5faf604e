"""What is in the lake: one summary for each table, from logs and histories alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from spark_jobs.lake import ledger
from spark_jobs.lake.checkpoints import current_epoch
from spark_jobs.lake.history import ledger_rows
from spark_jobs.lake.location import Lake
from spark_jobs.lake.tables import file_statistics, newest, open_table, row_count, table_names
from spark_jobs.lake.watermarks import published
from spark_jobs.spec import Definition, Pipeline


@dataclass(frozen=True)
class TableSummary:
    """A table at a glance.

    Attributes:
        table: such as `gold.top_products`.
        rows: in the latest version.
        files: in the latest version.
        size_bytes: of these files.
        newest_event: greatest event time (bronze) or window end (results), to the millisecond.
        watermark: published by the pipeline that writes it: up to here its rows are final.
        late_share: late events among those read; None where nothing can be late.
    """

    table: str
    rows: int
    files: int
    size_bytes: int
    newest_event: datetime | None
    watermark: datetime | None
    late_share: float | None


def summaries(lake: Lake, definitions: Mapping[str, Definition]) -> tuple[TableSummary, ...]:
    """All tables of the lake, in order of layer and name."""
    writers = {definition.sink.table: definition for definition in definitions.values()}
    watermarks = published(lake)
    found = []
    for name in table_names(lake):
        table = open_table(lake, name)
        statistics = file_statistics(table)
        writer = writers.get(name)
        is_result = isinstance(writer, Pipeline)
        column = "window_end" if is_result else writer.event_time if writer and writer.event_time else ""
        found.append(
            TableSummary(
                table=name,
                rows=row_count(table),
                files=statistics.num_rows,
                size_bytes=sum(statistics.column("size_bytes").to_pylist()) if statistics.num_rows else 0,
                newest_event=newest(table, column, beside="_ingest_seq") if column else None,
                watermark=watermarks.get(writer.name) if writer and is_result else None,
                late_share=_late_share(lake, writer) if isinstance(writer, Pipeline) and writer.watermark else None,
            )
        )
    return tuple(found)


def _late_share(lake: Lake, pipeline: Pipeline) -> float | None:
    epoch = current_epoch(lake, pipeline.name)
    if epoch is None:
        return None
    rows = ledger_rows(lake, pipeline.sink.table, pipeline.name, epoch.number)
    totals = ledger.Totals.of(row for _, row in rows)
    return (totals.late + totals.partly_late) / totals.read if totals.read else None
