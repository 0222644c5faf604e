"""The ledger row of a batch of a pipeline, and the sums that it must satisfy before anything is written."""

from collections.abc import Callable, Mapping

from spark_jobs.lake.accounting.ledger import LedgerEntry, named
from spark_jobs.lake.errors import LedgerError
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.plan.operators import Operator
from spark_jobs.spark.progress import StateFigures


def terms_of(
    plan: LogicalPlan,
    operator: Operator,
    counted: Mapping[str, int],
    kept: Mapping[str, int],
    state: StateFigures,
    rows_by_store: Callable[[], Mapping[str, int]],
) -> dict[str, int]:
    """The terms of a batch's ledger row.

    Args:
        plan: of the pipeline.
        operator: of it.
        counted: over all events.
        kept: over result rows and over late ones.
        state: what Spark tells of its state.
        rows_by_store: asks for the rows of each store of it.
    """
    terms = dict(operator.accounting.of_batch(counted, state.duplicates))
    terms |= {name: kept[name] for name in operator.accounting.result_terms}
    terms["rows"] = kept["rows"] - kept["withheld"]
    if any(equation.whole == "produced" for equation in plan.equations):
        terms["produced"] = kept["rows"]
    if kept["withheld"]:
        terms["withheld"] = kept["withheld"]
    if operator.lateness.in_windows:
        terms["pairs_late"] = kept["pairs_late"]
    if operator.state.operators:
        terms["state_rows"] = state.rows
    if operator.state.stores:
        by_store = rows_by_store()
        by_kind = {term: by_store.get(store, 0) for term, store in operator.state.stores.items()}
        # On a cluster the stores lie in other processes.
        terms |= by_kind if sum(by_kind.values()) == state.rows else {}
    return terms


def refuse_imbalance(
    plan: LogicalPlan, operator: Operator, entry: LedgerEntry, kept: Mapping[str, int], state: StateFigures
) -> None:
    """Refuses a batch whose figures contradict each other.

    Args:
        plan: of the pipeline.
        operator: of it.
        entry: of the batch.
        kept: over result rows and over late ones.
        state: what Spark tells of its state.

    Raises:
        LedgerError: if they do.
    """
    name = plan.definition.name
    if entry.late_events != kept["late_events"]:
        raise LedgerError(
            f"pipeline `{name}`: {entry.late_events} events are late by the count over all, "
            f"but {kept['late_events']} were kept. Nothing of this batch was written; the stream has stopped."
        )
    missed = kept["pairs_late"]
    if operator.lateness.counts_groups:
        fits = (state.dropped == 0) == (missed == 0) and state.dropped <= missed
    else:
        fits = state.dropped == entry.late_events
    if not fits:
        raise disagreement(name, state.dropped, f"{missed} that are late")
    for equation in plan.equations:
        if equation.open is None and entry[equation.whole] != (found := sum(entry[p] for p in equation.parts)):
            raise LedgerError(
                f"pipeline `{name}`: {named(equation.whole)} {entry[equation.whole]} {equation.unit}, "
                f"accounts for {found}. Nothing of this batch was written; the stream has stopped."
            )


def with_source_rows(pipeline: str, entry: LedgerEntry, found: int | None) -> LedgerEntry:
    """The entry with the rows of its sources.

    Args:
        pipeline: its name.
        entry: of the batch.
        found: what the logs of its sources hold between its offsets; None: they do not tell.

    Raises:
        LedgerError: if the batch has not read just that.
    """
    read = entry["read"] + entry["heartbeats"]
    if found is not None and found != read:
        raise LedgerError(
            f"pipeline `{pipeline}`: a batch has read {read} rows, but the logs of its sources hold {found} "
            "between its offsets. Nothing of it was written; the stream has stopped."
        )
    return entry.with_terms(source_rows=found)


def disagreement(pipeline: str, dropped: int, ours: str) -> LedgerError:
    """That Spark and the late split do not agree.

    Args:
        pipeline: its name.
        dropped: groups that Spark has dropped.
        ours: what the late split finds, in words.
    """
    return LedgerError(
        f"pipeline `{pipeline}`: Spark dropped {dropped} late groups, the late split finds {ours}. Nothing of this "
        "batch was written; the stream has stopped."
    )
