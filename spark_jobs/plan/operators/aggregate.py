"""Groups by window and key, or by key alone."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from spark_jobs.plan.columns import EVENTS, FATE, WINDOW_END, WINDOW_START
from spark_jobs.plan.equations import EVENTS_UNIT, PAIRS_UNIT, Equation, Invariant
from spark_jobs.plan.lateness import LatenessRule, Never, WindowEnd
from spark_jobs.plan.operators.units import Totals, Windows
from spark_jobs.plan.operators.values import (
    Accounting,
    Operator,
    Output,
    Recomputation,
    State,
    accounting_of,
    output_of,
    rows_written,
    side_of,
    step_of,
)
from spark_jobs.plan.windowing import Windowing, windowing_of
from spark_jobs.spec import Aggregate, Pipeline


def grouped(pipeline: Pipeline) -> Operator:
    """The operator of an `Aggregate`: groups by window and key."""
    step = step_of(pipeline, Aggregate)
    windows = windowing_of(step.window) if step.window is not None else None
    lateness: LatenessRule = WindowEnd(windows) if windows is not None else Never()
    output = replace(
        _output(pipeline, step, lateness),
        rows_per_event=windows.most_per_event if windows is not None else 1,
        # A window is in its result once it is closed.
        from_state=pipeline.sink.mode != "update",
    )
    horizon = timedelta(0)
    if windows is not None and pipeline.watermark is not None:
        horizon = pipeline.watermark.engine_delay + windows.longest
    name = windows.name if windows is not None else "running total"
    return Operator(
        kind="aggregate",
        pipeline=pipeline,
        description=f"{name} by {', '.join(step.by) or 'nothing'}",
        sides=(side_of(pipeline),),
        lateness=lateness,
        horizon=horizon,
        state=State(
            operators=windows.state_operators if windows is not None else ("stateStoreSave",),
            event_keys=step.by,
            # `__events` is the last aggregate.
            counts_events=True,
            gap_of_event=windows.gap_of_event if windows is not None else None,
            in_one_partition=windows is None and not step.by,
        ),
        output=output,
        accounting=_accounting(output, lateness, has_windows=windows is not None),
        recomputation=_recomputation(pipeline, step, windows),
    )


def _output(pipeline: Pipeline, step: Aggregate, lateness: LatenessRule) -> Output:
    bounds = (WINDOW_START, WINDOW_END) if step.window is not None else ()
    keys = (*bounds, *step.by)
    output = output_of(pipeline, lateness, keys=keys, row_keys=keys, content=(*keys, EVENTS), statistics=bounds)
    # A ranking, and a choice, change with groups that did not.
    picks = output.updates and (pipeline.top_n is not None or output.withholds)
    return replace(output, measures=step.measures, keeps_groups=picks)


def _accounting(output: Output, lateness: LatenessRule, *, has_windows: bool) -> Accounting:
    """By fate; by pairs as results become final, or by what results that are updated have of them."""
    if not output.updates:
        accounting = accounting_of(output, lateness, rows_written(output))
        parts = ("pairs_result", *(("pairs_withheld",) if output.withholds else ()), "pairs_late")
        pairs = Equation(PAIRS_UNIT, "pairs", parts, open="pairs_open", in_state=True)
        return replace(accounting, equations=(*accounting.equations, pairs), result_terms=_result_terms(output))
    # Results that are updated hold all that was counted, so that no batch tells what became final in it.
    measure = f"sum({EVENTS})"
    if has_windows:
        plus, said = ("pairs", "pairs_revised"), "read and not late"
        counted = Invariant(PAIRS_UNIT, output.groups, measure, plus, said, minus=("pairs_late",), whole_table=True)
    else:
        counted = Invariant(EVENTS_UNIT, output.groups, measure, ("on_time",), "on time", whole_table=True)
    accounting = accounting_of(output, lateness, counted)
    return replace(accounting, open_in_result=(measure, output.groups, has_windows))


def _result_terms(output: Output) -> Mapping[str, str]:
    withheld = {"pairs_withheld": f"CASE WHEN {FATE} IS NOT NULL THEN {EVENTS} END"}
    kept = {"pairs_result": f"CASE WHEN {FATE} IS NULL THEN {EVENTS} END"}
    return kept | withheld if output.withholds else kept


def _recomputation(pipeline: Pipeline, step: Aggregate, windows: Windowing | None) -> Recomputation:
    if windows is None:
        return Recomputation(Totals(), (), "the row of its key", step.by, by_key=pipeline.top_n is None)
    ranks = pipeline.top_n is not None
    return Recomputation(
        unit=Windows(windows),
        placed_by=(WINDOW_START,),
        repair_unit="the whole window" if ranks and not windows.merging else windows.repair_unit,
        repair_keys=step.by,
        reach=windows.reach,
        # A ranking changes with every group of its window.
        by_key=not ranks,
    )
