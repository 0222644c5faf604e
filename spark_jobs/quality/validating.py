"""Great Expectations: a suite over what the rules of a table have found.

What is validated is the number of rows that break each rule, counted by the rule's own SQL condition, which the stream
runs too. The ready-made expectations on the values themselves would not give the stream's verdict everywhere: Pandas,
Spark and DuckDB differ on NaN, on decimals beside floats and on whole numbers beside nulls. And they take ten times as
long over a million rows.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from spark_jobs.lake.errors import TidemarkError
from spark_jobs.quality.suites import RowCheck, broken_column

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite

_ASSET = "broken_rows"
_SEVERITIES = {"warn": "warning", "fail": "critical"}


class QualityError(TidemarkError):
    """A check that cannot be done."""


def expectation_suite(table: str, rules: Sequence[RowCheck]) -> "ExpectationSuite":
    """The suite of Great Expectations for the rules of a table; each expectation is described by its rule."""
    gx = _library()
    suite: ExpectationSuite = gx.ExpectationSuite(
        name=table,
        expectations=[
            gx.expectations.ExpectColumnSumToBeBetween(
                column=broken_column(index),
                min_value=0,
                max_value=0,
                severity=_SEVERITIES[each.severity],
                description=f"{each.name}: {each.rule.condition}",
                meta={"rule": each.rule.model_dump(mode="json")},
            )
            for index, each in enumerate(rules)
        ],
    )
    return suite


def validate(table: str, rules: Sequence[RowCheck], broken: Sequence[int]) -> list[bool]:
    """Whether each rule holds.

    Args:
        table: such as `bronze.sales`.
        rules: of the table.
        broken: how many rows break each of them.

    Raises:
        QualityError: if Great Expectations could not look at one of them.
    """
    import pandas as pd

    frame = pd.DataFrame({broken_column(index): [count] for index, count in enumerate(broken)})
    suite = expectation_suite(table, rules)
    found = _batches().get_batch({"dataframe": frame}).validate(suite, result_format="BASIC")
    by_column = {result.expectation_config.kwargs["column"]: result for result in found.results}
    return [_holds(table, each, by_column[broken_column(index)]) for index, each in enumerate(rules)]


def _holds(table: str, rule: RowCheck, result: Any) -> bool:
    raised = result.exception_info or {}
    if raised.get("raised_exception") or "observed_value" not in result.result:
        raise QualityError(
            f"table {table}: {rule.name} could not be checked: {raised.get('exception_message') or raised}. Nothing of "
            "this check was recorded."
        )
    return bool(result.success)


def _library() -> Any:
    # Else it would tell its makers about each run.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with _named_main():
        import great_expectations

    return great_expectations


@contextmanager
def _named_main() -> Iterator[None]:
    """It imports a part of PySpark that takes a main module without a file for a doctest, and ends the process."""
    main = sys.modules["__main__"]
    if hasattr(main, "__file__"):
        yield
        return
    main.__file__ = ""
    try:
        yield
    finally:
        del main.__file__


@cache
def _batches() -> Any:
    """One asset for all checks of a process: contexts keep what they are given, under its name."""
    source = _context().data_sources.add_pandas("pandas")
    return source.add_dataframe_asset(_ASSET).add_batch_definition_whole_dataframe(_ASSET)


@cache
def _context() -> Any:
    context = _library().get_context(mode="ephemeral")
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context
