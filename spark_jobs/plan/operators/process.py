"""A step of one's own: rows that a processor gives."""

from dataclasses import replace
from datetime import timedelta

from spark_jobs.plan.columns import EVENTS, ROW
from spark_jobs.plan.equations import EVENTS_UNIT, Equation
from spark_jobs.plan.lateness import EventTime, LatenessRule, Never
from spark_jobs.plan.operators.ordered import EVER
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
from spark_jobs.spec import Pipeline, Process

PROCESSED = "transformWithStateInPandasExec"
"""What Spark calls the operator in a query's progress."""


def processed(pipeline: Pipeline) -> Operator:
    """The operator of a `Process`."""
    step, side = step_of(pipeline, Process), side_of(pipeline)
    lateness: LatenessRule = EventTime() if step.clock == "event_time" else Never()
    times = (pipeline.event_time,) if pipeline.event_time else ()
    keys = (*step.by, *times, ROW)
    output = output_of(pipeline, lateness, keys=keys, row_keys=keys, content=(*keys, EVENTS), statistics=times)
    accounting = accounting_of(output, lateness, rows_written(output))
    counted = Equation(EVENTS_UNIT, "on_time", ("counted",), open="remembered")
    in_order = step.order == "event_time"
    return Operator(
        kind="process",
        pipeline=pipeline,
        description=f"processor {step.processor} by {', '.join(step.by)}",
        sides=(side,),
        lateness=lateness,
        horizon=(side.delay or timedelta(0)) + timedelta(milliseconds=1),
        state=State(
            operators=(PROCESSED,),
            event_keys=step.by,
            keeps_events=True,
            packs_events=True,
            by_name=True,
            by_clock=step.clock == "processing_time",
        ),
        output=output,
        accounting=replace(
            accounting,
            equations=(*accounting.equations, counted),
            result_terms={"counted": EVENTS},
        ),
        recomputation=Recomputation(
            # A row is final once the watermark has passed it.
            unit=Rows(),
            placed_by=times,
            repair_unit="its key, from its time on",
            repair_keys=step.by,
            # A key that is not forgotten remembers its first event.
            reach=(EVER, timedelta(0)),
            touches=EVER,
            impossible=None if in_order else "its events were taken in the order in which batches have read them",
            no_repair="its state goes on without them, and so do all rows that are still to come",
            reads_as_stream=True,
        ),
    )
