"""Events that a pipeline has set aside, in their steps again: those that go on by now are counted after all.

A table did not have their key in their batch, and has it by now; or their batch was skipped, and nothing fails at them
any more.

The stream does not see them a second time. A row of the quarantine is marked, in one commit, with the batch as which
the event counts from then on; a repair counts it like a late event, and says so beside it (docs/decisions/0025).
"""

import uuid

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.lake.accounting.repaired import mark_replayed
from spark_jobs.lake.commit_records.history import latest_version
from spark_jobs.lake.tables.decisions import note
from spark_jobs.operations.repair.execute import carry_out as count_after_all
from spark_jobs.operations.repair.plan import plan_repair
from spark_jobs.operations.replay import skipped
from spark_jobs.operations.replay.lookup_plan import LookupPlan
from spark_jobs.operations.replay.outcome import LookupOutcome
from spark_jobs.operations.replay.text import looked_up_text
from spark_jobs.operations.reports import BatchReport
from spark_jobs.operations.shape import Say
from spark_jobs.plan.columns import FATE, VERSION_RANGE
from spark_jobs.plan.identity import IDENTITY
from spark_jobs.recompute.frames import Recompute
from spark_jobs.recompute.lookup_frames import lookup_frames
from spark_jobs.recompute.lookup_versions import range_of_batch, refuse_lost_versions
from spark_jobs.recompute.set_aside import as_read_now
from spark_jobs.recompute.target import Target
from spark_jobs.spark.frames import fetch
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.names import first_of, in_spark
from spark_jobs.transforms.events import FILTERED, with_row_steps
from spark_jobs.transforms.identity import with_identity
from spark_jobs.transforms.late import WHY_SET_ASIDE

_CLOSED, _CHANGES, _WINDOWS = "__closed", "__changes", "__windows"
_FIRST, _LAST = "__first_us", "__last_us"


def execute(spark: SparkSession, plan: LookupPlan, *, by: str, comment: str = "") -> LookupOutcome:
    """Looks the events up and marks those that the table has; a repair counts them.

    It may be repeated, also by two at once: an event is marked once.

    Args:
        spark: a session.
        plan: what to do.
        by: who has decided it.
        comment: why.

    Raises:
        OutdatedPlanError: if its epoch has been ended, or a table been made anew, since it was planned.
        QuarantineError: if what failed at events of a skipped batch still fails.
    """
    target, run = plan.target, f"replay-{uuid.uuid4().hex[:12]}"
    quarantine = target.operator.output.quarantine.name
    target.basis.refuse_outdated(target.lake)
    note(
        target.lake,
        pipeline=target.name,
        action="replay",
        decided_by=by,
        subject=f"{plan.found.rows:,} rows of {quarantine}, version {plan.found.version}",
        decision_id=run,
        comment=comment,
    )
    with skipped.refusing(plan):
        looked_up = fetch(_looked_up(spark, plan))
    is_closed = pc.fill_null(looked_up[_CLOSED], False)
    ready = looked_up.filter(is_closed)
    # The results that they change are computed again, with events beside them that were looked up at the same time.
    beside = pc.unique(ready.filter(ready[_CHANGES])["_batch_id"]).to_pylist()
    older = (range_of_batch(plan.version_ranges, batch) for batch in beside)
    if plan.version_ranges:
        remedy = "Nothing was replayed. Leave out what is older: --since."
        refuse_lost_versions(target, plan.version_ranges, older, remedy)
    target.basis.refuse_outdated(target.lake)  # each mark names its epoch, beyond which it says nothing
    replayed = mark_replayed(target.lake, quarantine, _marks(target, ready))
    still_open = looked_up.num_rows - (pc.sum(is_closed).as_py() or 0)
    return LookupOutcome(run, replayed, plan.found.rows - looked_up.num_rows, still_open)


def _looked_up(spark: SparkSession, plan: LookupPlan) -> DataFrame:
    """The events whose key the tables have: `IDENTITY`, where rows lie that they can change, and `_CLOSED`."""
    target = plan.target
    reader = spark.read.format("delta").option("versionAsOf", plan.found.version)
    rows = reader.load(target.lake.table_path(target.operator.output.quarantine.name))
    rows = with_identity(rows).where(F.col("replayed_batch").isNull())
    rows = rows.where(f"{target.epochs.rows} AND _batch_id <= {target.newest_batch}")
    rows = rows.where(plan.selection.sql("unix_micros"))
    if plan.selection.reasons:
        rows = rows.where(F.col("reason").isin(list(plan.selection.reasons)))
    looked_up = lookup_frames(spark, target, plan.version_ranges, [plan.version_range]) if plan.version_ranges else {}
    if plan.found.skipped:
        rows = as_read_now(spark, target, rows)
        skipped.compute(target, rows, looked_up, plan.version_range)
    rows = rows.drop(*WHY_SET_ASIDE)  # a step may add columns of these names
    steps = with_row_steps(
        rows.withColumn(VERSION_RANGE, F.lit(plan.version_range)), target.pipeline.row_steps, lookups=looked_up
    )
    # Also one that another lookup drops has no key yet.
    found = steps.where(F.col(FATE).isNull() | (F.col(FATE) == FILTERED))
    first, upto, closed = _changes(target)
    changes = F.col(FATE).isNull()
    if target.operator.lateness.in_windows:
        found = Recompute(spark, target, (), 0).windows(found, _WINDOWS)
        # An event without a time, or without a gap, belongs to no window.
        changes = changes & F.coalesce(F.expr(f"{_WINDOWS}[0].window_end > {_WINDOWS}[0].window_start"), F.lit(False))
    return found.select(
        *IDENTITY,
        F.when(changes, first).alias(_FIRST),
        F.when(changes, upto).alias(_LAST),
        (~changes | closed).alias(_CLOSED),
        changes.alias(_CHANGES),
    )


def _changes(target: Target) -> tuple[Column, Column, Column]:
    """From where an event can change rows, up to where (microseconds since 1970), and whether they are closed."""
    if not target.operator.lateness.in_windows:
        times = [side.event_time for side in target.logical.sides if side.event_time]
        time, touches_us = (
            F.expr(f"unix_micros({first_of(times, in_spark)})"),
            duration_ms(target.operator.recomputation.touches) * 1000,
        )
        return time - touches_us, time + touches_us, time.isNotNull()
    watermark_us = target.newest.watermark_ms * 1000
    return (
        F.expr(f"unix_micros(array_min({_WINDOWS}.window_start))"),
        F.expr(f"unix_micros(array_max({_WINDOWS}.window_start))"),
        F.expr(f"unix_micros(array_max({_WINDOWS}.window_end)) <= {watermark_us}L"),
    )


def _marks(target: Target, found: pa.Table) -> pa.Table:
    """What is noted beside the events; of those that change no result there is nothing left to do."""
    count, version = found.num_rows, latest_version(target.lake, target.result)
    marks = found.select(list(IDENTITY))
    marks = marks.append_column("replayed_batch", pa.array([target.newest_batch] * count, pa.int64()))
    repaired = pc.if_else(found[_CHANGES], pa.scalar(None, pa.int64()), pa.scalar(version, pa.int64()))
    marks = marks.append_column("settled_version", repaired)
    for name, instant in (("changes_from", _FIRST), ("changes_upto", _LAST)):
        marks = marks.append_column(name, found[instant].cast(pa.timestamp("us", "UTC")))
    return marks


def carry_out(spark: SparkSession, plan: LookupPlan, say: Say, *, by: str, comment: str) -> BatchReport:
    """Looks events up again, then counts those that were found, and all others that wait for a repair."""
    if not plan.nothing_to_do:
        say(looked_up_text(execute(spark, plan, by=by, comment=comment)))
    target, repair = plan_repair(plan.target.lake, plan.target.pipeline)
    if repair.nothing_to_do:
        return BatchReport(pipeline=target.name, table=target.result, version=None)
    return count_after_all(spark, target, repair, say)
