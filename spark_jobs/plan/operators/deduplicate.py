"""The first event of each key; alone, or before groups."""

from dataclasses import replace

from spark_jobs.plan.columns import EVENT_ID
from spark_jobs.plan.equations import EVENTS_UNIT, PAIRS_UNIT, Equation
from spark_jobs.plan.lateness import EventTime
from spark_jobs.plan.operators.aggregate import grouped
from spark_jobs.plan.operators.stateless import stateless
from spark_jobs.plan.operators.units import Rows
from spark_jobs.plan.operators.values import (
    Accounting,
    Operator,
    Output,
    Recomputation,
    accounting_of,
    keeps_late,
    rows_written,
    step_of,
)
from spark_jobs.plan.windowing import windowing_of
from spark_jobs.spec import Aggregate, Pipeline
from spark_jobs.spec.steps.deduplicate import Deduplicate


def deduplicated(pipeline: Pipeline) -> Operator:
    """A `Deduplicate`.

    What it lets through is a result by itself, or goes on to the groups of an `Aggregate`. Spark asks of every event
    that meets the first of its operators whether it is late, so that only this one decides.
    """
    return _before_groups(pipeline) if len(pipeline.stateful_steps) > 1 else _alone(pipeline)


def _description(step: Deduplicate) -> str:
    return f"first event of each {', '.join('event id' if key == EVENT_ID else key for key in step.keys)}"


def _alone(pipeline: Pipeline) -> Operator:
    """As without it, but for what its state decides."""
    step, lateness, inner = step_of(pipeline, Deduplicate), EventTime(), stateless(pipeline)
    output = replace(
        inner.output,
        # Of two first events in one batch Spark takes any one.
        content=step.keys,
        gives_events=True,
        keeps_late=keeps_late(pipeline, lateness),
    )
    accounting = accounting_of(output, lateness, rows_written(output, "let through"))
    # Each event that is let through is in a row.
    let_through = Equation(EVENTS_UNIT, "on_time", ("rows", "withheld"))
    return replace(
        inner,
        kind="deduplicate",
        description=_description(step),
        lateness=lateness,
        state=replace(inner.state, operators=("dedupeWithinWatermark",)),
        output=output,
        accounting=replace(accounting, equations=(*accounting.equations, let_through), duplicates=True),
        recomputation=replace(
            _recomputation(pipeline, step, "the row of its key"),
            # A key that is remembered removes all events in time, however far they lie from the first.
            follows_result=True,
            reads_as_stream=True,
        ),
    )


def _before_groups(pipeline: Pipeline) -> Operator:
    """As the groups, but for what is late, and what goes on to them."""
    step, lateness, inner = step_of(pipeline, Deduplicate), EventTime(), grouped(pipeline)
    # A running total alone has no late events.
    output = replace(inner.output, keeps_late=keeps_late(pipeline, lateness))
    return replace(
        inner,
        kind="deduplicate",
        description=f"{_description(step)}, then {inner.description}",
        lateness=lateness,
        state=replace(inner.state, operators=("dedupeWithinWatermark", *inner.state.operators), counts_events=False),
        output=output,
        accounting=_of_groups(pipeline, inner, output),
        # Which events have gone on to groups is recorded nowhere.
        recomputation=replace(
            _recomputation(pipeline, step, inner.recomputation.repair_unit),
            impossible="which events have gone on to the groups is recorded nowhere",
        ),
    )


def _of_groups(pipeline: Pipeline, inner: Operator, output: Output) -> Accounting:
    """Pairs are those of the events that are let through; late events are counted as such."""
    window = step_of(pipeline, Aggregate).window
    pairs = (
        replace(each, parts=tuple(part for part in each.parts if part != "pairs_late"), in_state=False)
        for each in inner.accounting.equations
        if each.unit == PAIRS_UNIT
    )
    own = (each for each in inner.accounting.invariants if each.table.role not in ("late", "quarantine"))
    accounting = accounting_of(output, EventTime(), *own)
    return replace(
        accounting,
        equations=(*accounting.equations, *pairs),
        result_terms=inner.accounting.result_terms,
        open_in_result=inner.accounting.open_in_result,
        duplicates=True,
        pairs_of_first=(windowing_of(window).per_event or 1) if window is not None else None,
    )


def _recomputation(pipeline: Pipeline, step: Deduplicate, repair_unit: str) -> Recomputation:
    return Recomputation(
        unit=Rows(step.within),
        placed_by=(pipeline.event_time,) if pipeline.event_time else (),
        repair_unit=repair_unit,
        repair_keys=step.keys,
        # Of a late event: what it may be a duplicate of. What the stream remembered, its batches tell.
        reach=(step.within, step.within),
        # The key is remembered so long: an event in time that is not here yet can be the same.
        touches=step.within,
    )
