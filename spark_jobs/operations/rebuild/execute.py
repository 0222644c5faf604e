"""A changed definition: its results are built aside, compared with the table, and take its place in one commit.

Afterwards its stream begins as after a bootstrap (docs/guides/bootstrap.md): at the cut up to which results were built.
"""

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.commits.merging import measures
from spark_jobs.commits.tables import create_table
from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.engine.driver import Driver
from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.checkpoints.swapping import Content, remove_built
from spark_jobs.lake.checkpoints.swapping import swap as swap_tables
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.revisions import Revision, revisions, with_revised
from spark_jobs.lake.settings import Retention
from spark_jobs.lake.tables.opening import exists
from spark_jobs.operations.audit.execute import named, text_of
from spark_jobs.operations.bootstrap.execute import Watch, finish
from spark_jobs.operations.rebuild.plan import Comparison, Difference, Prospect, RebuildPlan
from spark_jobs.operations.rebuild.text import comparison_text
from spark_jobs.operations.shape import Say
from spark_jobs.plan.columns import EVENTS
from spark_jobs.plan.personal import personal_with
from spark_jobs.plan.tables import TableRef, aside
from spark_jobs.recompute.differences import TableComparison, differs
from spark_jobs.recompute.frames import Recompute
from spark_jobs.recompute.lookup_versions import VersionRange
from spark_jobs.recompute.ranges import FIRST_US, Range
from spark_jobs.spark.columns import columns_of
from spark_jobs.spec import Pipeline
from spark_jobs.transforms.results import REVISED, with_revision

_SHOWN = 10
"""So many rows that differ are shown."""


class _Anew(Recompute):
    """Results of a definition that has not run: it looks columns up in tables as they are now."""

    @cached_property
    def _eras(self) -> tuple[VersionRange, ...]:
        return ()

    @cached_property
    def _lookups(self) -> dict[str, DataFrame]:
        lake, reader = self.target.lake, self.spark.read.format("delta")
        return {step.table: reader.load(lake.table_path(step.table)) for step in self.target.logical.lookups}


def build(spark: SparkSession, target: Prospect, plan: RebuildPlan) -> None:
    """Computes the results of the new definition up to the cut, into tables aside that are this run's alone."""
    recompute = _Anew(spark, target, plan.reads, round(datetime.now(UTC).timestamp() * 1000))
    events = recompute.sources([Range(FIRST_US, plan.cut_us)])
    closed = target.operator.recomputation.closed(plan.cut_us // 1000)
    groups = recompute.groups(events, to_compare=False).where(closed).persist()
    try:
        for table in _swapped(target):
            of_role = recompute.comparison.results if table.role == "result" else recompute.comparison.groups
            rows = of_role(groups)
            (
                with_revision(rows, target.logical, recompute.clock_ms)
                .write.format("delta")
                .mode("overwrite")
                .option("overwriteSchema", "true")
                .save(target.lake.table_path(aside(table.name, plan.run)))
            )
    finally:
        groups.unpersist()


def _swapped(target: Prospect) -> tuple[TableRef, ...]:
    """The tables that are built, the result last."""
    groups = target.logical.table("groups")
    return (groups, target.logical.result) if groups is not None else (target.logical.result,)


def compare(spark: SparkSession, target: Prospect, plan: RebuildPlan) -> Comparison:
    """The table beside what was built."""
    lake, operator = target.lake, target.operator
    new = spark.read.format("delta").load(lake.table_path(plan.aside))
    old = spark.read.format("delta").load(lake.table_path(plan.table))
    types = [{field.name: field.dataType.simpleString() for field in frame.schema} for frame in (old, new)]
    both = [name for name in types[1] if name in types[0]]
    retyped = [f"{name}: {types[0][name]}, then {types[1][name]}" for name in both if types[0][name] != types[1][name]]
    shared = [name for name in both if types[0][name] == types[1][name] and name not in REVISED]
    closed = operator.recomputation.closed(plan.cut_us // 1000)
    columns = {
        "added": tuple(name for name in types[1] if name not in types[0]),
        "removed": tuple(name for name in types[0] if name not in types[1]),
        "retyped": tuple(retyped),
        "beyond": old.where(f"NOT {closed}").count(),
    }
    keys = list(operator.output.row_keys)
    if not set(keys) <= set(shared):
        return Comparison(same=0, changed=0, new=new.count(), gone=old.where(closed).count(), keyed=False, **columns)
    comparison = TableComparison(spark, target, 0)
    seen = text_of(personal_with(target.pipeline).of(plan.table))
    beside = comparison.compared(plan.table, new.select(*columns_of(shared)), closed, keys).persist()
    try:
        counts: Mapping[str | None, int] = {
            row["__kind"]: row["count"] for row in beside.groupBy("__kind").count().collect()
        }
        return Comparison(
            same=counts.get(None, 0),
            changed=counts.get("updated", 0),
            new=counts.get("inserted", 0),
            gone=counts.get("deleted", 0),
            examples=_examples(beside, keys, measures(shared, keys), seen),
            **columns,
        )
    finally:
        beside.unpersist()


def _examples(
    beside: DataFrame, keys: list[str], values: list[str], seen: Callable[[str], Column]
) -> tuple[Difference, ...]:
    kind = F.col("__kind")
    row = named(keys, lambda name: F.when(kind == "deleted", seen(f"__old_{name}")).otherwise(seen(name)))
    differing = [
        F.when(
            differs(beside, name),
            F.concat(F.lit(f"{name} is "), seen(f"__old_{name}"), F.lit(", becomes "), seen(name)),
        )
        for name in values
    ]
    what = (
        F.when(kind == "inserted", F.concat(F.lit("new: "), named(values, seen)))
        .when(kind == "deleted", F.concat(F.lit("gone: "), named(values, lambda name: seen(f"__old_{name}"))))
        .otherwise(F.concat_ws("; ", *differing))
    )
    # Rows that have other values say most.
    order = F.when(kind == "updated", 0).when(kind == "inserted", 1).otherwise(2)
    found = beside.where(kind.isNotNull()).select(row.alias("row"), what.alias("what"), order.alias("order"))
    shown = found.orderBy("order", "row").limit(_SHOWN).collect()
    return tuple(Difference(row=each["row"], what=each["what"]) for each in shown)


def swap(spark: SparkSession, target: Prospect, plan: RebuildPlan) -> Epoch:
    """Puts what was built in the place of the tables' rows, and begins the new epoch at the cut.

    Raises:
        OutdatedPlanError: if another reset or rebuild has ended the epoch since it was planned.
        CheckpointError: if another has begun the new epoch meanwhile.
    """
    lake, run = target.lake, plan.run
    plan.basis.refuse_outdated(lake)  # else what was built may be gone
    contents = []
    for table in _swapped(target):
        rows = spark.read.format("delta").load(lake.table_path(aside(table.name, run)))
        create_table_if_missing(lake, table, rows)
        revision = Revision(
            pipeline=target.name,
            epoch=plan.epoch,
            run=run,
            role=table.role,
            begin_us=FIRST_US,
            end_us=plan.cut_us,
            ledger=_entry(target, plan, run, rows) if table.name == target.operator.output.groups.name else None,
        )
        contents.append(Content(table.name, aside(table.name, run), revision))
    return swap_tables(lake, target.pipeline, target.before, plan.epoch, contents, cut_us=plan.cut_us, basis=plan.basis)


def create_table_if_missing(lake: Lake, table: TableRef, rows: DataFrame) -> None:
    """Makes a table that the definition before did not write."""
    if not exists(lake, table.name):
        create_table(lake, table.name, rows.schema, statistics=table.statistics)


def _entry(target: Prospect, plan: RebuildPlan, run: str, rows: DataFrame) -> LedgerEntry:
    """What the table holds from now on, by the ledger of the new epoch."""
    count, pairs = rows.agg(F.count(F.lit(1)), F.coalesce(F.sum(EVENTS), F.lit(0))).collect()[0]
    terms = {"rows": count, "pairs_revised": pairs}
    # A swap before this one, which was interrupted, has told of rows that go now.
    told = with_revised(
        {}, (each for _, each in revisions(target.lake, target.operator.output.groups.name, target.name, plan.epoch))
    )
    return LedgerEntry(
        kind="rebuild",
        run=run,
        started_ms=round(datetime.now(UTC).timestamp() * 1000),
        watermark_ms=plan.cut_us // 1000,
        reads={read.table: (0, read.version + 1) for read in plan.reads},
        terms={name: value - told.get(name, 0) for name, value in terms.items()},
    )


def carry_out(
    spark: SparkSession,
    target: Prospect,
    plan: RebuildPlan,
    say: Say,
    *,
    allowed: Callable[[], bool] | None,
    watch: Watch,
    stop: threading.Event,
) -> Driver | None:
    """Builds, compares, swaps, and takes the new epoch to the end of its history.

    Args:
        spark: a session.
        target: the pipeline.
        plan: what to do.
        say: is told what was found and done.
        allowed: asked before anything but the tables aside is changed; None: nothing else is.
        watch: shows the driver.
        stop: ends early.

    Returns:
        The driver that has run; None: nothing was swapped.

    Raises:
        DeployError: if a driver runs the pipeline once the rows are to be swapped.
    """
    began, lake = time.monotonic(), target.lake
    # A table in which it looks columns up must fit before anything is computed.
    PipelineQuery(spark, lake, target.pipeline).refuse_lookups()
    build(spark, target, plan)
    say(comparison_text(plan, compare(spark, target, plan)))
    if allowed is None or not allowed():
        say(
            f"{plan.table} is as it was. What was built is in {plan.aside}, until maintenance removes it. "
            f"To swap such rows in: {command('rebuild', plan.pipeline, '--yes')}"
        )
        return None
    # It may run since the rows were built.
    refuse_deployed(lake, [plan.pipeline])
    epoch = swap(spark, target, plan)
    remove_built(lake, target.pipeline, epoch.number, keep=Retention().rebuilt)
    say(f"{plan.table}: has the new rows. Epoch {epoch.number} begins at the cut.")
    return finish(spark, lake, target.pipeline, epoch, say, began=began, watch=watch, stop=stop)


def carry_on(
    spark: SparkSession,
    lake: Lake,
    pipeline: Pipeline,
    epoch: Epoch,
    say: Say,
    *,
    watch: Watch,
    stop: threading.Event,
) -> Driver:
    """Takes an epoch whose swap was done before to the end of its history; the driver that has run.

    Raises:
        DeployError: if a driver runs the pipeline.
    """
    refuse_deployed(lake, [pipeline.name])
    say(f"{pipeline.name}: epoch {epoch.number} has begun at its cut, its history is still to be computed.")
    remove_built(lake, pipeline, epoch.number, keep=Retention().rebuilt)
    return finish(spark, lake, pipeline, epoch, say, began=time.monotonic(), watch=watch, stop=stop)
