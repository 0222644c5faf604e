"""Checks of tables in this process: what each has found, as a person reads it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.console.running import session
from spark_jobs.documentation.publishing import address, link, link_in_airflow, publish_pages
from spark_jobs.lake import Lake
from spark_jobs.lake.commands import command
from spark_jobs.lake.tables import broken_expectations
from spark_jobs.lake.tables.quality import Check, Result, publish
from spark_jobs.pipelines import registry
from spark_jobs.plan.personal import personal_with
from spark_jobs.quality.checking import check
from spark_jobs.spec import Definition
from spark_jobs.spec.names import visible_line


def check_text(found: Check) -> str:
    """What a check has found, in lines."""
    return "\n".join(_lines(found))


def _lines(found: Check) -> Iterator[str]:
    yield f"check of {found.pipeline}: {found.table}, {_what(found)}"
    for result in found.results:
        yield f"  {_mark(result)} {visible_line(f'{result.expectation}: {result.observed}')}"
        for sample in result.samples if not result.success else ():
            yield f"          {visible_line(json.dumps(sample, ensure_ascii=False))}"
    for name in found.left_out:
        yield f"  -      {name}: nothing new to check"


def _what(found: Check) -> str:
    version = found.upto.version
    which = f"versions {found.since.version + 1} to {version}" if found.since else f"all rows of version {version}"
    if found.since and found.since.version == version:
        which = f"version {version}, which was checked before"
    rows = "1 row" if found.rows == 1 else f"{found.rows:,} rows"
    covered = f" from {found.range}" if found.range else ""
    return f"{which}: {rows}{covered}{', read by Spark' if found.read_by == 'spark' else ''}"


def _mark(result: Result) -> str:
    return "ok    " if result.success else "BROKEN" if result.fails else "warn  "


def summary(found: Check) -> str:
    """What is broken, and what to run next; without values of events."""
    broken = "; ".join(f"{each.expectation}: {each.observed}" for each in found.broken)
    query = f"SELECT * FROM ops.quality WHERE pipeline = '{found.pipeline}' AND NOT success"
    return f"{found.table}, written by `{found.pipeline}`, is not as expected: {broken}. Next: {command('sql', query)}"


def run_checks(
    out: Console, err: Console, lake: Lake, definitions: Sequence[Definition], *, all_rows: bool
) -> list[Check]:
    """Checks tables, one after the other, says what each check has found, and records it.

    Args:
        out: takes what is found.
        err: takes how Spark starts, where it is needed.
        lake: where.
        definitions: that write the tables.
        all_rows: look at all rows, instead of those that are new.
    """
    checks: list[Check] = []
    with ExitStack() as stack:
        started: list[SparkSession] = []

        def spark() -> SparkSession:
            if not started:
                started.append(stack.enter_context(session(lake, err, about=definitions)))
            return started[0]

        for definition in definitions:
            found = check(lake, definition, spark, personal=personal_with(definition), all_rows=all_rows)
            out.print(check_text(found), highlight=False, markup=False, soft_wrap=True)
            publish(lake, found)
            broken_expectations.note(lake, found)
            publish_pages(lake, definition, registry())
            out.print(f"  report {address(lake, definition.sink.table)}", highlight=False, markup=False, soft_wrap=True)
            if (page := link_in_airflow(definition.sink.table)) is not None:
                out.print(f"  link, with a login to Airflow: {page}", highlight=False, markup=False, soft_wrap=True)
            if (page := link(lake, definition.sink.table)) is not None:
                out.print(f"  link, for 12 hours: {page}", highlight=False, markup=False, soft_wrap=True)
            checks.append(found)
    return checks
