"""Measures over the events of a key in order of event time: a row for each event, or for each so many."""

from dataclasses import dataclass, replace
from datetime import timedelta

from spark_jobs.plan.columns import EVENT_ID, EVENTS
from spark_jobs.plan.equations import EVENTS_UNIT, Equation
from spark_jobs.plan.identity import event_columns
from spark_jobs.plan.lateness import EventTime
from spark_jobs.plan.operators.units import Rows
from spark_jobs.plan.operators.values import (
    Operator,
    Recomputation,
    State,
    accounting_of,
    output_of,
    rows_written,
    side_of,
    step_of,
)
from spark_jobs.spec import Counting, Pipeline, Running, Sliding
from spark_jobs.spec.durations import format_duration

ORDERED = "transformWithStateExec"
"""What Spark calls the operator in a query's progress."""

EVER = timedelta(days=100 * 365)
"""How far back the events reach that a running measure is made of."""


@dataclass(frozen=True)
class _Rows:
    """What tells one step from the others.

    Attributes:
        step: of the definition.
        description: in a line.
        reach: how far before a row events matter to it; None: that is not known, and no part can be computed again.
        repair_unit: what one late event can change, in words.
        no_repair: why late events cannot be counted after all; None: they can.
    """

    step: Sliding | Counting | Running
    description: str
    reach: timedelta | None
    repair_unit: str
    no_repair: str | None = None


def sliding(pipeline: Pipeline) -> Operator:
    """The operator of a `Sliding`."""
    step = step_of(pipeline, Sliding)
    size = format_duration(step.size)
    unit = f"its row, and those of its key in the {size} after it"
    return _in_order(pipeline, _Rows(step, f"measures over the {size} before each event", step.size, unit))


def running(pipeline: Pipeline) -> Operator:
    """The operator of a `Running`."""
    step = step_of(pipeline, Running)
    unit = "its row, and all of its key after it"
    why = "its state goes on without them, and so do all rows that are still to come"
    return _in_order(pipeline, _Rows(step, "running measures", EVER, unit, no_repair=why))


def counting(pipeline: Pipeline) -> Operator:
    """The operator of a `Counting`."""
    step = step_of(pipeline, Counting)
    unit = "all rows of its key after it"
    return _in_order(pipeline, _Rows(step, f"measures over each {step.size} events", None, unit))


def _in_order(pipeline: Pipeline, rows: _Rows) -> Operator:
    side, lateness, by = side_of(pipeline), EventTime(), rows.step.by
    times = (pipeline.event_time,) if pipeline.event_time else ()
    # By its identity: a copy of an event has its id.
    event = event_columns(several=side.several)
    output = output_of(pipeline, lateness, keys=(EVENT_ID,), row_keys=event, content=event, statistics=times)
    output = replace(output, gives_events=True)
    accounting = accounting_of(output, lateness, rows_written(output))
    whole = isinstance(rows.step, Counting)
    counted = Equation(EVENTS_UNIT, "on_time", ("counted",) if whole else ("rows", "withheld"), open="waiting")
    reach = rows.reach or timedelta(0)
    return Operator(
        kind="ordered",
        pipeline=pipeline,
        description=f"{rows.description} by {', '.join(by) or 'nothing'}",
        sides=(side,),
        lateness=lateness,
        horizon=(side.delay or timedelta(0)) + timedelta(milliseconds=1),
        state=State(
            operators=(ORDERED,),
            event_keys=by,
            keeps_events=True,
            packs_events=True,
            # Of a group that is not full yet, events have been passed by the watermark, and are in no row.
            open_in=("waiting", "kept") if whole else ("waiting",),
        ),
        output=output,
        accounting=replace(
            accounting,
            equations=(*accounting.equations, counted),
            result_terms={"counted": EVENTS} if whole else {},
        ),
        recomputation=Recomputation(
            # A row is final once the watermark has passed it.
            unit=Rows(),
            placed_by=times,
            repair_unit=rows.repair_unit,
            repair_keys=by,
            reach=(reach, timedelta(0)),
            touches=reach,
            impossible=None if rows.reach is not None else "each group begins where the one before it has ended",
            no_repair=rows.no_repair,
            reads_as_stream=True,
        ),
    )
