"""Lakes for tests: bronze tables written batch by batch, pipelines run on them, results as plain rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from spark_jobs.engine.driver import Driver
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.pipelines import registry
from spark_jobs.spec import AsOf, Definition, Join, Pipeline

_SOURCE = pa.struct([("name", pa.string()), ("partition", pa.int32()), ("position", pa.int64())])
METADATA = (
    ("_event_id", pa.string()),
    ("_ingest_seq", pa.int64()),
    ("_ingest_time", pa.timestamp("us", tz="UTC")),
    ("_source", _SOURCE),
    ("_heartbeat", pa.bool_()),
)
TIMESTAMP = pa.timestamp("us", tz="UTC")


def at(ms: int) -> datetime:
    """An instant by its milliseconds since 1970 (datetime.fromtimestamp refuses negative ones on some systems)."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def ms(instant: datetime) -> int:
    """Milliseconds since 1970."""
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@dataclass
class Bronze:
    """A bronze table that a test fills itself, one commit and one file for each batch.

    Attributes:
        lake: where.
        table: such as `bronze.sales`.
        columns: payload columns with their Arrow types.
        event_time: which of them is the event time.
        arrived_ms: when its batches arrive; 2100, so that no time of a test is ahead of it.
    """

    lake: Lake
    table: str
    columns: Mapping[str, pa.DataType]
    event_time: str
    _next: int = field(default=0)
    arrived_ms: int = 4_102_444_800_000

    def append(self, rows: Sequence[Mapping[str, Any]], *, ids: Sequence[str] | None = None) -> None:
        """Appends a batch of events; their ids are `e<sequence number>` unless given."""
        values = []
        for index, row in enumerate(rows):
            seq = self._next + index
            values.append(
                {
                    **row,
                    "_event_id": ids[index] if ids else f"e{seq}",
                    "_ingest_seq": seq,
                    "_ingest_time": at(self.arrived_ms),
                    "_source": {"name": "test", "partition": None, "position": seq},
                    "_heartbeat": False,
                }
            )
        self._next += len(rows)
        self._write(values)

    def heartbeat(self, at_ms: int) -> None:
        """Appends a heartbeat with the given event time."""
        self._write([{self.event_time: at(at_ms), "_event_id": f"h{at_ms}", "_heartbeat": True}])

    def _write(self, values: list[dict[str, Any]]) -> None:
        schema = pa.schema([*self.columns.items(), *METADATA])
        table = pa.Table.from_pylist(values, schema=schema)
        write_deltalake(
            self.lake.table_uri(self.table), table, mode="append", storage_options=self.lake.storage_options
        )


def a_file(folder: Path, definition: Definition) -> str:
    """A pipeline file with this definition."""
    path = folder / "definition.py"
    text = (
        f"from spark_jobs.spec import definition_from_json\n\nmine = definition_from_json({definition.to_json()!r})\n"
    )
    path.write_text(text)
    return str(path)


def one_file_a_batch(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, reading one bronze file a batch: so a test decides the cut of the batches."""
    one = {"max_files_per_trigger": 1}
    sources = [table.model_copy(update=one) for table in pipeline.source_tables]
    union = {"tables": tuple(sources)}
    source = sources[0] if len(sources) == 1 else pipeline.source.model_copy(update=union)
    steps = tuple(
        step.model_copy(update={"other": step.other.model_copy(update=one)}) if isinstance(step, AsOf | Join) else step
        for step in pipeline.steps
    )
    return pipeline.model_copy(update={"source": source, "steps": steps})


def run(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, *, failpoint: Callable[[str, int], None] | None = None
) -> PipelineQuery:
    """Runs a pipeline until it has read what is there; raises what stopped it."""
    query = PipelineQuery(spark, lake, pipeline, **({"failpoint": failpoint} if failpoint else {}))
    handle = query.start(until_caught_up=True)
    try:
        handle.awaitTermination()
    except Exception:
        if query.error is not None:
            raise query.error from None
        raise
    return query


def run_all(spark: SparkSession, lake: Lake, definitions: Sequence[Definition], *, close: bool) -> None:
    """What `tidemark run … --until-caught-up [--close]` does, without a process of its own."""
    readers = [each for each in registry().values() if isinstance(each, Pipeline)]
    outcomes = Driver(spark, lake, definitions, readers=readers).run_until_caught_up(close=close)
    assert {name: outcome.error for name, outcome in outcomes.items()} == {each.name: None for each in definitions}


def rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    return open_table(lake, table).to_pyarrow_table().to_pylist()


def ledger(lake: Lake, pipeline: Definition) -> list[tuple[int, LedgerEntry]]:
    """The ledger of the current epoch."""
    epoch = current_epoch(lake, pipeline.name)
    assert epoch is not None
    return ledger_rows(lake, pipeline.sink.table, pipeline.name, epoch.number)


def _checks(lake: Lake, pipeline: Pipeline) -> list[tuple[bool, str]]:
    epoch = current_epoch(lake, pipeline.name)
    assert epoch is not None
    return audit.checks(lake, pipeline, epoch.number, ledger(lake, pipeline))


def told(lake: Lake, pipeline: Pipeline) -> list[str]:
    """What `tidemark ledger` says of each equation."""
    return [text for _, text in _checks(lake, pipeline)]


def assert_balanced(lake: Lake, pipeline: Pipeline) -> None:
    """Every equation of the ledger holds."""
    assert [text for holds, text in _checks(lake, pipeline) if not holds] == []


def comparable(found: Iterable[Mapping[str, Any]], *, without: Iterable[str] = ()) -> list[tuple[Any, ...]]:
    """Rows in an order of their own, less what a repeated run may change."""
    hidden = {"revised_at", "_ingest_time", "_other_ingest_time", *without}
    return sorted(tuple(repr(value) for name, value in sorted(row.items()) if name not in hidden) for row in found)
