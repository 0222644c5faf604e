"""Two streams, put together by key and time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

from spark_jobs.plan.columns import EVENT_ID, INGEST_SEQ, OTHER, SIDE
from spark_jobs.plan.equations import Equation, Invariant
from spark_jobs.plan.identity import event_columns, same_event
from spark_jobs.plan.lateness import EventTime
from spark_jobs.plan.operators.ordered import ORDERED
from spark_jobs.plan.operators.units import Rows
from spark_jobs.plan.operators.values import (
    Accounting,
    Operator,
    Output,
    Recomputation,
    Side,
    State,
    accounting_of,
    output_of,
    rows_written,
    side_of,
    step_of,
)
from spark_jobs.spec import AsOf, Pipeline
from spark_jobs.spec.durations import format_duration
from spark_jobs.spec.steps.join import Join

LEFT, RIGHT, BOTH = "left", "right", "both"

_OUTER: dict[str, tuple[str, ...]] = {"inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}
"""How events are joined -> the sides of which events without a match are written."""


def joined(pipeline: Pipeline) -> Operator:
    """The operator of a `Join`: pairs of events of two sides."""
    step = step_of(pipeline, Join)
    if step.keep is not None:
        return _with_latest(pipeline, step, step.keep)
    sides, lateness = _sides(pipeline, step), EventTime()
    # Either side looks for the other: the longer of both distances at which events match.
    touches = max(step.within or timedelta(0), step.before)
    times = tuple(side.event_time for side in sides if side.event_time)
    left, right = sides
    # The events of both sides, by their identity: a copy has the same id.
    events = (*event_columns(several=left.several), *event_columns(several=right.several, prefix=OTHER))
    keys = (EVENT_ID, f"{OTHER}{EVENT_ID}")
    output = output_of(pipeline, lateness, keys=keys, row_keys=events, content=events, statistics=times)
    output = replace(output, gives_events=True)
    return Operator(
        kind="join",
        pipeline=pipeline,
        description=f"{step.how} join with {step.other.name} on {', '.join(step.on)} by time",
        sides=sides,
        lateness=lateness,
        # An event waits so long for the other side.
        horizon=max(side.delay or timedelta(0) for side in sides) + touches + timedelta(milliseconds=1),
        state=State(
            operators=("symmetricHashJoin",),
            event_keys=step.on,
            stores={f"{side}_state_rows": f"{side}-keyWithIndexToValue" for side in (LEFT, RIGHT)},
            keeps_events=True,
        ),
        output=output,
        accounting=_accounting(output, sides, _OUTER[step.how]),
        recomputation=Recomputation(
            unit=Rows(touches),
            # Where its left event happened; without one, its right event.
            placed_by=times,
            repair_unit="the rows of its key within reach, those without a match included",
            repair_keys=step.on,
            reach=(touches, touches),
            touches=touches,
            # Each event of the result is one that the ledger counts, on time or late.
            reads_as_stream=True,
        ),
    )


def _with_latest(pipeline: Pipeline, step: Join, keep: timedelta) -> Operator:
    """The operator of a `Join` with `keep`: each event of either side, with the latest one of the other."""
    # A row lies where its left event does, and is given when its newer one has passed: up to `keep` later.
    return _latest(
        pipeline,
        step,
        description=f"{step.how} join with the latest of {step.other.name} on {', '.join(step.on)}",
        keep=keep,
        outer=_OUTER[step.how],
        both_ask=True,
    )


def as_of(pipeline: Pipeline) -> Operator:
    """The operator of an `AsOf`: each event with the version that held at its time."""
    step = step_of(pipeline, AsOf)
    return _latest(
        pipeline,
        step,
        description=f"version of {step.other.name} on {', '.join(step.on)} as of each event",
        keep=step.keep,
        outer=_OUTER[step.how],
        both_ask=False,
    )


def _latest(
    pipeline: Pipeline, step: Join | AsOf, *, description: str, keep: timedelta, outer: tuple[str, ...], both_ask: bool
) -> Operator:
    sides, lateness = _sides(pipeline, step), EventTime()
    left, right = sides
    times = tuple(side.event_time for side in sides if side.event_time)
    own, theirs = event_columns(several=left.several), event_columns(several=right.several, prefix=OTHER)
    keys = (EVENT_ID, f"{OTHER}{EVENT_ID}") if both_ask else (EVENT_ID,)
    output = output_of(
        pipeline,
        lateness,
        keys=keys,
        row_keys=(*own, *theirs) if both_ask else own,
        content=(*own, *theirs),
        statistics=times,
    )
    output = replace(output, gives_events=True)
    accounting = _accounting(output, sides, outer, named_sides=sides if both_ask else (left,))
    nothing = timedelta(0)
    return Operator(
        kind="latest",
        pipeline=pipeline,
        description=f"{description}, up to {format_duration(keep)} old",
        sides=sides,
        lateness=lateness,
        horizon=max(side.delay or nothing for side in sides) + timedelta(milliseconds=1),
        state=State(operators=(ORDERED,), event_keys=step.on, keeps_events=True, packs_events=True),
        output=output,
        accounting=accounting,
        recomputation=Recomputation(
            unit=Rows(keep if both_ask else nothing),
            # Where its left event happened; without one, its right event.
            placed_by=times,
            repair_unit="the rows of its key that it may be the latest of",
            repair_keys=step.on,
            reach=(keep, keep if both_ask else nothing),
            touches=keep,
            # Each event of the result is one that the ledger counts, on time or late.
            reads_as_stream=True,
        ),
    )


def _sides(pipeline: Pipeline, step: Join | AsOf) -> tuple[Side, Side]:
    """The pipeline's own tables, and the other one."""
    left = replace(side_of(pipeline), name=LEFT)
    grace = pipeline.watermark.grace if pipeline.watermark else timedelta(0)
    delay = left.delay if step.delay is None else step.delay + grace
    return left, Side(RIGHT, (step.other,), step.event_time, delay, ())


def _accounting(
    output: Output, sides: tuple[Side, Side], outer: tuple[str, ...], *, named_sides: Sequence[Side] | None = None
) -> Accounting:
    """By fate, of both sides together and of each; each row is a match, or an event without one."""
    fates = ("on_time", "late", "filtered", "unmatched", "quarantined", "timeless")
    by_side = (
        Equation(f"{side.name} events", f"{side.name}_read", tuple(f"{side.name}_{fate}" for fate in fates))
        for side in sides
    )
    rows = Equation("rows", "produced", ("matches", *(f"{side}_alone" for side in outer)))
    terms = {"matches": f"CASE WHEN {SIDE} = '{BOTH}' THEN 1 END"}
    terms |= {f"{side}_alone": f"CASE WHEN {SIDE} = '{side}' THEN 1 END" for side in outer}
    accounting = accounting_of(
        output, EventTime(), rows_written(output), *_events_of_sides(output, sides, outer, named_sides)
    )
    return replace(accounting, equations=(*accounting.equations, *by_side, rows), result_terms=terms)


def _events_of_sides(
    output: Output, sides: tuple[Side, Side], outer: tuple[str, ...], named: Sequence[Side] | None
) -> Iterator[Invariant]:
    """Each event of a side is in the result, waits for the other side, or has waited in vain unseen."""
    for each, prefix in zip(sides, ("", OTHER), strict=True):
        # By its identity: a copy of an event has its id, and is an event.
        if named is not None and each not in named:
            continue  # its events stand beside those of the other side, once or often or never
        side, event = each.name, event_columns(several=each.several, prefix=prefix)
        rest = f"{side}_open" if side in outer and not output.withholds else f"{side}_open_or_not_written"
        where = f"{prefix}{INGEST_SEQ} IS NOT NULL"
        aside = output.sets_aside and side == LEFT
        if output.keeps_late or aside:
            where += (
                f" AND NOT EXISTS (SELECT 1 FROM late WHERE late.{SIDE} = '{side}' AND {_same_event(each, prefix)})"
            )
        yield Invariant(
            f"{side} events",
            output.result,
            f"count(DISTINCT ({', '.join(event)}))",
            (f"{side}_on_time",),
            "on time",
            where=where,
            whole_table=True,
            open=rest,
            late=output.late if output.keeps_late else None,
            replayed=output.quarantine if aside else None,
        )


def _same_event(side: Side, prefix: str) -> str:
    """Whether a row of `late` is of the event that a row of `books`, the result, has of a side."""
    return same_event(lambda name: f"late.{name}", lambda name: f"books.{prefix}{name}", several=side.several)
