"""Figures over every row of a batch, taken in the pass that computes it for something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame
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

    def __init__(self, rows: DataFrame, figures: Sequence[Figure]) -> None:
        self._names = [figure.name for figure in figures]
        spark = rows.sparkSession
        kinds = "".join("x" if figure.mixed else "+" for figure in figures)
        self._tallies = java_class(spark, "io.tidemark.planning.RowTallies").of(spark._jsc.sc(), kinds)
        numbers = F.expr(f"array({', '.join(f'CAST({figure.sql} AS BIGINT)' for figure in figures)})")
        tallied = java_class(spark, "io.tidemark.planning.Tallied").of(numbers._jc, self._tallies)
        self.rows = rows.where(ClassicColumn(tallied))

    @cached_property
    def _totals(self) -> list[int]:
        return [int(total) for total in self._tallies.totals()]

    @property
    def figures(self) -> Mapping[str, int]:
        """The figures by their names, once the action has ended."""
        return dict(zip(self._names, self._totals, strict=False))

    @property
    def repeated_tasks(self) -> int:
        """How many tasks with rows were counted more than once."""
        return self._totals[-1]
