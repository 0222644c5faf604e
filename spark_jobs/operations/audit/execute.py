"""Recounts a pipeline: its ledger, its data files, and its results row by row from bronze. Nothing is written."""

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.commits.merging import measures
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.files import MissingFilesError
from spark_jobs.operations.audit.plan import Audit, AuditPlan, Problem
from spark_jobs.operations.audit.text import audit_text
from spark_jobs.operations.backfill.plan import BackfillPlan
from spark_jobs.operations.shape import Say
from spark_jobs.plan.comparing import not_compared
from spark_jobs.plan.personal import personal_with
from spark_jobs.recompute.differences import TableComparison, differs, near
from spark_jobs.recompute.frames import Recompute
from spark_jobs.recompute.ranges import Range
from spark_jobs.recompute.session_clusters import starting_in
from spark_jobs.recompute.target import BackfillRefusedError, NotComparableError, Target
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.personal import MASK

_SHOWN = 20
"""So many rows that differ are named."""

_IS_TWICE = "^there [0-9]+ times$"
"""What is said of a row that is there several times."""


def recount(spark: SparkSession, target: Target, plan: BackfillPlan, found: Audit) -> Audit:
    """Computes the rows again that a table should have now, and compares them.

    A row is right if it counts all events but the late ones that are not repaired. Where a backfill ended between
    the windows of a late event, it has counted it in some of them already: these rows count all events. So do sessions
    that a repair has drawn together; others are as the recorded batches have made them. A backfill or a repair counts
    events that the stream has not read yet: rows that count these are right, too.
    """
    try:
        return _recount(spark, target, plan, found)
    except NotComparableError as error:
        return found.model_copy(update={"left_out": str(error)})
    except (BackfillRefusedError, MissingFilesError, MissingTableError) as error:
        return found.model_copy(update={"left_out": str(error), "refused": True})
    finally:
        spark.catalog.clearCache()


def _recount(spark: SparkSession, target: Target, plan: BackfillPlan, found: Audit) -> Audit:
    part = Range(plan.slices[0].begin_us, plan.slices[-1].end_us)
    # Rows are told apart by all of their key, also where a person sees a part of it only.
    rows, problems = _compared(spark, target, plan, part, all_events=False)
    count = problems.count()
    if count and (
        plan.late_version is not None
        or plan.quarantine_version is not None
        or target.operator.recomputation.unit.merging
    ):
        newest = target.reads("corrected", None)
        for reads in dict.fromkeys((plan.reads, newest)):
            if count:
                read = plan.model_copy(update={"reads": reads})
                _, against_all = _compared(spark, target, read, part, all_events=True)
                problems = problems.join(against_all.select("row"), "row", "left_semi").persist()
                count = problems.count()
    shown = problems.orderBy("row").limit(_SHOWN).select("shown", "what").collect()
    only_twice = count > 0 and problems.where(~F.col("what").rlike(_IS_TWICE)).isEmpty()
    return found.model_copy(
        update={
            "recounted": str(part),
            "rows": rows,
            "differing": count,
            "problems": tuple(Problem(row=each["shown"], what=each["what"]) for each in shown),
            "remedy": _remedy(target, part, only_twice=only_twice) if count or target.conflicts else None,
            "not_compared": tuple(_not_compared(target)),
        }
    )


def _not_compared(target: Target) -> Iterator[str]:
    """Columns without a value of their own, in words."""
    for name, function in not_compared(target.operator.output.measures).items():
        yield f"{name}: {function}() may give another value each time that the same events are counted"


def _remedy(target: Target, part: Range, *, only_twice: bool) -> str:
    changes = [change for of_table in target.foreign.values() for change in of_table]
    spans = [change.span_us for change in changes]
    every = [(part.begin_us, part.end_us), *(span for span in spans if span)]
    whole = Range(min(begin for begin, _ in every), max(end for _, end in every)).options
    if only_twice or None in spans or whole is None:
        # A backfill takes no row away that has a right one beside it, and puts nothing right that cannot be counted.
        name = target.name
        return f"{command('stop', name)}; {command('reset', name, '--empty-tables')}; {command('deploy', name)}"
    return command("backfill", target.name, *shlex.split(whole), "--force")


def _compared(
    spark: SparkSession, target: Target, plan: BackfillPlan, part: Range, *, all_events: bool
) -> tuple[int, DataFrame]:
    """How many rows there should be, and those that differ, with `row` and `what`."""
    operator = target.operator
    late_version = None if all_events else plan.late_version
    known = target.late_of(plan)
    replayed = known.replayed if known is not None else None
    if replayed is not None and not all_events:
        replayed = replayed.filter(replayed["repaired"])
    recompute = Recompute(spark, target, plan.reads, 0, late_version, counts_repaired=True, replayed=replayed)
    before, after = (duration_ms(each) * 1000 for each in operator.recomputation.reach)
    again = operator.recomputation
    where = f"{again.placed_in((part.begin_us, part.end_us))} AND {again.closed(plan.watermark_ms)}"
    clusters = starting_in(recompute, part, plan.watermark_ms) if operator.recomputation.unit.merging else None
    if clusters is not None:
        groups, where = clusters.groups, clusters.where
    else:
        events = recompute.sources([Range(part.begin_us - before, part.end_us + after)])
        groups = recompute.groups(events).where(where)
    comparison, only = recompute.comparison, clusters.rows if clusters else None
    believed = comparison.believing(groups.persist(), where, only=only).persist()
    rows = comparison.results(believed).persist()
    differing = [_differing(comparison, target.result, rows, where, only)]
    if (kept := target.logical.table("groups")) is not None:
        differing.append(_differing(comparison, kept.name, comparison.groups(believed), where, only))
    return rows.count(), reduce(DataFrame.unionByName, differing).persist()


def _differing(
    comparison: TableComparison, table: str, rows: DataFrame, where: str, only: DataFrame | None
) -> DataFrame:
    """Of each row that is missing, must not be there, is there twice or has other values.

    `row` tells it from others; `shown` and `what` are for a person, with the values of personal columns masked.
    """
    keys, in_words = (
        comparison.target.operator.output.row_keys,
        text_of(personal_with(comparison.target.pipeline).of(table)),
    )
    both = comparison.compared(table, rows, where, keys, only=only)
    values = measures([name for name in rows.columns if f"__old_{name}" in both.columns], keys)
    # The values that differ, each as it is and as it should be.
    differing = [
        F.when(
            differs(both, name),
            F.concat(F.lit(f"{name} is "), in_words(f"__old_{name}"), F.lit(", should be "), in_words(name)),
        )
        for name in values
    ]
    should = named(values, in_words)
    what = (
        F.when(F.col("__kind") == "inserted", F.concat(F.lit("missing; it should have "), should))
        .when(F.col("__kind") == "deleted", F.lit("must not be there: no event gives it"))
        .when(F.col("__kind") == "updated", F.concat_ws("; ", *differing))
    )

    def row(value: Callable[[str], Column]) -> Column:
        old = F.col("__kind") == "deleted"
        key = named(keys, lambda name: F.when(old, value(f"__old_{name}")).otherwise(value(name)))
        return F.concat(F.lit(f"{table}: "), key)

    wrong = both.where(F.col("__kind").isNotNull()).select(
        row(text).alias("row"), row(in_words).alias("shown"), what.alias("what")
    )
    # A row may have a key that `only` does not name: those of clusters say where their sessions start.
    held = comparison.held(table, where, list(keys))
    held = held if only is None else near(held, only)
    twice = held.groupBy(*columns_of(keys)).count().where("count > 1")
    return wrong.unionByName(
        twice.select(
            F.concat(F.lit(f"{table}: "), named(keys, text)).alias("row"),
            F.concat(F.lit(f"{table}: "), named(keys, in_words)).alias("shown"),
            F.concat(F.lit("there "), F.col("count").cast("string"), F.lit(" times")).alias("what"),
        )
    )


def named(names: Sequence[str], value: Callable[[str], Column]) -> Column:
    """Names with their values, as a person reads them."""
    return F.concat_ws(", ", *(F.concat(F.lit(f"{name}="), value(name)) for name in names))


def text(name: str) -> Column:
    """The value of a column, as a person reads it."""
    return F.coalesce(column(name).cast("string"), F.lit("null"))


def text_of(personal: Collection[str]) -> Callable[[str], Column]:
    """As `text`, but for columns whose values nobody is to see in passing, with `__old_` before their name or not."""
    hidden = {name.casefold() for name in personal}
    return lambda name: F.lit(MASK) if name.removeprefix("__old_").casefold() in hidden else text(name)


def carry_out(spark: SparkSession, plan: AuditPlan, say: Say) -> list[Audit]:
    """Recounts pipelines, one after the other, and says what each audit has found."""
    audits = []
    for target, recounted, found in plan.recounts:
        audits.append(recount(spark, target, recounted, found))
        say(audit_text(audits[-1]))
    return audits
