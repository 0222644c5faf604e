"""Figures over every row of a batch, taken in the pass that computes it for something else."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

_ORDER, _RUNS, _PARTITIONS = "__order", "__runs", "__partitions"
_IN_PARTITION = (1 << 33) - 1


class ObservedRows:
    """Rows whose figures are taken while something else computes them.

    Spark adds such figures up over the tasks that have run. On a cluster a task whose output was lost with its worker
    runs again, and what it read is counted twice: `repeated_tasks` tells.

    Args:
        rows: what to count over.
        figures: aggregates without grouping, each with an alias.

    Attributes:
        rows: the same rows, to be computed once by an action.
    """

    def __init__(self, rows: DataFrame, figures: Sequence[Column]) -> None:
        self._observation = Observation()
        first = F.when(F.col(_ORDER).bitwiseAND(F.lit(_IN_PARTITION)) == 0, F.col(_ORDER))
        runs = (F.count(first).alias(_RUNS), F.size(F.collect_set(first)).alias(_PARTITIONS))
        numbered = rows.withColumn(_ORDER, F.monotonically_increasing_id())
        self.rows = numbered.observe(self._observation, *figures, *runs).drop(_ORDER)

    @property
    def figures(self) -> Mapping[str, int | None]:
        """The figures by their aliases; waits until the action has ended."""
        return {name: value for name, value in self._observation.get.items() if name not in (_RUNS, _PARTITIONS)}

    @property
    def repeated_tasks(self) -> int:
        """How many partitions with rows were counted more than once."""
        taken = self._observation.get
        return int(taken[_RUNS] - taken[_PARTITIONS])
