"""The conditions and figures of a pipeline's batches: the same for all of them, and built once."""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.plan.columns import FATE, LATE_US, REVISED_AT, SEQ, SOURCE, SOURCE_TABLE
from spark_jobs.plan.logical import LogicalPlan
from spark_jobs.spark.columns import columns_of
from spark_jobs.spark.observed_rows import Figure, Figures
from spark_jobs.spec.names import in_spark
from spark_jobs.transforms import account
from spark_jobs.transforms.branches import Branches
from spark_jobs.transforms.content import digest_figures
from spark_jobs.transforms.late import late_verdict, set_aside_verdict
from spark_jobs.transforms.results import first_revision

IS_WRITTEN, LATE, SET_ASIDE = "__is_written", "__said_of_late", "__said_of_set_aside"
"""Of a row that is fetched: whether it goes to the result, and what is said of a late event or of one set aside."""

STRAYS = "strays"
"""Rows that came from another branch than expected."""


class BatchColumns:
    """What is asked of each row of a batch; SQL, of rows with `LATE_US`.

    Args:
        plan: of the pipeline.
        branches: of it.
        given: columns that the rows of its batches have.
        written: columns of the result table.

    Attributes:
        plan: of the pipeline.
        branches: of it.
        written: columns of the result table.
    """

    def __init__(self, plan: LogicalPlan, branches: Branches, given: Sequence[str], written: Sequence[str]) -> None:
        self.plan, self.branches, self.written = plan, branches, written
        self._operator = branches.operator
        # A checkpoint of an earlier version may know no source tables.
        self._content = [name for name in self._operator.output.content if name != SOURCE_TABLE or name in given]

    @property
    def is_result(self) -> str:
        """Whether the step has given it."""
        return self.branches.result_rows

    @cached_property
    def is_late(self) -> str:
        """Whether it is the narrow row of a late event."""
        return account.late_events(self.branches.lateness)

    @property
    def is_set_aside(self) -> str:
        """Whether it is the narrow row of an event that a step could not use."""
        return account.SET_ASIDE if self._operator.output.sets_aside else "false"

    @cached_property
    def narrow_hashes(self) -> dict[str, str]:
        """Role of a side table -> a hash of the narrow rows of its events."""
        hashes = {"late": _hash(self.is_late, (SEQ, SOURCE))}
        if self._operator.output.sets_aside:
            hashes["quarantine"] = _hash(self.is_set_aside, (SEQ, SOURCE))
        return hashes

    @cached_property
    def of_events(self) -> list[Figure]:
        """Terms of the ledger, counted over all events."""
        return account.terms_of_events(self.plan, self.branches.lateness)

    @cached_property
    def of_results(self) -> list[Figure]:
        """What is counted over result rows."""
        # The digest is not of measures: sums of floating-point numbers may differ in their last digits.
        return [
            Figure.count("rows", self.is_result),
            Figure.count("withheld", f"{self.is_result} AND {FATE} IS NOT NULL"),
            *(Figure(name, sql) for name, sql in self._operator.accounting.result_terms.items()),
            *digest_figures(_hash(self.is_result, self._content), prefix="result"),
        ]

    @cached_property
    def of_narrow(self) -> list[Figure]:
        """What is counted over late events and those that were set aside."""
        pairs = self.branches.lateness.late_pairs(LATE_US)
        return [
            Figure.count("late_events", self.is_late),
            Figure("pairs_late", f"CASE WHEN {self.is_late} THEN {pairs} END"),
            *chain.from_iterable(digest_figures(hashed, prefix=role) for role, hashed in self.narrow_hashes.items()),
        ]

    @cached_property
    def figures(self) -> Figures:
        """All that is counted, where both kinds of rows come together."""
        return Figures([*self.of_events, *self.of_results, *self.of_narrow])

    @cached_property
    def narrow_figures(self) -> Figures:
        """What is counted over rows of the narrow branch alone."""
        return Figures([*self.of_events, *self.of_narrow, Figure.count(STRAYS, self.is_result)])

    @cached_property
    def result_figures(self) -> Figures:
        """What is counted over rows that the step has given alone."""
        return Figures([*self.of_results, Figure.count(STRAYS, self.branches.narrow_rows)])

    @cached_property
    def is_kept(self) -> Column:
        """Whether it goes to a table, or may."""
        return F.expr(f"{self.is_result} OR {self.is_late} OR {self.is_set_aside}")

    @cached_property
    def fetched(self) -> list[Column]:
        """What the tables have of a row, but for the time of the batch; and to which of them it goes."""
        output = self._operator.output
        # A column `final_after` of a result without windows is its source's own.
        added = first_revision(self.plan)
        columns = columns_of(name for name in self.written if name not in (*added, REVISED_AT))
        columns += [column.alias(name) for name, column in added.items()]
        columns.append(F.expr(f"{self.is_result} AND {FATE} IS NULL").alias(IS_WRITTEN))
        if output.keeps_late:
            columns.append(F.expr(late_verdict(self.plan, self.branches.lateness, self.is_late)).alias(LATE))
        if output.sets_aside:
            columns.append(F.expr(set_aside_verdict(self.plan, self.is_set_aside)).alias(SET_ASIDE))
        return columns


def _hash(kind: str, columns: Sequence[str]) -> str:
    """SQL of a hash of the rows of one branch; null for those of the other."""
    return f"CASE WHEN {kind} THEN xxhash64({', '.join(map(in_spark, columns))}) END"
