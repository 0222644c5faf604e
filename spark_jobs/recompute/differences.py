"""Rows that were computed again, against those that a table has.

What a table has is believed where it may be right. A measure may have several values (`plan/comparing.py`): sums of
floating-point numbers, a choice among events that tie. A row whose measures are all among those that its events may
give keeps what it has, and what comes after them is computed from that: columns of a `Select`, whether a `Where` keeps
the row, its rank. The stream has decided by these values, too. So all that follows is compared as it is, and a group at
the edge of a choice is called neither missing nor too much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.commits.changes import GONE
from spark_jobs.commits.merging import measures
from spark_jobs.plan.columns import EVENTS, FATE, SOURCE_TABLE, WINDOW_START
from spark_jobs.plan.comparing import MAY_BE, depending_on, not_compared
from spark_jobs.recompute.target import Target
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spark.values import among, close
from spark_jobs.spec.expressions import order_by_columns, order_terms
from spark_jobs.spec.names import in_spark, text_in_spark
from spark_jobs.transforms.aggregation import top_n
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.identity import with_identity
from spark_jobs.transforms.results import REVISED, with_revision

FROM, UPTO = "__from", "__upto"
"""Of what is computed again: from where windows start, up to where."""

_THERE, _ORDER, _LAST = "__there", "__order_", "__order_last"
"""Of a group: whether the table has it; by what it is ranked, and whether it comes after all others."""


@dataclass(frozen=True)
class TableComparison:
    """Compares rows of one pipeline.

    Attributes:
        spark: a session.
        target: the pipeline.
        clock_ms: `revised_at` of the rows that are new or differ.
    """

    spark: SparkSession
    target: Target
    clock_ms: int

    def held(self, table: str, where: str, columns: Sequence[str]) -> DataFrame:
        """The rows that a table has."""
        rows = self.spark.read.format("delta").load(self.target.lake.table_path(table))
        # An earlier version has not kept of which table an event is.
        rows = with_identity(rows, [SOURCE_TABLE] if SOURCE_TABLE in columns else [])
        return rows.where(where).select(*columns_of(columns))

    def believing(self, groups: DataFrame, where: str, *, only: DataFrame | None = None) -> DataFrame:
        """Groups with the values that the table of groups has for them, where these may be right.

        Args:
            groups: as `Recompute.groups` computes them to be compared.
            where: which rows of the table are compared; SQL.
            only: as `difference`.
        """
        operator = self.target.operator
        unsure = [*self._left_out, *(name for name in operator.output.measures if f"{MAY_BE}{name}" in groups.columns)]
        if not unsure:
            return groups
        keys, names = operator.output.keys, (*operator.output.measures, EVENTS)
        held = self.held(operator.output.groups.name, where, (*keys, *names))
        held = held if only is None else near(held, only)
        # One that is there twice is told by itself.
        held = _as_old(held.dropDuplicates(list(keys)), (*keys, *names)).withColumn(_THERE, F.lit(True))
        found = groups.join(held, F.expr(_equal(keys)), "left")
        right = [F.col(_THERE), column(EVENTS).eqNullSafe(column(f"__old_{EVENTS}"))]
        right += [self._may_be(groups, name) for name in operator.output.measures if name not in self._left_out]
        is_right = F.coalesce(reduce(lambda one, other: one & other, right), F.lit(False))
        # All of a row, or nothing of it: what is left out is as old as the rest.
        believed = {name: F.when(is_right, column(f"__old_{name}")).otherwise(column(name)) for name in unsure}
        base = [name for name in groups.columns if name not in (*self._computed, FATE, *unsure)]
        rows = found.select(*columns_of(base), *(value.alias(name) for name, value in believed.items()), _THERE)
        rows = with_row_steps(rows, self.target.pipeline.result_steps, removed=WITHHELD)
        if operator.output.keeps_groups or not (operator.output.withholds or self.target.pipeline.top_n):
            return rows
        return self._at_edges(rows)

    @property
    def _left_out(self) -> list[str]:
        return list(not_compared(self.target.operator.output.measures))

    @property
    def _computed(self) -> list[str]:
        """Columns that are computed from groups."""
        return [name for step in self.target.pipeline.result_steps for name in step.adds()]

    def _may_be(self, groups: DataFrame, name: str) -> Column:
        """Whether a measure may have the value that the table has."""
        kind, old, values = groups.schema[name].dataType, in_spark(f"__old_{name}"), in_spark(f"{MAY_BE}{name}")
        if f"{MAY_BE}{name}" not in groups.columns:
            return F.expr(close(in_spark(name), old, kind))
        return F.expr(f"{values} IS NULL OR {among(old, values, kind)}")

    def _at_edges(self, groups: DataFrame) -> DataFrame:
        """Groups that the table lacks are given the benefit of the doubt.

        One that a `Where` may remove is removed. In a ranking it has the worst place that it may have.
        """
        pipeline, operator = self.target.pipeline, self.target.operator
        keys, steps = list(operator.output.keys), pipeline.result_steps
        terms = order_terms(pipeline.top_n.order_by) if pipeline.top_n else ()
        orders = [f"{_ORDER}{number}" for number in range(len(terms))]
        by_term = [F.expr(sql).alias(name) for name, (sql, _) in zip(orders, terms, strict=True)]
        lacking = groups.where(F.col(_THERE).isNull())
        variants = lacking.select(
            *columns_of((*keys, EVENTS)), F.explode(F.expr(self._variants(groups))).alias("__one")
        )
        stepped = with_row_steps(
            variants.select(*columns_of((*keys, EVENTS)), "__one.*"), steps, removed=WITHHELD
        ).select(*columns_of(keys), FATE, *by_term)
        worst = [
            (F.min if "DESC" in direction else F.max)(name).alias(name)
            for name, (_, direction) in zip(orders, terms, strict=True)
        ]
        found = _as_old(stepped.groupBy(*columns_of(keys)).agg(F.max(FATE).alias(FATE), *worst), (*keys, FATE, *orders))
        both = groups.select("*", *by_term).join(found, F.expr(_equal(keys)), "left")
        unsure = depending_on(self._left_out, steps)
        ordering = order_by_columns(pipeline.top_n.order_by) if pipeline.top_n else frozenset()
        last = not unsure.isdisjoint(name.casefold() for name in ordering)
        doubted = {name: F.coalesce(f"__old_{name}", name) for name in (FATE, *orders)}
        doubted |= {_LAST: F.col(_THERE).isNull()} if last else {}
        return both.withColumns(doubted).drop(*(f"__old_{name}" for name in (*keys, FATE, *orders)))

    def _variants(self, groups: DataFrame) -> str:
        """The measures of a group with each value that one of them may have; SQL of an array."""
        names = list(self.target.operator.output.measures)
        found = []
        for name in names:
            may_be, null = in_spark(f"{MAY_BE}{name}"), f"array(IF(false, {in_spark(name)}, NULL))"
            if name in self._left_out:
                values = null
            elif f"{MAY_BE}{name}" in groups.columns:
                values = f"coalesce({may_be}, {null})"
            else:
                continue
            fields = (f"{text_in_spark(each)}, {'__v' if each == name else in_spark(each)}" for each in names)
            found.append(f"transform({values}, __v -> named_struct({', '.join(fields)}))")
        return f"concat({', '.join(found)})"

    def groups(self, groups: DataFrame) -> DataFrame:
        """The rows of the table of all groups, without what a revision says of them."""
        return _without_hidden(groups).drop(FATE)

    def results(self, groups: DataFrame) -> DataFrame:
        """The rows of the result table among all groups, without what a revision says of them."""
        pipeline, operator = self.target.pipeline, self.target.operator
        kept = groups.where(F.col(FATE).isNull()).drop(FATE)
        if pipeline.top_n is not None:
            terms = None
            if f"{_ORDER}0" in kept.columns:
                given = enumerate(order_terms(pipeline.top_n.order_by))
                terms = [_LAST] if _LAST in kept.columns else []
                terms += [f"{_ORDER}{number}{direction}" for number, (_, direction) in given]
            kept = top_n(kept, pipeline.top_n, operator.state.event_keys, terms=terms)
        return _without_hidden(kept)

    def difference(
        self, table: str, rows: DataFrame, where: str, keys: Sequence[str], *, only: DataFrame | None = None
    ) -> DataFrame:
        """The rows by which a table must change: new ones, those that differ, and with `GONE` those that must go.

        Args:
            table: its name.
            rows: that it should have; without what a revision says of them.
            where: which rows of the table are compared; SQL.
            keys: columns that no two rows share.
            only: further, what the rows that are compared agree with; None: anything.

        Returns:
            Rows of the table's columns, `GONE`, `__kind` (`inserted`, `updated`, `deleted`) and `__grown`, by how many
            events a group has grown.
        """
        names = [name for name in rows.columns if name not in REVISED]
        both = self.compared(table, rows, where, keys, only=only)
        gone = F.col("__new").isNull()
        # A row stays under its key, which may lack the source of an event.
        kept = F.col("__old").isNotNull()
        of_old = {name: kept if name in keys else gone for name in names}
        values = [F.when(of_old[name], column(f"__old_{name}")).otherwise(column(name)).alias(name) for name in names]
        events = [F.lit(0), F.lit(0)]
        if EVENTS in names:
            events = [F.coalesce(column(name), F.lit(0)) for name in (EVENTS, f"__old_{EVENTS}")]
        changed = both.select(*values, gone.alias(GONE), "__kind", (events[0] - events[1]).alias("__grown")).where(
            F.col("__kind").isNotNull()
        )
        revised = with_revision(changed, self.target.logical, self.clock_ms)
        path = self.target.lake.table_path(table)
        order = [field.name for field in self.spark.read.format("delta").load(path).schema]
        return revised.select(*columns_of(order), GONE, "__kind", "__grown")

    def compared(
        self, table: str, rows: DataFrame, where: str, keys: Sequence[str], *, only: DataFrame | None = None
    ) -> DataFrame:
        """Rows beside those of a table with the same key: `__kind` says how a table must change, null: not at all.

        The columns of the table's own rows begin with `__old_`.

        Args:
            table: as `difference`.
            rows: as `difference`.
            where: as `difference`.
            keys: as `difference`.
            only: as `difference`.
        """
        names = [name for name in rows.columns if name not in REVISED]
        old = self.held(table, where, names)
        old = old if only is None else near(old, only)
        old = _as_old(old, names).withColumn("__old", F.lit(True))
        new = rows.select(*columns_of(names)).withColumn("__new", F.lit(True))
        both = new.join(old, F.expr(_equal(keys)), "full_outer")
        changed = [differs(both, name) for name in measures(names, keys)]
        kind = (
            F.when(F.col("__old").isNull(), "inserted")
            .when(F.col("__new").isNull(), "deleted")
            .when(reduce(lambda left, right: left | right, changed, F.lit(False)), "updated")
        )
        return both.withColumn("__kind", kind)


def differs(rows: DataFrame, name: str) -> Column:
    """Whether a column of a new row has another value than that of the old one."""
    return ~F.expr(close(in_spark(name), in_spark(f"__old_{name}"), rows.schema[name].dataType))


def near(rows: DataFrame, only: DataFrame) -> DataFrame:
    """The rows that agree with one of `only` in all of its columns; nulls are equal.

    Where it has `FROM` and `UPTO`, their windows start between them.
    """
    found = F.broadcast(only.select(*(column(name).alias(f"__only_{name}") for name in only.columns)))
    same = [f"{in_spark(name)} <=> {in_spark(f'__only_{name}')}" for name in only.columns if name not in (FROM, UPTO)]
    if FROM in only.columns:
        same += [f"{WINDOW_START} >= `__only_{FROM}`", f"{WINDOW_START} < `__only_{UPTO}`"]
    return rows.join(found, F.expr(" AND ".join(same)), "left_semi")


def _as_old(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    return rows.select(*(column(name).alias(f"__old_{name}") for name in names))


def _equal(keys: Sequence[str]) -> str:
    """Whether a row has the key of one of the table; SQL."""
    equal = {name: f"{in_spark(name)} <=> {in_spark(f'__old_{name}')}" for name in keys}
    if SOURCE_TABLE in equal:
        # What an earlier version wrote names no table: the rest of its key tells.
        equal[SOURCE_TABLE] = f"({equal[SOURCE_TABLE]} OR `__old_{SOURCE_TABLE}` IS NULL)"
    return " AND ".join(equal.values()) or "true"


def _hidden(names: Sequence[str]) -> Iterator[str]:
    return (name for name in names if name == _THERE or name.startswith((MAY_BE, _ORDER)))


def _without_hidden(rows: DataFrame) -> DataFrame:
    return rows.drop(*_hidden(rows.columns))
