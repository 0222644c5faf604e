"""Figures over every row of a batch, taken in the pass that computes it for something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from spark_jobs.spark.java import java_class


@dataclass(frozen=True)
class Figure:
    """A figure over rows.

    Attributes:
        name: of it.
        sql: a whole number of each row, which is added up; rows where it is null are left out.
        mixed: whether the bits of the numbers are mixed by exclusive or instead.
    """

    name: str
    sql: str
    mixed: bool = False

    @classmethod
    def count(cls, name: str, condition: str) -> Figure:
        """How many rows a condition holds for.

        Args:
            name: of the figure.
            condition: SQL.
        """
        return cls(name, f"CASE WHEN {condition} THEN 1 END")


class Figures:
    """Figures as a column, which is built once for all rows that they are taken of.

    Args:
        each: of the figures.

    Attributes:
        names: of them.
        kinds: of them, a letter each, as Java takes them.
    """

    def __init__(self, each: Sequence[Figure]) -> None:
        self.names = [figure.name for figure in each]
        self.kinds = "".join("x" if figure.mixed else "+" for figure in each)
        self._sql = f"array({', '.join(f'CAST({figure.sql} AS BIGINT)' for figure in each)})"

    @cached_property
    def numbers(self) -> Column:
        """An array with the number of each."""
        return F.expr(self._sql)


class ObservedRows:
    """Rows whose figures are taken while something else computes them.

    Spark adds such figures up over the tasks that have run. On a cluster a task whose output was lost with its worker
    runs again, and what it read is counted twice: `repeated_tasks` tells.

    Args:
        rows: what to count over.
        figures: what is counted.

    Attributes:
        rows: the same rows, to be computed once by an action.
    """

    def __init__(self, rows: DataFrame, figures: Figures) -> None:
        self._names = figures.names
        spark = rows.sparkSession
        self._tallies = java_class(spark, "io.tidemark.planning.RowTallies").of(spark._jsc.sc(), figures.kinds)
        tallied = java_class(spark, "io.tidemark.planning.Tallied").of(figures.numbers._jc, self._tallies)
        self.rows = rows.where(ClassicColumn(tallied))

    @cached_property
    def _totals(self) -> list[int]:
        return [int(total) for total in self._tallies.totals().split()]

    def reset(self) -> None:
        """Begins to count anew, where one plan serves several batches."""
        self._tallies.reset()
        vars(self).pop("_totals", None)

    @property
    def figures(self) -> Mapping[str, int]:
        """The figures by their names, once the action has ended."""
        return dict(zip(self._names, self._totals, strict=False))

    @property
    def repeated_tasks(self) -> int:
        """How many tasks with rows were counted more than once."""
        return self._totals[-1]
