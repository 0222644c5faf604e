"""Ingest: from files or Kafka to bronze and its quarantine."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from spark_jobs.commits.changes import Append
from spark_jobs.commits.tables import create_table
from spark_jobs.commits.writer import OvertakenError
from spark_jobs.engine import heartbeats
from spark_jobs.engine.census import BLOCK, Census, blocks_of, first_rows
from spark_jobs.engine.files import (
    FileBatch,
    file_names,
    link_that_comes_back,
    links_to_others,
    planned_files,
    shape_of_parquet,
)
from spark_jobs.engine.heartbeats import Front, Heartbeats
from spark_jobs.engine.kafka import messages
from spark_jobs.engine.query import Query, Reached, unobserved
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import WARNING, LedgerEntry
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import Starts, fix_starts, starts_of
from spark_jobs.lake.checkpoints.halts import Choice, Halt, HaltedError
from spark_jobs.lake.commit_records.history import newest_numbered
from spark_jobs.lake.commit_records.replayed import Replayed
from spark_jobs.lake.errors import LedgerError, TidemarkError
from spark_jobs.lake.inputs.kafka import Topics
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables import opening as tables
from spark_jobs.plan import logical as plan
from spark_jobs.plan.meanings import column_comments
from spark_jobs.plan.quarantine import header_told
from spark_jobs.plan.tables import beside
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spark.frames import size_of
from spark_jobs.spark.progress import BatchBounds
from spark_jobs.spark.schemas import schema_ddl, schema_of
from spark_jobs.spark.session import lenient_session
from spark_jobs.spec import Files, Ingest, Kafka, Pipeline, RowRule
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.spec.names import in_spark
from spark_jobs.spec.personal import MASK
from spark_jobs.transforms.content import digest_sql
from spark_jobs.transforms.csv_columns import NAME, NO_WIDER, Wider, wider_files
from spark_jobs.transforms.csv_lines import lines_inside_quotes, mark_rows, opens_quote
from spark_jobs.transforms.rows import (
    DETAIL,
    HEADER,
    RAW,
    REASON,
    REPEATED_HEADER,
    UNREADABLE,
    breaches,
    broken,
    expected_header,
    header_of,
    is_header_line,
    judge,
    parse,
    part_of_value_set_aside,
    rules_with,
    skipped,
    typed,
    values_read,
)
from spark_jobs.transforms.shape import Shape, shape_counts, shape_of, with_unknown_fields

METADATA = (
    "_event_id STRING, _ingest_seq BIGINT, _ingest_time TIMESTAMP, "
    "_source STRUCT<name: STRING, partition: INT, position: BIGINT>, _heartbeat BOOLEAN"
)
QUARANTINE = (
    "reason STRING, detail STRING, raw STRING, _ingest_time TIMESTAMP, "
    "_source STRUCT<name: STRING, partition: INT, position: BIGINT>, _epoch INT, _batch_id BIGINT"
)

_STARTS = pa.schema([("__name", pa.string()), ("__block", pa.int64()), ("first", pa.int64()), ("lines", pa.int64())])

LINKED = "files by a symbolic link, which are read by their own name"
_TRIES = 20
"""So often a batch is given other numbers, while replays take them."""

_ORDER = "__order"
_INSIDE = "__inside"
_PARTITION, _POSITION = "__partition", "__position"

_SAMPLES = 3


class BrokenRuleError(HaltedError):
    """Rows break a rule that must not be broken: the pipeline is halted from now on.

    Args:
        broken: what breaks what.
        example: the text of one of the rows.
        remedy: what was not written, and what to do.
    """

    def __init__(self, broken: str, example: str, remedy: str) -> None:
        super().__init__(f"{broken}; one of them: {example!r}. {remedy}")
        self._without_values = f"{broken}. {remedy} The driver's log shows one of them."

    @property
    def without_values(self) -> str:
        """The same without the example."""
        return self._without_values


class TopicReplacedError(TidemarkError):
    """A Kafka topic was deleted and made again: the offsets of the checkpoint mean messages of the old one."""


class MissingInputError(TidemarkError):
    """The folder that an ingest reads is not there, or has no end."""


class IngestQuery(Query[Ingest]):
    """Appends every good row to bronze and every other one, with the reason and its text, to the quarantine."""

    def __init__(self, spark: SparkSession, lake: Lake, definition: Ingest, *, reached: Reached = unobserved) -> None:
        super().__init__(lenient_session(spark), lake, definition, reached=reached)
        self._next_seq = 0
        self._kept_before: frozenset[str] = frozenset()
        self._halts: tuple[int, Halt | None] = (0, None)
        self._choice: Choice | None = None
        self._set_aside: tuple[RowRule, ...] = ()
        self._txn: int | None = None
        self._wider: Wider = NO_WIDER

        source = definition.source
        self._topics = Topics(source.bootstrap_servers or Settings().kafka) if isinstance(source, Kafka) else None
        self._topic_id: str | None = None

    def start(self, *, until_caught_up: bool = False) -> StreamingQuery:
        """As `Query.start`.

        Raises:
            HaltedError: if it waits for a person's decision about a batch.
        """
        if (halt := halts.standing(self.lake, self.name)) is not None:
            raise halt.error()
        # Only now: a decision that was made in between is seen. Nobody can decide again before it halts again.
        self._halts = halts.records(self.lake, self.name).newest()
        return super().start(until_caught_up=until_caught_up)

    def create_tables(self) -> None:
        """Bronze and its quarantine."""
        columns = schema_of(f"{schema_ddl(self.definition.payload)}, {METADATA}")
        # Else Spark would refuse them in the first batch, when the fixed rules are a changed definition.
        self.spark.createDataFrame([], columns).select(*(broken(rule) for rule in self.definition.all_rules)).schema  # noqa: B018
        # Readers without a JVM are not given the statistics of columns that stand behind a struct.
        bronze = StructType(sorted(columns, key=lambda field: isinstance(field.dataType, StructType)))
        schemas = {"result": bronze, "quarantine": schema_of(QUARANTINE)}
        for ref in reversed(plan.build(self.definition).tables):
            comments = column_comments(self.definition, ref.role)
            present = create_table(
                self.lake, ref.name, schemas[ref.role], statistics=ref.statistics, comments=comments, grows=True
            )
            if ref.role == "result":
                self._kept_before = present & {UNKNOWN_FIELDS} - self.definition.payload.keys()
        self._fronts: tuple[int, dict[str, Front]] | None = None
        self._heartbeats = Heartbeats(self.spark, self.lake)

    def beat(self, idle_ms: int, readers: Iterable[Pipeline]) -> None:
        """Moves the watermark on to the newest event's time plus the time without input; never back.

        Args:
            idle_ms: for how long there was no input.
            readers: every pipeline that is known: those of this table may go by times of their own.
        """
        table, latest = self.definition.sink.table, self.latest_batch_id
        if self._fronts is None or self._fronts[0] != latest:
            times = heartbeats.event_times(table, (self.definition,), readers)
            # The columns, not the readers' expressions over them: so none is moved further than any other.
            read = sorted({*chain(*self._heartbeats.clocks(table, times).values())})
            found = self._heartbeats.fronts(table, [in_spark(name) for name in read])
            self._fronts = latest, {name: found[in_spark(name)] for name in read}
        fronts = self._fronts[1]
        at_ms = {column: front.event_ms + idle_ms for column, front in fronts.items() if front.event_ms is not None}
        at_ms = {column: ms for column, ms in at_ms.items() if ms > (fronts[column].heartbeat_ms or ms - 1)}
        if at_ms and latest == self.latest_batch_id:
            self._heartbeats.beat(table, at_ms)
            beaten = {
                name: Front(front.event_ms, at_ms.get(name, front.heartbeat_ms)) for name, front in fronts.items()
            }
            self._fronts = latest, beaten

    def plan(self) -> DataFrame:
        """Names of new files, or Kafka's messages; with the batch's clock, which a replay repeats."""
        source = self.definition.source
        if isinstance(source, Kafka):
            stream = messages(self.spark, source)
        else:
            path = self.lake.source_path(source.path)
            if "://" not in path and not any(sign in path for sign in "*?[{") and not Path(path).exists():
                raise MissingInputError(
                    f"pipeline `{self.name}` reads {path}, which does not exist. Nothing was started. Make it or fill "
                    f"it (`tidemark simulate` fills landing/ of the lake), or name another place with --from."
                )
            if (loop := link_that_comes_back(path)) is not None:
                raise MissingInputError(
                    f"pipeline `{self.name}` reads {path}, where the symbolic link {loop[0]} leads back to {loop[1]}: "
                    "each file would come again and again. Nothing was started. Remove the link."
                )
            stream = file_names(self.spark, source, path)
        return stream.withColumn("_ingest_time", F.current_timestamp())

    def process(self, batch: DataFrame, batch_id: int, bounds: BatchBounds) -> LedgerEntry:
        """Parses and judges the batch in one pass, then commits the quarantine, then bronze with the ledger row."""
        if self.latest is None:
            # Only the first batch can be a replay. What bronze has is not read again: its files may be gone by now.
            # Only now: until this batch was planned, another driver may have committed.
            known = self._take_numbers(batch_id)
            if known is not None:
                self.reached("result_committed", batch_id)
                return known
        self._refuse_other_topic()
        self._take_decision(batch_id)
        source = self.definition.source
        unreadable: list[tuple[str, str]] = []
        linked: frozenset[str] = frozenset()
        paths: tuple[str, ...] = ()
        if isinstance(source, Files):
            paths = planned_files(self.query, self.lake, self.epoch.folder)
            root = self.lake.source_path(source.path)
            linked = links_to_others(paths, root)
            paths = tuple(path for path in paths if path not in linked)
            files = FileBatch(self.spark, self.definition, source, paths, bounds.batch_time_ms, root)
            known_bad = self._known_unreadable(batch_id) if self.latest is None else {}
            self._wider = NO_WIDER
            rows, census_rows, unreadable = files.read(self._judged, self._count, known_bad)
            rows, census_rows = self._with_wider_files(rows, census_rows)
            rows, census_rows = self._without_parts_of_values(rows, census_rows)
        else:
            rows = self._judged(batch).persist()
            census_rows = self._count(rows)
        try:
            header = self._header()
            census = Census(census_rows, header)
            self.reached("materialised", batch_id)
            self._halt_on_failed_rules(rows, census, batch_id)
            bad_files = {path for path, _ in unreadable}
            shape = self._shape(census, [path for path in paths if path not in bad_files])
            ledger = self._ledger(census, shape, len(unreadable), len(linked), bounds)
            return self._commit(rows, census, unreadable, ledger, batch_id)
        finally:
            rows.unpersist()

    def fix_starts(self) -> bool:
        """Notes which topic a new checkpoint reads, and refuses another one of its name."""
        source = self.definition.source
        if self._topics is not None and isinstance(source, Kafka):
            noted = starts_of(self.lake, self.epoch)
            self._topic_id = noted.topics.get(source.topic) if noted is not None else None
            self._refuse_other_topic()
        return False

    def _refuse_other_topic(self) -> None:
        """Stops where the topic is not the one that the checkpoint began with; notes it where nobody has yet.

        Raises:
            TopicReplacedError: if it was deleted and made again under its name.
        """
        source = self.definition.source
        if self._topics is None or not isinstance(source, Kafka):
            return
        found = self._topics.id_of(source.topic)
        if found is not None and self._topic_id is None:
            noted = fix_starts(self.lake, self.epoch, Starts(topics={source.topic: found}))
            self._topic_id = noted.topics.get(source.topic)
        if found is not None and found != self._topic_id:
            raise TopicReplacedError(
                f"pipeline `{self.name}`: topic {source.topic} was deleted and made again (id {found} instead of "
                f"{self._topic_id}): the checkpoint's offsets mean messages of the old one, and what the new one has "
                "before them would be passed over. Nothing of this batch was written. Read the new one from its start, "
                f"beside the events of the old one: tidemark reset {self.name} --keep-tables"
            )

    def _committed(self, batch_id: int) -> LedgerEntry | None:
        """The ledger row of a batch that bronze has already."""
        found = self.writer("result", self.definition.sink.table).find(self.stamp("result", batch_id, 0))
        return found.ledger if found is not None else None

    def _take_numbers(self, batch_id: int) -> LedgerEntry | None:
        """Finds out which numbers come next in bronze; the ledger row of the batch if it is there already.

        In this order: whoever commits after the first look takes the next transaction number too, and this batch
        conflicts with that, or is skipped; whoever committed before it is found.
        """
        writer = self.writer("result", self.definition.sink.table)
        newest = newest_numbered(self.lake, self.definition.sink.table)
        self._next_seq = newest.next_seq or 0 if newest is not None else 0
        self._txn = None
        if isinstance(newest, Replayed):
            self._txn = newest.txn if newest.writer == writer.txn_app_id else None
        elif newest is not None and (newest.epoch, newest.query_id) == (self.epoch.number, str(self.query.id)):
            # A batch before the newest is given no new number: the table skips it.
            self._txn = newest.txn if newest.batch_id <= batch_id else None
        return self._committed(batch_id)

    def _known_unreadable(self, batch_id: int) -> dict[str, str]:
        """The files that an interrupted attempt at this batch has set aside; they stay where they are."""
        table = beside(self.definition.sink.table, "quarantine")
        if self.writer("quarantine", table).find(self.stamp("quarantine", batch_id, 0)) is None:
            return {}
        mine = (pc.field("_epoch") == self.epoch.number) & (pc.field("_batch_id") == batch_id)
        rows = tables.open_table(self.lake, table).to_pyarrow_dataset()
        found = rows.to_table(columns=["raw", "detail"], filter=mine & (pc.field("reason") == UNREADABLE))
        return {row["raw"]: row["detail"] for row in found.to_pylist()}

    def _judged(self, raw: DataFrame) -> DataFrame:
        """Typed rows with their verdict and their order, ready to be kept in memory."""
        if isinstance(self.definition.source, Files) and self.definition.source.format == "parquet":
            rows = typed(raw, self.definition)
        else:
            rows = parse(raw, self.definition, self._wider)
        judged = judge(rows, self.definition, set_aside=self._set_aside)
        judged = skipped(judged) if self._choice == "skip" else judged
        return judged if _ORDER in raw.columns else judged.withColumn(_ORDER, F.monotonically_increasing_id())

    def _with_wider_files(self, rows: DataFrame, counted: list[Row]) -> tuple[DataFrame, list[Row]]:
        """The batch again where a file of CSV has more columns than are declared: its rows are read by its header.

        Which files do is known when their first lines have been read. To know it before would take a look at each.
        """
        source, header = self.definition.source, self._header()
        if header is None or not isinstance(source, Files):
            return rows, counted
        lines = {file: group["first_line"] for file, group in first_rows(counted).items() if not group["is_header"]}
        self._wider = wider_files(lines, tuple(self.definition.columns), source.delimiter)
        if not self._wider:
            return rows, counted
        try:
            judged = {*self.definition.payload, REASON, DETAIL}
            raw = rows.select(*columns_of(name for name in rows.columns if name not in judged))
            again = self._judged(raw).persist()
            counted = self._count(again)
        finally:
            rows.unpersist()
        return again, counted

    def _without_parts_of_values(self, rows: DataFrame, counted: list[Row]) -> tuple[DataFrame, list[Row]]:
        """The batch again where a line of CSV opens a quote and a later one closes it: all up to there are one value.

        Such lines are rare, and to know which belong to a value takes another pass.
        """
        source = self.definition.source
        opened = {group[NAME] for group in counted if group["opens"]}
        # Where all rows are set aside, none of them can be taken for a row.
        if not isinstance(source, Files) or not opened or self._choice == "skip":
            return rows, counted
        try:
            blocks = blocks_of(group for group in counted if group[NAME] in opened)
            runs = lines_inside_quotes(rows, blocks, source.delimiter, raw=RAW, file=NAME, place=(BLOCK, _ORDER))
            if not runs:
                return rows, counted
            again = part_of_value_set_aside(mark_rows(rows, runs, _ORDER, _INSIDE), _INSIDE).persist()
            # Before the rows that it is made of are given up.
            counted = self._count(again)
        except BaseException:
            rows.unpersist()
            raise
        rows.unpersist()
        return again, counted

    def _header(self) -> str | None:
        source = self.definition.source
        if isinstance(source, Files) and source.format == "csv" and source.header:
            return expected_header(self.definition, source)
        return None

    def _is_header(self, header: str) -> Column:
        """Whether a row is the header of its file."""
        own = is_header_line(header)
        if not self._wider:
            return own
        delimiter = self.definition.source.delimiter  # type: ignore[union-attr]
        lines = F.create_map(
            *(F.lit(part) for file, names in self._wider.items() for part in (file, delimiter.join(names)))
        )
        return own | F.coalesce(header_of(F.col(RAW)) == lines[F.col(NAME)], F.lit(False))

    def _count(self, rows: DataFrame) -> list[Row]:
        """The one action that materialises the batch; its figures are the ledger's."""
        header = self._header()
        line = header_of(F.col(RAW))
        is_header = self._is_header(header) if header is not None else F.lit(False)
        watched = (*rules_with(self.definition, "warn"), *rules_with(self.definition, "fail"))
        source = self.definition.source
        csv = isinstance(source, Files) and source.format == "csv"
        # A line that opens a quote has a reason already, so that most lines need not be asked.
        opens = F.when(F.col(REASON).isNotNull() & opens_quote(F.col(RAW), source.delimiter), 1) if csv else F.lit(None)  # type: ignore[union-attr]
        return (
            with_unknown_fields(rows, self.definition, _in_partition(), self._wider)
            .groupBy(
                F.shiftright(_ORDER, 33).cast("int").alias("pid"),
                NAME,
                BLOCK,
                REASON,
                is_header.alias("is_header"),
            )
            .agg(
                F.count(F.lit(1)).alias("rows"),
                F.min(_ORDER).alias("first"),
                *self._bytes(),
                *(F.expr(sql) for sql in digest_sql(f"xxhash64({NAME}, {RAW})")),
                *([F.min_by(line, _ORDER).alias("first_line")] if header is not None else []),
                F.count(opens).alias("opens"),
                *(
                    F.count(F.when(F.col(REASON).isNull() & broken(rule), 1)).alias(f"broken_{index}")
                    for index, rule in enumerate(watched)
                ),
                *shape_counts(self.definition),
            )
            .collect()
        )

    def _bytes(self) -> list[Column]:
        """How many bytes of a file its rows make, with their line ends, and how many it has."""
        source = self.definition.source
        if not isinstance(source, Files):
            return []
        of_rows = F.sum(F.octet_length(RAW) + 1) if source.format != "parquet" else F.lit(0)
        return [of_rows.alias("bytes"), F.max("__size").alias("size")]

    def _take_decision(self, batch_id: int) -> None:
        """What a person has decided about this batch: about the first one after a halt, and no other."""
        halt = self._halts[1]
        mine = halt is not None and halt.is_batch(self.epoch.number, batch_id)
        self._choice = halt.choice if halt is not None and mine else None
        strict = rules_with(self.definition, "fail")
        if self._choice == "quarantine" and halt is not None:
            # Those that the person has seen; another one that is broken by now halts it again.
            self._set_aside = tuple(rule for rule in strict if rule.name in halt.broken)
        else:
            self._set_aside = strict if self._choice == "skip" else ()

    def _halt_on_failed_rules(self, rows: DataFrame, census: Census, batch_id: int) -> None:
        """Ends the query before anything of the batch is written, where rows break a rule that must not be broken.

        Raises:
            BrokenRuleError: then; that the pipeline is halted is recorded before.
        """
        first = len(rules_with(self.definition, "warn"))
        counted = enumerate(rules_with(self.definition, "fail"), start=first)
        found = {rule: count for index, rule in counted if (count := census.broken(index))}
        breached = self._breached(census)
        if not found and not breached:
            return
        samples = self._samples(rows, census, next(iter(found), None) or next(iter(breached)))
        # With those that were set aside by the decision that comes to nothing: the next one is about all of them.
        again = {each.name: count for each in self._set_aside if (count := census.reasons.get(each.name, 0))}
        halt = Halt(
            pipeline=self.name,
            epoch=self.epoch.number,
            batch_id=batch_id,
            broken={each.name: count for each, count in found.items()} | breached | again,
            samples=tuple(dict.fromkeys(str(sample["shown"]) for sample in samples)),
            since=datetime.now(UTC),
        )
        halts.note_halt(self.lake, halt, after=self._halts[0])
        raise BrokenRuleError(
            f"pipeline `{self.name}`: {_told(halt)}, which halts the pipeline",
            # The text of the row has all of its values.
            MASK if self.definition.personal else str(samples[0]["raw"]) if samples else "",
            f"Nothing of this batch was written. {halts.ways_on(self.name)}",
        )

    def _breached(self, census: Census) -> dict[str, int]:
        """Rows that break the contract where that stops the stream, less those that somebody has decided about."""
        halt = self._halts[1]
        decided = halt.broken if halt is not None and self._choice == "quarantine" else ()
        counts = {reason: census.reasons.get(reason, 0) for reason in breaches(self.definition)}
        return {reason: count for reason, count in counts.items() if count and reason not in decided}

    def _samples(self, rows: DataFrame, census: Census, broken_by: RowRule | str) -> list[Row]:
        """Some rows that break a rule, or the contract: their text, and what is shown of it."""
        if isinstance(broken_by, str):
            kept, shown = F.col(REASON) == broken_by, F.col(DETAIL)
        else:
            kept = F.col(REASON).isNull() & broken(broken_by)
            shown = values_read(broken_by, self.definition.personal)
        kept = kept & ~F.col(NAME).isin(list(census.bad_headers))
        if (header := self._header()) is not None:
            kept = kept & ~self._is_header(header)
        return rows.where(kept).select(F.make_valid_utf8(RAW).alias("raw"), shown.alias("shown")).head(_SAMPLES)

    def _shape(self, census: Census, paths: Sequence[str]) -> Shape:
        """What the batch tells of the shape of its source.

        Args:
            census: of it.
            paths: of its files that can be read.
        """
        source = self.definition.source
        shape = shape_of(census.good_groups, self.definition)
        parquet = isinstance(source, Files) and source.format == "parquet"
        found = shape_of_parquet(self.lake, source, paths) if parquet else None  # type: ignore[arg-type]
        return shape.with_file(*found, self.definition) if found is not None else shape

    def _ledger(self, census: Census, shape: Shape, unreadable: int, linked: int, bounds: BatchBounds) -> LedgerEntry:
        reasons = dict(sorted(census.reasons.items()))
        for index, rule in enumerate(rules_with(self.definition, "warn")):
            count = census.broken(index)
            if count:
                reasons[f"{WARNING}{rule.name}"] = count
        if unreadable:
            reasons[UNREADABLE] = unreadable
        if linked:
            reasons[f"{WARNING}{LINKED}"] = linked
        return LedgerEntry(
            started_ms=bounds.batch_time_ms,
            run=str(self.query.runId),
            terms={
                "read": census.good + census.quarantined + unreadable,
                "on_time": census.good,
                "quarantined": census.quarantined + unreadable,
                "rows": census.good,
                **shape.counts,
            },
            reasons=reasons,
            unknown_fields=shape.unknown_fields,
            nulls=shape.nulls,
            sources=bounds.sources,
        )

    def _commit(
        self,
        rows: DataFrame,
        census: Census,
        unreadable: list[tuple[str, str]],
        ledger: LedgerEntry,
        batch_id: int,
    ) -> LedgerEntry:
        """Commits the quarantine, then bronze; what bronze has of the batch."""
        table, size = self.definition.sink.table, size_of(rows)
        if ledger["quarantined"]:
            bad = self._quarantined(rows, census, unreadable, ledger, batch_id)
            reasons = {reason: count for reason, count in ledger.reasons.items() if not reason.startswith(WARNING)}
            content = census.bad_content(path for path, _ in unreadable)
            bad_stamp = self.stamp("quarantine", batch_id, ledger["quarantined"], content=content, reasons=reasons)
            change = Append(bad, ledger["quarantined"], size)
            self.writer("quarantine", beside(table, "quarantine")).commit(change, bad_stamp)
            self.reached("quarantine_committed", batch_id)
        for _ in range(_TRIES):
            self.reached("numbered", batch_id)
            next_seq = self._next_seq + sum(group["rows"] for group in census.groups)
            stamp = self.stamp(
                "result",
                batch_id,
                ledger["rows"],
                ledger=ledger,
                next_seq=next_seq,
                content=census.good_content,
                # Replays count on from the number of the batch before.
                txn=None if self._txn is None or self._txn < batch_id else self._txn + 1,
            )
            change = Append(self._good(rows, census), ledger["rows"], size)
            try:
                written = self.writer("result", table).commit(change, stamp)
            except OvertakenError:
                if (known := self._take_numbers(batch_id)) is not None:
                    return known
                continue
            self._next_seq, self._txn = written.next_seq or 0, written.txn
            self.reached("result_committed", batch_id)
            return ledger
        raise LedgerError(
            f"pipeline `{self.name}`: replays of its quarantine took the numbers of batch {batch_id} {_TRIES} times in "
            "a row. The batch is not in bronze; it runs again at the next start."
        )

    def _placed(self, rows: DataFrame, census: Census) -> DataFrame:
        """Adds each row's place in its file; a message of Kafka brings its own."""
        if isinstance(self.definition.source, Kafka):
            return rows
        # From Arrow: rows of Python objects would start Python workers in each batch.
        columns = zip(*census.block_starts(), strict=True)
        table = dict(zip((NAME, BLOCK, "first", "lines"), columns, strict=False))
        starts = self.spark.createDataFrame(pa.table(table, schema=_STARTS) if table else _STARTS.empty_table())
        placed = rows.join(F.broadcast(starts), [NAME, BLOCK], "left")
        if _POSITION not in rows.columns:
            placed = placed.withColumn(_POSITION, F.col(_ORDER) - F.col("first") + F.col("lines"))
        return placed

    def _source(self) -> Any:
        return F.struct(
            F.col(NAME).alias("name"),
            F.col(_PARTITION).cast("int").alias("partition"),
            F.col(_POSITION).cast("bigint").alias("position"),
        )

    def _good(self, rows: DataFrame, census: Census) -> DataFrame:
        good = rows.where(F.col(REASON).isNull())
        if (header := self._header()) is not None:
            good = good.where(~self._is_header(header))
            good = good.where(~F.col(NAME).isin(list(census.bad_headers))) if census.bad_headers else good
        starts = census.partition_starts()
        pairs = [F.lit(value) for pid, start in starts.items() for value in (pid, start)]
        start = F.create_map(*pairs)[F.shiftright(_ORDER, 33).cast("int")] if pairs else F.lit(0)
        placed = self._placed(good, census)
        place = F.concat_ws("/", F.col(NAME), F.col(_PARTITION).cast("string"), F.col(_POSITION).cast("string"))
        event_id = column(self.definition.event_id).cast("string") if self.definition.event_id else F.md5(place)
        return placed.select(
            *columns_of(self.definition.payload),
            *(F.lit(None).cast("map<string,string>").alias(name) for name in self._kept_before),
            event_id.alias("_event_id"),
            (F.lit(self._next_seq) + start + _in_partition()).cast("bigint").alias("_ingest_seq"),
            "_ingest_time",
            self._source().alias("_source"),
            F.lit(False).alias("_heartbeat"),
        )

    def _quarantined(
        self,
        rows: DataFrame,
        census: Census,
        unreadable: list[tuple[str, str]],
        ledger: LedgerEntry,
        batch_id: int,
    ) -> DataFrame:
        reason, detail, bad = F.col(REASON), F.col(DETAIL), F.col(REASON).isNotNull()
        if (header := self._header()) is not None:
            wrong = F.col(NAME).isin(list(census.bad_headers)) if census.bad_headers else F.lit(False)
            again = self._is_header(header) & ~F.col(_ORDER).isin(list(census.headers.values())) & ~wrong
            bad = (bad & ~self._is_header(header)) | wrong | again
            source = self.definition.source
            delimiter = source.delimiter if isinstance(source, Files) else ","
            lines = {
                name: header_told(line, delimiter, quoted=not self.definition.personal)
                for name, line in census.bad_headers.items()
            }
            found = F.create_map(*(F.lit(text) for pair in lines.items() for text in pair))
            told = F.concat(F.lit(f"expected {header}, got "), found[F.col(NAME)])
            reason = F.when(wrong | again, F.lit(HEADER)).otherwise(reason)
            detail = F.when(again, F.lit(REPEATED_HEADER)).otherwise(detail)
            detail = F.when(wrong, told).otherwise(detail) if census.bad_headers else detail
        place = [F.lit(self.epoch.number).alias("_epoch"), F.lit(batch_id).cast("bigint").alias("_batch_id")]
        placed = self._placed(rows.withColumns({"__bad": bad, "__why": reason, "__how": detail}).where("__bad"), census)
        found_bad = placed.select(
            F.col("__why").alias("reason"),
            F.col("__how").alias("detail"),
            # Readers of a table refuse text that is not UTF-8.
            F.make_valid_utf8(RAW).alias("raw"),
            "_ingest_time",
            self._source().alias("_source"),
            *place,
        )
        if not unreadable:
            return found_bad
        files = self.spark.createDataFrame(
            [(path, error) for path, error in unreadable], f"{NAME} STRING, error STRING"
        ).select(
            F.lit(UNREADABLE).alias("reason"),
            F.col("error").alias("detail"),
            F.col(NAME).alias("raw"),
            F.timestamp_millis(F.lit(ledger.started_ms)).alias("_ingest_time"),
            F.struct(
                F.col(NAME).alias("name"),
                F.lit(None).cast("int").alias("partition"),
                F.lit(None).cast("bigint").alias("position"),
            ).alias("_source"),
            *place,
        )
        return found_bad.unionByName(files)


def _told(halt: Halt) -> str:
    return ", ".join(f"{count} rows of batch {halt.batch_id} break {rule}" for rule, count in halt.broken.items())


def _in_partition() -> Column:
    """The number of a row in its partition."""
    return F.col(_ORDER).bitwiseAND(F.lit((1 << 33) - 1))
