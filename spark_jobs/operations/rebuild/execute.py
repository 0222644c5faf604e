"""A changed definition: its results are built aside, compared with the table, and take its place in one commit.

Afterwards its stream begins as after a bootstrap (docs/guides/bootstrap.md): at the cut up to which results were built.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property

from pydantic import BaseModel, ConfigDict
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.commits.merging import measures
from spark_jobs.commits.tables import create_table
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.epochs import Epoch
from spark_jobs.lake.checkpoints.swapping import Content
from spark_jobs.lake.checkpoints.swapping import swap as swap_tables
from spark_jobs.lake.commit_records.revisions import Revision, revisions, with_revised
from spark_jobs.lake.tables.opening import exists
from spark_jobs.operations.audit.execute import named, text_of
from spark_jobs.operations.rebuild.plan import Prospect, RebuildPlan
from spark_jobs.plan.columns import EVENTS
from spark_jobs.plan.personal import personal_with
from spark_jobs.plan.tables import TableRef, aside
from spark_jobs.recompute.differences import TableComparison, differs
from spark_jobs.recompute.frames import Recompute
from spark_jobs.recompute.lookup_versions import Era
from spark_jobs.recompute.ranges import FIRST_US, Range
from spark_jobs.spark.columns import columns_of
from spark_jobs.transforms.results import REVISED, with_revision

_SHOWN = 10
"""So many rows that differ are shown."""


class Difference(BaseModel):
    """A row that is another one than before.

    Attributes:
        row: its key, as a person reads it.
        what: becomes of it.
    """

    model_config = ConfigDict(frozen=True)

    row: str
    what: str


class Comparison(BaseModel):
    """The rows of a table beside those that were built, both up to the cut.

    Attributes:
        same: rows that agree in every column that both have.
        changed: rows with other values.
        new: rows whose key the table does not have.
        gone: rows of the table whose key none of the new ones has.
        beyond: rows of the table beyond the cut, which the stream gives again.
        added: columns that the table does not have.
        removed: columns that only the table has.
        retyped: columns of another type.
        keyed: whether rows were compared one by one: the table has the columns by which new rows are told apart.
        examples: some of the rows that are not the same.
    """

    model_config = ConfigDict(frozen=True)

    same: int
    changed: int
    new: int
    gone: int
    beyond: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    keyed: bool = True
    examples: tuple[Difference, ...] = ()


class _Anew(Recompute):
    """Results of a definition that has not run: it looks columns up in tables as they are now."""

    @cached_property
    def _eras(self) -> tuple[Era, ...]:
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
