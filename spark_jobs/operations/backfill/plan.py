"""What a backfill will do, as a value; made from logs and statistics, without a JVM."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

import duckdb
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.repaired import LateEvents
from spark_jobs.lake.commit_records.revisions import Mode, Revision, revisions
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.operations.choosing import revisable
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.plan.columns import WINDOW_END, WINDOW_START
from spark_jobs.recompute.ranges import FIRST_US, Range, RangeError, shown, us
from spark_jobs.recompute.target import SourceVersion, Target
from spark_jobs.spec import Definition
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.names import first_of, in_duckdb

_BYTES_A_SLICE = 4 * 2**30


class Slice(BaseModel):
    """A part of a range that is computed and committed at once.

    Attributes:
        number: from 0.
        begin_us: of the rows that are replaced; microseconds since 1970.
        end_us: up to it.
        nothing_to_do: why nothing has to be computed; None: it has to.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    begin_us: int
    end_us: int
    nothing_to_do: str | None = None


class BackfillPlan(OperationPlan):
    """What a backfill will do.

    Attributes:
        table: its result.
        run: of the commits that it will make.
        mode: which events count.
        begin_us: of the range that was asked for.
        end_us: of it.
        slices: parts of what is closed of it, in order; none where nothing is.
        epoch: of the checkpoint whose results are replaced.
        watermark_ms: of the stream: only rows that it has closed are touched.
        reads: the source tables.
        late_version: of the table of late events; None: there is none.
        quarantine_version: of the events whose key a lookup did not have; None: they are not kept.
        late: late events in the range, and such as were replayed.
        unrepaired: of these, such as no result counts.
        conflicts: changes of the result by other programs, which `force` replaces.
        kind: what its commits call themselves.
    """

    table: str
    run: str
    mode: Mode
    begin_us: int
    end_us: int
    slices: tuple[Slice, ...]
    epoch: int
    watermark_ms: int
    reads: tuple[SourceVersion, ...]
    late_version: int | None
    quarantine_version: int | None = None
    late: int
    unrepaired: int
    conflicts: tuple[str, ...] = ()
    kind: Literal["backfill", "bootstrap"] = "backfill"

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing has to be computed; None: something has."""
        if not self.slices:
            return "no result of the range is closed yet"
        if all(each.nothing_to_do for each in self.slices):
            return self.slices[0].nothing_to_do
        return None


def plan_backfill(
    lake: Lake,
    definition: Definition,
    begin: datetime | None,
    end: datetime,
    *,
    mode: Mode = "corrected",
    strict: bool = False,
    force: bool = False,
    allow_empty: bool = False,
) -> tuple[Target, BackfillPlan]:
    """What a backfill of a range will do; nothing is written.

    Args:
        lake: where.
        definition: of the pipeline.
        begin: of the range: rows that are placed at or after it (windows by their start); None: of all.
        end: up to it.
        mode: `corrected`: late events count; `as-streamed`: the rows that the stream wrote.
        strict: refuse a range that reaches into what is still open, which is otherwise cut.
        force: compute again also where nothing seems to have changed, or another program has changed the table.
        allow_empty: a range before the first event, or all of which is open yet, has nothing to do, instead of being
            refused.

    Raises:
        RangeError: if nothing of the range can be computed.
        BackfillRefusedError: if the pipeline cannot be backfilled so.
    """
    asked = Range.between(begin, end) if begin is not None else None
    target = Target(lake, definition, force=force)
    asked = asked or target.all_upto(us(end))
    operator, notices = target.operator, []
    _refuse_mode(target, mode)
    now_us = us(datetime.now(UTC))
    if asked.begin_us >= now_us:
        raise RangeError(f"range {asked}: it lies in the future. Nothing was read or written.")
    late = target.late()  # before the sources: each late event is in them
    open_us = operator.recomputation.first_open_us(target.newest.watermark_ms)
    closed = Range(asked.begin_us, min(asked.end_us, open_us)) if open_us > asked.begin_us else None
    if closed is None or closed.end_us < asked.end_us:
        cut = f"results from {shown(max(open_us, asked.begin_us))} on are still open in the stream"
        if strict or (closed is None and not allow_empty):
            raise RangeError(
                f"range {asked}: {cut}. Nothing was read or written. "
                + ("Ask for a range that ends there." if closed else "Wait until the watermark has passed it.")
            )
        notices.append(f"{cut}: the range ends there" if closed else f"{cut}: the stream writes them itself")
    if closed is None:
        return target, _plan(target, mode, asked, notices=tuple(notices))
    before, after = operator.recomputation.reach
    times = Range(closed.begin_us - duration_ms(before) * 1000, closed.end_us + duration_ms(after) * 1000)
    reads = target.reads(mode, times)
    if not allow_empty:
        _refuse_before_first_event(target, mode, reads, times)
    parts = in_slices(closed, sum(read.bytes for read in reads))
    inside = None if late is None else late.within(closed.begin_us, closed.end_us)
    # One that died between the two tables has revised the groups alone.
    histories = [
        [each for _, each in revisions(lake, name, target.name, target.epoch.number)]
        for name in dict.fromkeys((operator.output.groups.name, target.result))
    ]

    def nothing_to_do(part: Range) -> str | None:
        reasons = [_nothing_to_do(target, mode, part, late, revised) for revised in histories]
        return reasons[0] if not force and all(reasons) else None

    slices = [
        Slice(
            number=number,
            begin_us=part.begin_us,
            end_us=part.end_us,
            nothing_to_do=nothing_to_do(part),
        )
        for number, part in enumerate(parts)
    ]
    return target, _plan(
        target,
        mode,
        asked,
        slices=tuple(slices),
        notices=tuple(notices),
        reads=reads,
        late_version=late.version if late else None,
        quarantine_version=late.quarantine_version if late else None,
        late=inside.num_rows if inside is not None else 0,
        unrepaired=inside.num_rows - pc.sum(inside["repaired"]).as_py()
        if inside is not None and inside.num_rows
        else 0,
    )


@dataclass(frozen=True)
class BackfillsPlan:
    """What backfills of several pipelines will do, one after the other.

    Attributes:
        backfills: in the order in which the pipelines were named.
        notices: which pipelines are left out, and why.
    """

    backfills: tuple[tuple[Target, BackfillPlan], ...]
    notices: tuple[str, ...] = ()

    @property
    def pipeline(self) -> str:
        """The names of the pipelines, with commas."""
        return ", ".join(plan.pipeline for _, plan in self.backfills)

    @property
    def planned(self) -> tuple[tuple[Target, BackfillPlan], ...]:
        """The backfills that have something to do."""
        return tuple(each for each in self.backfills if not each[1].nothing_to_do)

    @property
    def nothing_to_do(self) -> str | None:
        """Why nothing has to be computed; None: something has."""
        return None if self.planned else next(plan.nothing_to_do for _, plan in self.backfills)


def plan_backfills(
    lake: Lake, definitions: Sequence[Definition], begin: datetime, end: datetime, **options: Any
) -> BackfillsPlan:
    """What backfills of one range will do; nothing is written.

    Args:
        lake: where.
        definitions: of the pipelines.
        begin: as `plan_backfill`.
        end: as `plan_backfill`.
        options: as `plan_backfill`.

    Raises:
        RangeError: if nothing of the range can be computed of one of them.
        BackfillRefusedError: if one of them cannot be backfilled so.
    """
    chosen, left_out = revisable(definitions)
    return BackfillsPlan(tuple(plan_backfill(lake, each, begin, end, **options) for each in chosen), left_out)


def _plan(target: Target, mode: Mode, asked: Range, **known: Any) -> BackfillPlan:
    nothing = {"slices": (), "reads": (), "late_version": None, "late": 0, "unrepaired": 0}
    return BackfillPlan(
        pipeline=target.name,
        table=target.result,
        run=f"backfill-{uuid.uuid4().hex[:12]}",
        mode=mode,
        begin_us=asked.begin_us,
        end_us=asked.end_us,
        epoch=target.epoch.number,
        watermark_ms=target.newest.watermark_ms,
        conflicts=target.conflicts,
        **{**nothing, **known},
    )


def rows_to_compare(target: Target, plan: BackfillPlan) -> tuple[int, int | None]:
    """Rows of the result in the slices that something is to be done in, and their windows; None: it has none."""
    placed = f"epoch_us({first_of(target.operator.recomputation.placed_by, in_duckdb)})"
    inside = " OR ".join(
        f"({placed} >= {part.begin_us} AND {placed} < {part.end_us})" for part in plan.slices if not part.nothing_to_do
    )
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("result", open_table(target.lake, target.result).to_pyarrow_dataset())
        windows = f"count(DISTINCT ({WINDOW_START}, {WINDOW_END}))" if target.operator.lateness.in_windows else "NULL"
        found = connection.execute(f"SELECT count(*), {windows} FROM result WHERE {inside or 'false'}").fetchone()
    rows, distinct = found or (0, None)
    return int(rows), None if distinct is None else int(distinct)


def _refuse_mode(target: Target, mode: Mode) -> None:
    if mode == "corrected":
        target.refuse_late_events("A backfill `--as-streamed` gives back the rows that the stream wrote.")
        return
    watermark = target.pipeline.watermark
    if watermark is not None and target.logical.table("late") is None:
        raise target._refuse(
            "it drops late events (Late.DROP), so that nothing tells which of them the stream has counted",
            "A backfill `corrected` counts all of them.",
        )


def _refuse_before_first_event(target: Target, mode: Mode, reads: Sequence[SourceVersion], times: Range) -> None:
    """A range without events that has some before it is a quiet day, and no mistake."""
    if any(read.rows != 0 for read in reads):
        return
    if all(read.rows == 0 for read in target.reads(mode, Range(FIRST_US, times.begin_us))):
        sources = ", ".join(read.table for read in reads)
        raise RangeError(
            f"range: {sources} has no event from {shown(times.begin_us)} to {shown(times.end_us)}. Nothing was written."
        )


def in_slices(closed: Range, size: int) -> list[Range]:
    """Parts of equal length that begin where windows do, so that each is read and committed in one piece."""
    count = min(-(-size // _BYTES_A_SLICE) or 1, 1_000)
    if count == 1:
        return [closed]
    step = -(-(closed.end_us - closed.begin_us) // count)
    edges = [closed.begin_us, *range(closed.begin_us + step, closed.end_us, step), closed.end_us]
    return [Range(low, high) for low, high in pairwise(edges)]


def _nothing_to_do(
    target: Target, mode: Mode, part: Range, late: LateEvents | None, revised: Sequence[Revision]
) -> str | None:
    """Why the rows of a part are what they should be; None: they may not be."""
    overlapping = [
        each
        for each in revised
        if target.operator.recomputation.unit.merging
        or each.begin_us is None
        or each.end_us is None
        or (each.begin_us < part.end_us and each.end_us > part.begin_us)
    ]
    if mode == "as-streamed":
        newest = overlapping[-1] if overlapping else None
        covers = newest is not None and newest.begin_us is not None and newest.end_us is not None
        if newest is None:
            return "no repair and no backfill has revised it"
        if (
            newest.mode == "as-streamed"
            and covers
            and (newest.begin_us or 0) <= part.begin_us
            and part.end_us <= (newest.end_us or 0)
        ):
            return "the newest backfill of it was as-streamed"
        return None
    if late is None:
        return None
    # What lies beside the part may belong to a row that begins in it.
    inside = late.events if target.operator.recomputation.unit.merging else late.within(part.begin_us, part.end_us)
    repaired = pc.sum(inside["repaired"]).as_py() if inside.num_rows else 0
    return None if inside.num_rows - (repaired or 0) else "no late event of it is left to be counted"
