"""How a pipeline reads its bronze tables: as they are, as a stream, and from where on."""

from dataclasses import dataclass
from functools import cached_property, partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger_table import takes_rows_away
from spark_jobs.lake.checkpoints.epochs import Epoch, Starts, current_epoch, fix_starts, refuse_never, starts_of
from spark_jobs.lake.checkpoints.offsets import LogSpan, read_by_batch, versions_read
from spark_jobs.lake.checkpoints.reset import EMPTIED
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import actions_at, info_of, latest_version, unsigned_commits
from spark_jobs.lake.commit_records.stamps import decode
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables import opening as tables
from spark_jobs.lake.tables.held import HeldTable
from spark_jobs.plan.columns import EVENT_COLUMNS, HEARTBEAT, SOURCE_TABLE
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spark.growing import STREAMED, Growth
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spec import Pipeline, Table
from spark_jobs.spec.sources import BATCH_BYTES, GROWING_BATCH_BYTES
from spark_jobs.transforms.events import passed_over, project
from spark_jobs.transforms.identity import with_source
from spark_jobs.transforms.late import Bronze


@dataclass(frozen=True)
class Start:
    """Where a stream begins in a table.

    Attributes:
        version: the first that it reads.
        snapshot: it begins with all that the table holds, at this version or a later one.
    """

    version: int
    snapshot: bool = False


class BronzeReader:
    """The source tables of one pipeline.

    Args:
        spark: the session of its query.
        lake: where.
        pipeline: that reads them.
        plan: of it.
        growth: in which others of the session fill some of the tables; None: they do not.

    Attributes:
        schemas: columns of each table, once `look` has looked.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, pipeline: Pipeline, plan: LogicalPlan, growth: Growth | None = None
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._pipeline = pipeline
        self._plan = plan
        self.schemas: list[StructType] = []
        self._held = [HeldTable(lake, read.name) for read in plan.reads]
        # Where the plan begins in each table, as long as nothing is noted.
        self._planned_starts: dict[str, Start] = {}
        self._growth = growth

    def look(self) -> None:
        """Looks which columns the tables have now.

        Raises:
            MissingTableError: if one does not exist.
        """
        name = self._pipeline.name
        for read in self._plan.reads:
            if not tables.exists(self._lake, read.name):
                raise MissingTableError(
                    f"pipeline `{name}` reads {read.name}, which does not exist in {self._lake.uri}. Nothing "
                    f"was started. Fill it with an ingest first, or run `{command('run', name, '--with-sources')}`."
                )
        self.schemas = [self._bronze(read).schema for read in self._plan.reads]

    def bronze(self, *, untouched: bool = False) -> Bronze:
        """The tables, for rows that are fetched from them by their numbers.

        Args:
            untouched: as in `Bronze`.
        """
        return Bronze(self._spark, self._lake, self._plan.reads, self.schemas, untouched, self._held)

    def events(self, table: Table) -> DataFrame:
        """The events of a table as it is now, in batch.

        Args:
            table: that is read.
        """
        return self._events(self._bronze(table), table)

    def _events(self, bronze: DataFrame, table: Table, *, untouched: bool = False) -> DataFrame:
        side = self._plan.side_of(table.name)
        how = partial(passed_over, event_time=side.event_time) if untouched else project
        events = how(bronze, table, (*EVENT_COLUMNS, HEARTBEAT))
        if not side.several or self.state_knows_no_sources:
            return events
        return with_source(events, side, table.name)

    @property
    def state_knows_no_sources(self) -> bool:
        """Whether an earlier version has begun the checkpoint, whose state has no place for the source of an event.

        The result goes on without. Rows of a processor never name a table: they tell of no such version, and none had
        processors.
        """
        operator = self._plan.operator
        if operator is None or not operator.state.keeps_events or SOURCE_TABLE not in operator.output.content:
            return False
        result, epoch = operator.output.result.name, current_epoch(self._lake, self._pipeline.name)
        if epoch is None or not tables.exists(self._lake, result):
            return False
        if SOURCE_TABLE in {field.name for field in tables.open_table(self._lake, result).schema().fields}:
            return False
        return newest_batch(self._lake, epoch.folder, "offsets") is not None

    def _bronze(self, table: Table) -> DataFrame:
        return self._spark.read.format("delta").load(self._lake.table_path(table.name))

    def stream(self, table: Table, *, untouched: bool = False) -> DataFrame:
        """What is new in a table.

        Args:
            table: that is read.
            untouched: whether nothing is computed of its events but their time.
        """
        most_bytes, growth = table.max_bytes_per_trigger, self._growth
        options = {"skipChangeCommits": "true", "maxBytesPerTrigger": str(most_bytes or BATCH_BYTES)}
        if growth is not None:
            options |= growth.options(table.name, batch_bytes=GROWING_BATCH_BYTES if most_bytes is None else None)
        start = self._start(table)
        if not start.snapshot:
            options["startingVersion"] = str(start.version)
        if table.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(table.max_files_per_trigger)
        stream = self._spark.readStream.format(STREAMED if growth is None else growth.format).options(**options)
        return self._events(stream.load(self._lake.table_path(table.name)), table, untouched=untouched)

    def _start(self, table: Table) -> Start:
        """Where this epoch begins in a source table; a new one at its first commit, or where a reset emptied it.

        Where the log does not go back so far any more, or another program has taken rows away since, with what the
        table holds: its files are in order of arrival.
        """
        if (noted := self.starts.versions.get(table.name)) is not None:
            return Start(noted, table.name in self.starts.snapshots)
        if table.name not in self._planned_starts:
            commits = unsigned_commits(self._lake, table.name)
            emptied = (version for version, actions in commits if info_of(actions).get(EMPTIED) == "reset")
            first = next(emptied, 0)
            later = (actions for version, actions in commits if version > first)
            taken = any(takes_rows_away(actions) and decode(info_of(actions)) is None for actions in later)
            there = not taken and actions_at(self._lake, table.name, first) is not None
            start = Start(first) if there else Start(latest_version(self._lake, table.name), snapshot=True)
            self._planned_starts[table.name] = start
        return self._planned_starts[table.name]

    @cached_property
    def starts(self) -> Starts:
        """Where this epoch begins in its source tables; of an epoch that has not begun yet nothing is known."""
        epoch = current_epoch(self._lake, self._pipeline.name)
        return (starts_of(self._lake, epoch) if epoch is not None else None) or Starts(versions={})

    def fix_versions(self, epoch: Epoch) -> bool:
        """Notes where an epoch begins in the tables; whether that is elsewhere than planned.

        Args:
            epoch: that begins.

        Raises:
            CheckpointError: if a bootstrap has ended it before.
        """
        used = self.starts
        if (noted := starts_of(self._lake, epoch)) is not None:
            refuse_never(epoch, noted)
            # A reset may have come between the plan and now.
            self.starts = noted
            return noted != used
        self.starts = Starts()
        begin = {table.name: self._start(table) for table in self._plan.reads}
        planned = Starts(
            versions={name: start.version for name, start in begin.items()},
            snapshots=tuple(name for name, start in begin.items() if start.snapshot),
        )
        self.starts = fix_starts(self._lake, epoch, planned)
        # Another driver may have been first, with another look at the tables.
        return self.starts != planned

    def versions_read(self, bounds: BatchBounds) -> dict[str, tuple[int, int]]:
        """Table -> the first version that a batch has read of it, and the first that it has not read to its end.

        Args:
            bounds: of the batch.
        """
        return versions_read(self._pipeline, self.starts, bounds.begins, bounds.sources)

    def between(self, bounds: BatchBounds) -> LogSpan:
        """What the tables hold between the batch's offsets, by their own logs.

        Args:
            bounds: of the batch.

        Raises:
            SourceEmptiedError: if a reset of an ingest took back what this pipeline has counted.
        """
        return read_by_batch(self._lake, self._pipeline, self.starts, bounds.begins, bounds.sources)
