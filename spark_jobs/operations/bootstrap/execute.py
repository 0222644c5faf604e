"""A new pipeline whose history is computed in batch up to a cut, and that goes on as a stream from exactly there.

The cut is the end of a window. The first query of the epoch reads all of bronze and passes over every window that ends
at or before the cut; these are computed in batch, over just the events that it has read. What comes for them afterwards
is late by Spark's own verdict (docs/guides/bootstrap.md).
"""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import Epoch, begin_epoch, current_epoch, end_before_it_begins, history_cut
from spark_jobs.lake.checkpoints.reset import newest_epoch, refuse_tables_of_others
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.errors import CheckpointError, CutNotReachedError, MissingTableError
from spark_jobs.lake.tables.files import refuse_missing
from spark_jobs.lake.tables.opening import exists, file_statistics, newest, open_table
from spark_jobs.operations.backfill.execute import Done, Told, execute
from spark_jobs.plan import logical
from spark_jobs.plan.changes import needs_new_epoch
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.recompute.ranges import Range, shown, us
from spark_jobs.recompute.target import (
    BackfillPlan,
    BackfillRefusedError,
    Read,
    Slice,
    Target,
    column_of,
    in_slices,
    within,
)
from spark_jobs.spec import Definition, Pipeline, definition_from_json
from spark_jobs.spec.durations import duration_ms

FIRST_US = -62_135_596_800_000_000
"""Year 1: no event lies before it."""


class BootstrapRefusedError(BackfillRefusedError):
    """The history of a pipeline cannot be computed in batch, or must not any more."""


class BootstrapPlan(BaseModel):
    """What a bootstrap will do.

    Attributes:
        pipeline: its name.
        table: its result.
        epoch: that begins at the cut.
        begun: whether it has begun already, by a bootstrap that did not end.
        cut_us: windows that end at or before it are computed in batch, later ones by the stream; microseconds since
            1970.
        newest_us: of the events, heartbeats included; of several source tables that which is behind.
        streams: the source tables, as the stream reads them.
        computes: the same, as the batch reads them.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    table: str
    epoch: int
    begun: bool
    cut_us: int
    newest_us: int
    streams: tuple[Read, ...]
    computes: tuple[Read, ...]


def plan_bootstrap(lake: Lake, definition: Definition) -> BootstrapPlan:
    """What a bootstrap will do; nothing is written, and no JVM is started.

    Args:
        lake: where.
        definition: of the pipeline.

    Raises:
        BootstrapRefusedError: if its history cannot be computed in batch, or its stream has begun.
        MissingTableError: if a source table does not exist.
    """
    planned = refuse_unsuitable(definition)
    current = current_epoch(lake, definition.name)
    number, begun = 1, False
    if current is not None:
        changed = ", ".join(needs_new_epoch(definition_from_json(current.definition), definition))
        begun = history_cut(lake, current) is not None and not changed
        if not begun:
            _refuse_begun(lake, current, changed)
        number = current.number if begun else current.number + 1
    elif (last := newest_epoch(lake, definition)) > 0:
        raise BootstrapRefusedError(
            f"pipeline `{definition.name}`: {planned.result.name} has rows of its epoch {last}, whose checkpoint is "
            f"gone. Nothing was read or written. Begin again: tidemark reset {definition.name} --empty-tables"
        )
    else:
        refuse_tables_of_others(lake, definition)
    newest_us, cut_us = cut_of(lake, planned)
    if begun and current is not None and current.cut_us is not None:
        cut_us = current.cut_us
    return BootstrapPlan(
        pipeline=definition.name,
        table=planned.result.name,
        epoch=number,
        begun=begun,
        cut_us=cut_us,
        newest_us=newest_us,
        streams=reads_of(lake, planned, None),
        computes=reads_of(lake, planned, Range(FIRST_US, cut_us)),
    )


def refuse_unsuitable(definition: Definition) -> LogicalPlan:
    """The plan of a pipeline whose history can be computed in batch.

    Raises:
        BootstrapRefusedError: if it cannot be; the text says what to do instead.
    """
    planned, name = logical.build(definition), definition.name
    if planned.operator is None:
        raise BootstrapRefusedError(
            f"pipeline `{name}` is an ingest: what it reads is no table. Nothing was read or written. Name a pipeline "
            "that reads its bronze."
        )
    why = planned.operator.recomputation.unit.why_no_cut
    if why is None and any(side.delay is None for side in planned.sides):
        why = "without a watermark no window of it is ever closed"
    if why is not None:
        raise BootstrapRefusedError(
            f"pipeline `{name}`, {planned.operator.description}: its history cannot be computed in batch: {why}. "
            "Nothing was read or written. Start it: its stream goes through the history batch after batch "
            f"(`max_files_per_trigger` says how much each takes): tidemark run {name}"
        )
    return planned


def _refuse_begun(lake: Lake, epoch: Epoch, changed: str) -> None:
    name = epoch.pipeline
    began = f"epoch {epoch.number} of it"
    if newest_batch(lake, epoch.folder, "offsets") is not None:
        remedy = f"With its changed definition ({changed}): tidemark rebuild {name}. " if changed else ""
        raise BootstrapRefusedError(
            f"pipeline `{name}`: {began} has begun as a stream on {lake.uri}. Nothing was read or written. {remedy}To "
            f"compute its closed windows again: tidemark backfill {name} --from … --to … --force. To begin again: "
            f"tidemark reset {name} --empty-tables"
        )
    if not epoch.tables_emptied:
        raise BootstrapRefusedError(
            f"pipeline `{name}`: its table also has rows of epochs before {epoch.number}, which nothing tells apart "
            f"from its history. Nothing was read or written. Remove them: tidemark reset {name} --empty-tables"
        )


def cut_of(lake: Lake, planned: LogicalPlan) -> tuple[int, int]:
    """The newest time in the source tables, and the last window's end that no watermark from there lies before.

    Of several tables the one that is behind counts, as it does for Spark.

    Raises:
        BootstrapRefusedError: if the tables' statistics do not tell.
        MissingTableError: if one does not exist.
    """
    name, reached = planned.definition.name, []
    for side in planned.sides:
        for source in side.tables:
            if not exists(lake, source.name):
                raise MissingTableError(
                    f"pipeline `{name}` reads {source.name}, which does not exist in {lake.uri}. Nothing was written. "
                    f"Fill it with an ingest first."
                )
            column = column_of(source, side.event_time)
            if column is None:
                raise BootstrapRefusedError(
                    f"pipeline `{name}`: its event time `{side.event_time}` is computed from columns of {source.name}, "
                    "whose statistics do not tell how far it reaches. Nothing was read or written. Start it as a "
                    f"stream: tidemark run {name}"
                )
            found = newest(open_table(lake, source.name), column)
            if not isinstance(found, datetime):
                raise BootstrapRefusedError(
                    f"pipeline `{name}`: {source.name} has no event with a `{column}`, or no statistics of it. Nothing "
                    f"was read or written. There is no history to compute: tidemark run {name}"
                )
            newest_us = us(found.replace(tzinfo=found.tzinfo or UTC))
            reached.append(
                (newest_us, newest_us // 1000 * 1000 - (duration_ms(side.delay) if side.delay else 0) * 1000)
            )
    newest_us, watermark_us = min(reached, key=lambda each: each[1])
    if planned.operator is None:
        raise TypeError(f"expected a pipeline, got `{name}`")
    # Spark's watermark never lies before 1970.
    return newest_us, planned.operator.recomputation.unit.last_cut_upto(max(watermark_us, 0))


def reads_of(lake: Lake, planned: LogicalPlan, times: Range | None) -> tuple[Read, ...]:
    """The source tables as they are now, and how much of them may hold events of a range; None: all of them."""
    found = []
    for side in planned.sides:
        for source in side.tables:
            opened = open_table(lake, source.name)
            refuse_missing(lake, source.name, opened)
            rows, size = within(opened, column_of(source, side.event_time), times)
            found.append(Read(table=source.name, version=opened.version(), rows=rows, bytes=size))
    return tuple(found)


def begin(lake: Lake, definition: Definition, plan: BootstrapPlan) -> Epoch:
    """Begins the epoch at its cut; once, however many do so.

    Raises:
        CheckpointError: if another has begun it as a stream meanwhile.
    """
    before = current_epoch(lake, definition.name)
    if before is not None and before.number < plan.epoch and not end_before_it_begins(lake, before):
        raise CheckpointError(
            f"pipeline `{plan.pipeline}`: its stream has begun in epoch {before.number} since this was planned. "
            f"Nothing was written. To begin again: tidemark reset {plan.pipeline} --empty-tables, then tidemark "
            f"bootstrap {plan.pipeline}"
        )
    epoch = begin_epoch(lake, definition, plan.epoch, cut_us=plan.cut_us)
    if history_cut(lake, epoch) is None:
        raise CheckpointError(
            f"pipeline `{plan.pipeline}`: another driver has begun epoch {epoch.number} meanwhile, and its stream goes "
            "through the history. Nothing was written."
        )
    return epoch


class _Beginning(Target):
    """A pipeline that has no results of its history yet."""

    def _refuse_lost_events(self) -> None:
        """Events that bronze has lost before cost no result."""


def compute_history(spark: SparkSession, lake: Lake, pipeline: Pipeline, *, tell: Told = lambda *_: None) -> list[Done]:
    """Computes the history of the current epoch, over just the events that its stream has read; idempotent.

    Args:
        spark: a session.
        lake: where.
        pipeline: whose stream has read what was there, and rests.
        tell: called before and after each slice.

    Raises:
        CutNotReachedError: if the stream's next batch could still count events of these windows.
    """
    target = _Beginning(lake, pipeline)
    cut_us = history_cut(lake, target.epoch)
    if cut_us is None:
        return []
    if target.newest.watermark_ms * 1000 < cut_us:
        raise CutNotReachedError(
            f"pipeline `{pipeline.name}`: its watermark has reached {shown(target.newest.watermark_ms * 1000)}, its "
            f"history is to be computed up to {shown(cut_us)}: a driver died before the batch that moves it. The next "
            f"events move it. Nothing of the history was written. Run it again then: tidemark run {pipeline.name}"
        )
    return execute(spark, target, _history(target, cut_us), tell=tell)


def _history(target: Target, cut_us: int) -> BackfillPlan:
    """A backfill of all windows that end at or before the cut."""
    before, after = target.operator.recomputation.reach
    end_us = target.operator.recomputation.first_open_us(cut_us // 1000)
    begin_us = _oldest_us(target) - duration_ms(before + after) * 1000
    reads = target.reads("as-streamed", Range(begin_us, cut_us))
    closed = Range(min(begin_us, end_us - 1), end_us)
    parts = in_slices(closed, sum(read.bytes for read in reads))
    return BackfillPlan(
        pipeline=target.name,
        table=target.result,
        run=f"bootstrap-{target.epoch.number}-{datetime.now(UTC):%Y%m%d%H%M%S%f}",
        mode="corrected",
        begin_us=closed.begin_us,
        end_us=closed.end_us,
        slices=tuple(
            Slice(number=number, begin_us=part.begin_us, end_us=part.end_us) for number, part in enumerate(parts)
        ),
        notices=(),
        epoch=target.epoch.number,
        watermark_ms=cut_us // 1000,
        reads=reads,
        # The stream's late events have missed only windows beyond the cut.
        late_version=None,
        late=0,
        unsettled=0,
        kind="bootstrap",
    )


def _oldest_us(target: Target) -> int:
    """The oldest time in the source tables, by their statistics."""
    oldest = []
    for side in target.logical.sides:
        for source in side.tables:
            statistics = file_statistics(open_table(target.lake, source.name))
            least = f"min.{column_of(source, side.event_time)}"
            if least not in statistics.column_names or statistics[least].null_count:
                return FIRST_US
            times = statistics[least].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            oldest += [pc.min(times).as_py()] if len(times) else []
    return max(FIRST_US, min(oldest, default=FIRST_US))
