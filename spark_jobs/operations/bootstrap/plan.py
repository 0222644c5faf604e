"""What a bootstrap will do, as a value; made from logs and statistics, without a JVM."""

from datetime import UTC, datetime

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch, history_cut
from spark_jobs.lake.checkpoints.reset import newest_epoch, refuse_tables_of_others
from spark_jobs.lake.checkpoints.spark_log import newest_batch
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.files import refuse_missing
from spark_jobs.lake.tables.fitting import refuse_misfit
from spark_jobs.lake.tables.opening import exists, newest, open_table
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.plan import logical
from spark_jobs.plan.changes import needs_new_epoch
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.recompute.ranges import FIRST_US, Range, us
from spark_jobs.recompute.target import BackfillRefusedError, SourceVersion, within
from spark_jobs.spec import Definition, Pipeline, definition_from_json
from spark_jobs.spec.durations import duration_ms


class BootstrapRefusedError(BackfillRefusedError):
    """The history of a pipeline cannot be computed in batch, or must not any more."""


class BootstrapPlan(OperationPlan):
    """What a bootstrap will do.

    Attributes:
        table: its result.
        epoch: that begins at the cut.
        begun: whether it has begun already, by a bootstrap that did not end.
        cut_us: windows that end at or before it are computed in batch, later ones by the stream; microseconds since
            1970.
        newest_us: of the events, heartbeats included; of several source tables that which is behind.
        streams: the source tables, as the stream reads them.
        computes: the same, as the batch reads them.
    """

    table: str
    epoch: int
    begun: bool
    cut_us: int
    newest_us: int
    streams: tuple[SourceVersion, ...]
    computes: tuple[SourceVersion, ...]


def plan_bootstrap(lake: Lake, definition: Definition, *, begins: bool = False) -> BootstrapPlan:
    """What a bootstrap will do; nothing is written, and no JVM is started.

    Args:
        lake: where.
        definition: of the pipeline.
        begins: whether it is known already that it will be carried out.

    Raises:
        BootstrapRefusedError: if its history cannot be computed in batch, or its stream has begun.
        DeployError: if it will be, and a driver runs the pipeline.
        MissingTableError: if a source table does not exist.
    """
    planned = refuse_unsuitable(definition, lake)
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
            f"gone. Nothing was read or written. Begin again: {command('reset', definition.name, '--empty-tables')}"
        )
    else:
        refuse_tables_of_others(lake, definition)
    newest_us, cut_us = cut_of(lake, planned)
    if isinstance(definition, Pipeline):
        refuse_misfit(lake, definition)
    if begun and current is not None and current.cut_us is not None:
        cut_us = current.cut_us
    if begins:
        refuse_deployed(lake, [definition.name])
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


def refuse_unsuitable(definition: Definition, lake: Lake | None = None) -> LogicalPlan:
    """The plan of a pipeline whose history can be computed in batch.

    Args:
        definition: of the pipeline.
        lake: where it may have run with another definition; None: what to do instead does not matter.

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
        current = None if lake is None else current_epoch(lake, name)
        begin = "Start it"
        if current is not None and needs_new_epoch(definition_from_json(current.definition), definition):
            begin = (
                f"Begin again with its changed definition: {command('reset', name, '--empty-tables')}. Then start it"
            )
        raise BootstrapRefusedError(
            f"pipeline `{name}`, {planned.operator.description}: its history cannot be computed in batch: {why}. "
            f"Nothing was read or written. {begin}: its stream goes through the history batch after batch "
            f"(`max_files_per_trigger` says how much each takes): {command('run', name)}"
        )
    return planned


def _refuse_begun(lake: Lake, epoch: Epoch, changed: str) -> None:
    name = epoch.pipeline
    began = f"epoch {epoch.number} of it"
    if newest_batch(lake, epoch.folder, "offsets") is not None:
        remedy = f"With its changed definition ({changed}): {command('rebuild', name)}. " if changed else ""
        raise BootstrapRefusedError(
            f"pipeline `{name}`: {began} has begun as a stream on {lake.uri}. Nothing was read or written. {remedy}To "
            f"compute its closed windows again: "
            f"{command('backfill', name, '--from', 'BEGIN', '--to', 'END', '--force')}. To begin again: "
            f"{command('reset', name, '--empty-tables')}"
        )
    if not epoch.tables_emptied:
        raise BootstrapRefusedError(
            f"pipeline `{name}`: its table also has rows of epochs before {epoch.number}, which nothing tells apart "
            f"from its history. Nothing was read or written. Remove them: {command('reset', name, '--empty-tables')}"
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
            column = side.time_column(source)
            if column is None:
                raise BootstrapRefusedError(
                    f"pipeline `{name}`: its event time `{side.event_time}` is computed from columns of {source.name}, "
                    "whose statistics do not tell how far it reaches. Nothing was read or written. Start it as a "
                    f"stream: {command('run', name)}"
                )
            newest_time = newest(open_table(lake, source.name), column)
            if not isinstance(newest_time, datetime):
                raise BootstrapRefusedError(
                    f"pipeline `{name}`: {source.name} has no event with a `{column}`, or no statistics of it. Nothing "
                    f"was read or written. There is no history to compute: {command('run', name)}"
                )
            newest_us = us(newest_time.replace(tzinfo=newest_time.tzinfo or UTC))
            reached.append(
                (newest_us, newest_us // 1000 * 1000 - (duration_ms(side.delay) if side.delay else 0) * 1000)
            )
    newest_us, watermark_us = min(reached, key=lambda each: each[1])
    if planned.operator is None:
        raise TypeError(f"expected a pipeline, got `{name}`")
    # Spark's watermark never lies before 1970.
    return newest_us, planned.operator.recomputation.unit.last_cut_upto(max(watermark_us, 0))


def reads_of(lake: Lake, planned: LogicalPlan, times: Range | None) -> tuple[SourceVersion, ...]:
    """The source tables as they are now, and how much of them may hold events of a range; None: all of them."""
    found = []
    for side in planned.sides:
        for source in side.tables:
            opened = open_table(lake, source.name)
            refuse_missing(lake, source.name, opened)
            rows, size = within(opened, side.time_column(source), times)
            found.append(SourceVersion(table=source.name, version=opened.version(), rows=rows, bytes=size))
    return tuple(found)
