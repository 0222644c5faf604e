"""What a repair will do, as a value; made from logs and statistics, without a JVM."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.repaired import LateEvents
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.choosing import revisable
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.recompute.ranges import Range
from spark_jobs.recompute.target import BackfillRefusedError, NotComparableError, SourceVersion, Target
from spark_jobs.spec import Definition
from spark_jobs.spec.durations import duration_ms

_MOST_RANGES = 200
"""So many ranges of event time are told apart when events are read; more are drawn together."""


class RepairPlan(OperationPlan):
    """What a repair will do.

    Attributes:
        table: its result.
        run: of the commits that it will make.
        epoch: of the checkpoint.
        watermark_ms: of the stream.
        reads: the source tables.
        late_version: of the table of late events; None: there is none.
        quarantine_version: of the events whose key a lookup did not have; None: they are not kept.
        not_kept: why there is neither; None: there is one of them.
        late: late events, and replayed ones, that no result counts yet.
        times: ranges of event time that hold all events of the results that they change.
    """

    table: str
    run: str
    epoch: int
    watermark_ms: int
    reads: tuple[SourceVersion, ...] = ()
    late_version: int | None = None
    quarantine_version: int | None = None
    not_kept: str | None = None
    late: int = 0
    times: tuple[tuple[int, int], ...] = ()

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing has to be computed; None: something has."""
        return self.not_kept or (None if self.late else "no late event is left to be counted")


def plan_repair(lake: Lake, definition: Definition, *, force: bool = False) -> tuple[Target, RepairPlan]:
    """What a repair will do; nothing is written, and no JVM is started.

    Args:
        lake: where.
        definition: of the pipeline.
        force: go on also where another program has changed the result.

    Raises:
        BackfillRefusedError: if the pipeline cannot be repaired.
    """
    target = Target(lake, definition, force=force)
    late = target.late()  # before the sources: each late event is in them
    plan = RepairPlan(
        pipeline=target.name,
        table=target.result,
        run=f"repair-{uuid.uuid4().hex[:12]}",
        epoch=target.epoch.number,
        watermark_ms=target.newest.watermark_ms,
    )
    if late is None:
        return target, plan.model_copy(update={"not_kept": _why_not_kept(target)})
    ready = late.unrepaired if target.operator.recomputation.no_repair else ready_of(target, late)
    versions = {"late_version": late.version, "quarantine_version": late.quarantine_version}
    plan = plan.model_copy(update={**versions, "late": ready.num_rows})
    if not plan.late:
        return target, plan
    target.refuse_late_events()
    times = times_of(target, ready, late.version)
    before, after = (duration_ms(each) * 1000 for each in target.operator.recomputation.reach)
    if not target.operator.lateness.in_windows:
        # Events further away decide about the rows at the edge.
        times = tuple((begin - before, end + after) for begin, end in times)
    whole = Range(min(begin for begin, _ in times), max(end for _, end in times))
    return target, plan.model_copy(update={"times": times, "reads": target.reads("corrected", whole)})


def _why_not_kept(target: Target) -> str:
    if target.pipeline.watermark is None:
        return "it has no watermark: no event is late for it"
    return (
        "it drops late events (Late.DROP): none is kept that could be counted after all. A backfill of a range counts "
        "all events that bronze has of it; Late.SIDE_OUTPUT keeps late ones"
    )


@dataclass(frozen=True)
class RepairsPlan:
    """What repairs of several pipelines will do, one after the other.

    Attributes:
        repairs: of those that have something to do, and of those that have not.
        notices: which pipelines are left out, and why.
        refused: pipelines that should be repaired and cannot be, each with why.
    """

    repairs: tuple[tuple[Target, RepairPlan], ...]
    notices: tuple[str, ...] = ()
    refused: tuple[tuple[str, BackfillRefusedError], ...] = ()

    @property
    def pipeline(self) -> str:
        """The names of the pipelines that are repaired, with commas."""
        return ", ".join(target.name for target, _ in self.planned)

    @property
    def planned(self) -> tuple[tuple[Target, RepairPlan], ...]:
        """The repairs that have something to do."""
        return tuple(each for each in self.repairs if not each[1].nothing_to_do)

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing has to be computed; None: something has."""
        return None if self.planned else "no late event is left to be counted"


def plan_repairs(lake: Lake, definitions: Sequence[Definition], *, force: bool = False) -> RepairsPlan:
    """What repairs will do; nothing is written. Of several, one that cannot be repaired does not hold up the others.

    Args:
        lake: where.
        definitions: of the pipelines.
        force: as `plan_repair`.

    Raises:
        BackfillRefusedError: if the only one cannot be repaired.
    """
    chosen, left_out = revisable(definitions)
    repairs, notices, refused = [], list(left_out), []
    for definition in chosen:
        try:
            repairs.append(plan_repair(lake, definition, force=force))
        except (NotComparableError, MissingTableError) as error:
            if len(definitions) == 1:
                raise
            notices.append(str(error))
        except BackfillRefusedError as error:
            if len(definitions) == 1:
                raise
            refused.append((definition.name, error))
    return RepairsPlan(tuple(repairs), tuple(notices), tuple(refused))


def ready_of(target: Target, late: LateEvents) -> pa.Table:
    """The events that nothing counts yet, and of which every row that they can change is closed."""
    unrepaired = late.unrepaired
    if target.operator.lateness.in_windows:
        return unrepaired
    return unrepaired.filter(
        pc.less(unrepaired["last_us"], target.operator.recomputation.first_open_us(target.newest.watermark_ms))
    )


def times_of(target: Target, ready: pa.Table, late_version: int | None) -> tuple[tuple[int, int], ...]:
    """Where the rows lie that events can change: the windows that they missed, or their neighbourhoods; those that
    touch drawn together."""
    if not target.operator.lateness.in_windows:
        return _drawn_together(sorted(_spans(ready, 1)))
    # The windows of an event that was replayed start in its span; the last of them ends so much later.
    replayed = ready.filter(pc.is_valid(ready["replayed_batch"]))
    windows = _spans(replayed, duration_ms(target.operator.recomputation.reach[1]) * 1000)
    if late_version is not None:
        windows += _missed_windows(target, late_version)
    return _drawn_together(sorted(windows))


def _spans(events: pa.Table, beyond_us: int) -> list[tuple[int, int]]:
    """From the first instant of each event to so much after the last."""
    both = zip(events["first_us"].to_pylist(), events["last_us"].to_pylist(), strict=True)
    return [(first, last + beyond_us) for first, last in both]


def _missed_windows(target: Target, version: int) -> list[tuple[int, int]]:
    """The windows that late events have missed, in one version of their table."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        late = open_table(target.lake, target.operator.output.late.name, version=version).to_pyarrow_dataset()
        connection.register("late", late)
        return connection.sql(
            "SELECT DISTINCT epoch_us(w.window_start), epoch_us(w.window_end) FROM "
            f"(SELECT unnest(missed_windows) AS w FROM late WHERE settled_version IS NULL AND "
            f"{target.epochs.rows}) ORDER BY ALL"
        ).fetchall()


def _drawn_together(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for begin, end in ranges:
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    while len(merged) > _MOST_RANGES:
        merged = [(left[0], right[1]) for left, right in zip(merged[::2], [*merged[1::2], merged[-1]], strict=False)]
    return tuple(merged)
