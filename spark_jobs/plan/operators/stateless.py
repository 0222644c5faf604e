"""No step that remembers events: each row of the result is one event."""

from dataclasses import replace
from datetime import timedelta

from spark_jobs.plan.columns import EVENT_ID
from spark_jobs.plan.equations import EVENTS_UNIT, Equation
from spark_jobs.plan.identity import event_columns
from spark_jobs.plan.lateness import Never
from spark_jobs.plan.operators.units import FinalRows
from spark_jobs.plan.operators.values import (
    Operator,
    Recomputation,
    State,
    accounting_of,
    output_of,
    rows_written,
    side_of,
)
from spark_jobs.spec import Pipeline


def stateless(pipeline: Pipeline) -> Operator:
    """Only steps that look at one event each."""
    side, lateness = side_of(pipeline), Never()
    placed_by = (pipeline.event_time,) if pipeline.event_time else ()
    # By its identity: a copy of an event has its id.
    event = event_columns(several=side.several)
    output = output_of(pipeline, lateness, keys=(EVENT_ID,), row_keys=event, content=event, statistics=placed_by)
    output = replace(output, rows_per_event=1)
    accounting = accounting_of(output, lateness, rows_written(output))
    return Operator(
        kind="stateless",
        pipeline=pipeline,
        description="a row for each event that passes",
        sides=(side,),
        lateness=lateness,
        horizon=timedelta(0),
        state=State(),
        output=output,
        accounting=replace(accounting, equations=(*accounting.equations, Equation(EVENTS_UNIT, "on_time", ("rows",)))),
        recomputation=Recomputation(
            unit=FinalRows(),
            placed_by=placed_by,
            # Of an event that is looked up again: none is late.
            repair_unit="the row of the event" if output.sets_aside else "nothing: no event is late",
            repair_keys=output.keys,
        ),
    )
