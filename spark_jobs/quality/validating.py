"""Great Expectations: a suite over the verdicts of the rules on each row.

What is validated has a column of verdicts for each rule, computed by the rule's own SQL condition, which the stream
runs too: Pandas, Spark and DuckDB differ on NaN, on decimals beside floats and on whole numbers beside nulls, so that
the ready-made expectations on the values themselves would not give the stream's verdict everywhere.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from spark_jobs.lake.errors import TidemarkError
from spark_jobs.quality.suites import RowCheck, verdict_column

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite

_ASSET = "added"
_SEVERITIES = {"warn": "warning", "fail": "critical"}


class QualityError(TidemarkError):
    """A check that cannot be done."""


@dataclass(frozen=True)
class Counted:
    """What a suite has found of one rule.

    Attributes:
        rows: that were looked at.
        unexpected: rows that break it.
    """

    rows: int
    unexpected: int


def expectation_suite(table: str, rows: Sequence[RowCheck]) -> "ExpectationSuite":
    """The suite of Great Expectations for the rules of a table; each expectation is described by its rule."""
    gx = _library()
    suite: ExpectationSuite = gx.ExpectationSuite(
        name=table,
        expectations=[
            gx.expectations.ExpectColumnValuesToBeInSet(
                column=verdict_column(index),
                value_set=[True],
                severity=_SEVERITIES[each.severity],
                description=f"{each.name}: {each.rule.condition}",
                meta={"rule": each.rule.model_dump(mode="json")},
            )
            for index, each in enumerate(rows)
        ],
    )
    return suite


def validate(table: str, rows: Sequence[RowCheck], frame: Any) -> list[Counted]:
    """Counts the rows that break each rule.

    Args:
        table: such as `bronze.sales`.
        rows: the rules.
        frame: of pandas or Spark, with the column of verdicts of each of them.

    Raises:
        QualityError: if Great Expectations could not look at one of them.
    """
    suite = expectation_suite(table, rows)
    kind = "pandas" if type(frame).__module__.startswith("pandas") else "spark"
    found = _batches(kind).get_batch({"dataframe": frame}).validate(suite, result_format="BASIC")
    by_column = {result.expectation_config.kwargs["column"]: result for result in found.results}
    return [_counted(table, each, by_column[verdict_column(index)]) for index, each in enumerate(rows)]


def _counted(table: str, rule: RowCheck, result: Any) -> Counted:
    raised = result.exception_info or {}
    if raised.get("raised_exception") or "element_count" not in result.result:
        raise QualityError(
            f"table {table}: {rule.name} could not be checked: {raised.get('exception_message') or raised}. Nothing of "
            "this check was recorded."
        )
    return Counted(int(result.result["element_count"]), int(result.result["unexpected_count"]))


def _library() -> Any:
    # Else it would tell its makers about each run.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations

    return great_expectations


@cache
def _batches(kind: str) -> Any:
    """One asset for all checks of a process: contexts keep what they are given, under its name."""
    context = _context()
    source = (
        context.data_sources.add_pandas(kind)
        if kind == "pandas"
        # It would keep each frame in Spark's memory for ever.
        else context.data_sources.add_spark(kind, persist=False)
    )
    return source.add_dataframe_asset(_ASSET).add_batch_definition_whole_dataframe(_ASSET)


@cache
def _context() -> Any:
    context = _library().get_context(mode="ephemeral")
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context
