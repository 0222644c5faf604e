"""A pipeline on a lake of its own, batch by batch."""

import tempfile
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
from deltalake import write_deltalake

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commit_records.history import ledger_rows
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.plan import logical
from spark_jobs.plan.columns import EVENT_ID, HEARTBEAT, INGEST_SEQ, INGEST_TIME, PLACE
from spark_jobs.spec import Pipeline
from spark_jobs.spec.errors import DefinitionError

_FAR = datetime(2100, 1, 1, tzinfo=UTC)
"""When events arrive, unless a test says: no time of theirs is ahead of it."""
_MOST_ROWS = 10_000
_SESSIONS: list[Any] = []
"""The one session of all tests of a process."""


class PipelineTest:
    """Runs a pipeline on a lake in a folder of its own, as a driver would: one batch for each call of `events`.

    The first one of a process starts Spark, which takes some seconds; all others share its session.

    Args:
        pipeline: to test.
        columns: source table -> its columns, with their SQL types.
    """

    def __init__(self, pipeline: Pipeline, columns: Mapping[str, Mapping[str, str]]) -> None:
        planned = logical.build(pipeline)
        self.pipeline, self._sides = _one_file_a_batch(pipeline), planned.sides
        missing = sorted({each.name for each in planned.reads} - columns.keys())
        if planned.operator is None or missing:
            raise DefinitionError(f"columns: expected those of each source table, got none of {missing}")
        self._output = planned.operator.output
        self._folder = tempfile.TemporaryDirectory(prefix="tidemark-test-")
        self.lake = Lake(self._folder.name).ensure_exists()
        self._spark = _session(self.lake)
        self._schemas = {name: self._schema(types) for name, types in columns.items()}
        self._next = dict.fromkeys(columns, 0)

    def events(self, *events: Mapping[str, Any], table: str | None = None) -> "PipelineTest":
        """Has events arrive, which are read as one batch.

        Args:
            events: column -> value; one that is left out is null.
            table: which they arrive in; None: the pipeline's first source table.
        """
        name = table or next(iter(self._next))
        rows = []
        for event in events:
            if unknown := sorted(event.keys() - set(self._schemas[name].names)):
                raise DefinitionError(f"events: {unknown} are no columns of {name}")
            seq = self._next[name]
            own = {EVENT_ID: f"e{seq}", INGEST_SEQ: seq, INGEST_TIME: _FAR, HEARTBEAT: False}
            rows.append({**own, **event})
            self._next[name] += 1
        self._append(name, rows)
        return self

    def watermark(self, to: datetime) -> "PipelineTest":
        """Moves the watermark to an instant, as heartbeats would: what comes next is judged by it.

        Args:
            to: with a zone.
        """
        # An event is judged by the watermark of the batch before its own, which knows the batches before that.
        for _ in range(2):
            for side in self._sides:
                at = to + (side.delay or timedelta(0))
                for table in side.tables:
                    time = side.time_column(table)
                    if time is None:
                        raise DefinitionError(f"watermark: the event time of {table.name} is computed: send events")
                    self._append(table.name, [{time: at, HEARTBEAT: True}])
        return self

    def run(self) -> "PipelineTest":
        """Reads all that has arrived."""
        from spark_jobs.engine.pipeline import PipelineQuery

        query = PipelineQuery(self._spark, self.lake, self.pipeline)
        handle = query.start(until_caught_up=True)
        try:
            handle.awaitTermination()
        except Exception:
            if query.error is not None:
                raise query.error from None
            raise
        return self

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The result, without the columns that Tidemark adds."""
        return self._rows(self._output.result.name)

    @property
    def late(self) -> list[dict[str, Any]]:
        """The events that came too late."""
        return self._rows(self._output.late.name)

    @property
    def ledger(self) -> dict[str, int]:
        """The sums of all batches, such as `read`, `on_time`, `late`."""
        entries = ledger_rows(self.lake, self.pipeline.sink.table, self.pipeline.name, self._epoch())
        sums: Counter[str] = Counter()
        for _, entry in entries:
            sums.update(entry.terms)
        return dict(sums)

    @property
    def state(self) -> dict[str, list[dict[str, Any]]]:
        """What the newest batch has left in state: side, or what of a keyed step's state -> rows."""
        from spark_jobs.operations.state.execute import read_state
        from spark_jobs.operations.state.plan import plan_state

        asked = plan_state(self.lake, self.pipeline.name, keys=(), open_windows=False, at=None, limit=_MOST_ROWS)
        return {
            each.side: [dict(zip(each.columns, row, strict=True)) for row in each.rows]
            for each in read_state(self._spark, self.lake, asked)
        }

    def assert_balanced(self) -> None:
        """Fails unless each equation of the ledger holds.

        Raises:
            AssertionError: with those that do not.
        """
        epoch = self._epoch()
        entries = ledger_rows(self.lake, self.pipeline.sink.table, self.pipeline.name, epoch)
        wrong = [said for holds, said in audit.checks(self.lake, self.pipeline, epoch, entries) if not holds]
        if wrong:
            raise AssertionError("\n".join(wrong))

    def _epoch(self) -> int:
        found = current_epoch(self.lake, self.pipeline.name)
        if found is None:
            raise MissingTableError(f"pipeline `{self.pipeline.name}` has not run yet: call run() first")
        return found.number

    def _rows(self, table: str) -> list[dict[str, Any]]:
        if not exists(self.lake, table):
            return []
        found = open_table(self.lake, table).to_pyarrow_table().to_pylist()
        added = ("_", "final_after", "revision", "revised_at")
        return [{name: value for name, value in row.items() if not name.startswith(added)} for row in found]

    def _schema(self, types: Mapping[str, str]) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        own = (
            f"{EVENT_ID} STRING, {INGEST_SEQ} BIGINT, {INGEST_TIME} TIMESTAMP, "
            f"{PLACE} STRUCT<name: STRING, partition: INT, position: BIGINT>, {HEARTBEAT} BOOLEAN"
        )
        columns = ", ".join(f"`{name}` {sql_type}" for name, sql_type in types.items())
        return to_arrow_schema(cast("StructType", StructType.fromDDL(f"{columns}, {own}")), timezone="UTC")

    def _append(self, table: str, rows: list[dict[str, Any]]) -> None:
        found = pa.Table.from_pylist(rows, schema=self._schemas[table])
        write_deltalake(self.lake.table_uri(table), found, mode="append")


def _session(lake: Lake) -> Any:
    """The session of this process; it lives as long as that."""
    from spark_jobs.spark.session import build_session

    if not _SESSIONS:
        settings = Settings(master="local[2]", shuffle_partitions=1)
        _SESSIONS.append(build_session(lake, app_name="tidemark-test", settings=settings))
    return _SESSIONS[0]


def _one_file_a_batch(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, reading one commit of each table in a batch: so a test decides what a batch is."""
    return Pipeline.model_validate(_limited(pipeline.model_dump()))


def _limited(value: Any) -> Any:
    if isinstance(value, Mapping):
        found = {name: _limited(each) for name, each in value.items()}
        return {**found, "max_files_per_trigger": 1} if "max_files_per_trigger" in value else found
    return [_limited(each) for each in value] if isinstance(value, list | tuple) else value
