"""What each kind of stateful step is as DataFrame operations, the same for a stream and for a batch."""

from abc import ABC, abstractmethod

from pyspark.sql import DataFrame

from spark_jobs.plan.columns import FATE, GAP, HEARTBEAT, KEY, SEQ, SOURCE, TIME
from spark_jobs.plan.operators import Operator

_NARROW = (TIME, SEQ, SOURCE, KEY, GAP)
"""Columns of the narrow branch; beside it, results have none of them."""


class Transform(ABC):
    """One operator over frames.

    Args:
        operator: that the plan has.
        to_compare: whether rows say, too, which values their measures may have: see `plan/comparing.py`.
    """

    one_branch = False
    """Whether a result row is the event's own row, so that one branch both gives results and accounts for events."""

    def __init__(self, operator: Operator, *, to_compare: bool = False) -> None:
        self.operator, self.to_compare = operator, to_compare

    @abstractmethod
    def results(self, *sides: DataFrame) -> DataFrame:
        """The rows that the step gives, with `FATE` where a step after it takes them out of the result.

        Args:
            sides: the events of each side that go on, with the columns of every `Select` before the step.
        """

    def kept(self, *sides: DataFrame) -> tuple[DataFrame, ...]:
        """The events of each side with the columns that the state keeps of them, packed; none where it packs none.

        Args:
            sides: as in `results`.
        """
        return ()

    def written(self, results: DataFrame) -> DataFrame:
        """The columns of result rows that are written.

        Args:
            results: rows of a batch, with the columns of both branches.
        """
        return results.drop(*_NARROW, FATE, HEARTBEAT)
