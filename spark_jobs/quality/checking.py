"""Checks a table: the suite of its definition over what it gained since the check before."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
from deltalake import DeltaTable

from spark_jobs.lake import Lake
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables import watermarks
from spark_jobs.lake.tables.files import reading
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.lake.tables.quality import Check, Result, last_mark
from spark_jobs.plan.columns import FINAL_AFTER, WINDOW_END
from spark_jobs.plan.personal import PersonalColumns
from spark_jobs.quality.added import added
from spark_jobs.quality.frames import ROWS, DuckDbRows, Rows, SparkRows, held
from spark_jobs.quality.masking import masked
from spark_jobs.quality.suites import RowCheck, Suite, named, sql_type, suite_of
from spark_jobs.quality.validating import QualityError, validate
from spark_jobs.quality.whole_tables import TableUnderCheck, look, needs_rows
from spark_jobs.spec import Definition
from spark_jobs.spec.equivalence import why_unproven
from spark_jobs.spec.names import in_duckdb
from spark_jobs.spec.personal import concealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS = 5_000_000
MOST_BYTES = 512 * 1024 * 1024
"""What is more than this is read by Spark."""


def check(
    lake: Lake,
    definition: Definition,
    spark: "Callable[[], SparkSession]",
    *,
    personal: PersonalColumns | None = None,
    all_rows: bool = False,
    now: datetime | None = None,
    most_rows: int = MOST_ROWS,
    most_bytes: int = MOST_BYTES,
) -> Check:
    """Checks the table of a definition. What it finds is not recorded yet.

    Args:
        lake: where.
        definition: that writes the table.
        spark: gives the session, where one is needed; DuckDB reads what it can.
        personal: which columns' values are not shown; None: those that follow from this definition alone.
        all_rows: look at all rows, instead of those that are new.
        now: by the clock; None: this moment.
        most_rows: what is more is read by Spark.
        most_bytes: what is more is read by Spark.

    Raises:
        MissingTableError: if the table does not exist.
        MissingFilesError: if a data file is gone.
        QualityError: if a rule can be computed nowhere.
    """
    suite = suite_of(definition)
    try:
        opened = open_table(lake, suite.table)
    except MissingTableError as error:
        raise MissingTableError(
            f"table {suite.table}: not in the lake {lake.uri}, so `{suite.pipeline}` has nothing to check yet. Start "
            f"it: {command('run', suite.pipeline)}"
        ) from error
    now = now or datetime.now(UTC)
    since = None if all_rows else last_mark(lake, suite.pipeline, suite.table)
    # What is appended is final as it stands.
    revised = definition.sink.mode == "update" and FINAL_AFTER in {field.name for field in opened.schema().fields}
    watermark = watermarks.published(lake).get(suite.pipeline) if revised else None
    new = added(lake, suite.table, opened, since, revised=revised, watermark=watermark)
    personal = personal or PersonalColumns((definition,))
    hidden = personal.of(suite.table)
    types = {field.name: sql_type(field.type) for field in opened.schema().fields}
    possible, results = _possible(suite, opened)
    small = (new.rows or 0) <= most_rows and new.bytes <= most_bytes
    read_by = "duckdb"
    with (
        reading(lake, lambda _: [suite.table], version=opened.version()),
        held(lake, suite.table, opened, new, _columns(suite, possible, opened, small=small)) as rows,
    ):
        count, covered = rows.count, _range(rows, opened)
        left_out = [] if count else [*(each.name for each in possible), *map(_name, filter(needs_rows, suite.tables))]
        if count and possible:
            proven = [each for each in possible if small and why_unproven(each.rule.condition, types) is None]
            by_name = _by_duckdb(suite, proven, rows, hidden) if proven else {}
            if left := [each for each in possible if each.name not in by_name]:
                read_by = "spark"
                by_name |= _by_spark(suite, left, SparkRows(spark(), lake, suite.table, new), count, hidden)
            results += [by_name[each.name] for each in possible]
        checked = TableUnderCheck(lake, suite, opened, rows, personal, now)
        results += [look(checked, each) for each in suite.tables if count or not needs_rows(each)]
    return Check(
        pipeline=suite.pipeline,
        table=suite.table,
        checked_at=now,
        since=new.since,
        upto=new.upto,
        range=covered,
        rows=count,
        results=tuple(results),
        left_out=tuple(left_out),
        read_by=read_by,
    )


def _name(expectation: Any) -> str:
    return str(expectation.name)


def _possible(suite: Suite, opened: DeltaTable) -> tuple[list[RowCheck], list[Result]]:
    """The rules that the table has columns for, and what is to be said of the others."""
    # As Spark does: whatever their case.
    types = {field.name.casefold(): sql_type(field.type) for field in opened.schema().fields}
    possible, results = [], []
    for each in suite.rows:
        missing = [name for name in each.columns if name.casefold() not in types]
        why = f"{suite.table} has no column {', '.join(map(repr, missing))}" if missing else None
        for name in () if missing else each.columns:
            if refused := each.rule.refuses_type(types[name.casefold()]):
                why = f"it {refused}, but {name!r} is {types[name.casefold()]}: use Satisfies(name, condition)"
        if why is None:
            possible.append(each)
        else:
            results.append(Result(each.name, each.severity, False, f"cannot be checked: {why}"))
    return possible, results


def _columns(suite: Suite, possible: list[RowCheck], opened: DeltaTable, *, small: bool) -> set[str]:
    """The columns of new rows that DuckDB is to have."""
    wanted = {name for each in suite.tables if needs_rows(each) for name in each.read}
    if small:
        wanted |= {name for each in possible for name in each.columns}
    folded = {name.casefold() for name in wanted}
    names = {field.name for field in opened.schema().fields}
    return {name for name in names if name.casefold() in folded} | _times(suite.event_time, names)


def _times(event_time: str | None, names: Collection[str]) -> set[str]:
    found = WINDOW_END if WINDOW_END in names else event_time
    return {found} if found is not None and found in names else set()


def _range(rows: DuckDbRows, opened: DeltaTable) -> str:
    """The times of the rows, in words."""
    known = {str(row[0]) for row in rows.connection.execute(f"DESCRIBE {ROWS}").fetchall() if "TIMESTAMP" in row[1]}
    names = [field.name for field in opened.schema().fields if field.name in known and field.name != FINAL_AFTER]
    if not names:
        return ""
    column = in_duckdb(WINDOW_END if WINDOW_END in names else names[0])
    ((first, last),) = rows.connection.execute(f"SELECT min({column}), max({column}) FROM {ROWS}").fetchall()
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC" if first is not None else ""


def _by_duckdb(suite: Suite, rules: list[RowCheck], rows: DuckDbRows, personal: Collection[str]) -> dict[str, Result]:
    """By the name of the rule; of none where DuckDB meets a value that it cannot compute one of them for."""
    if rows.refuses(rules):
        return {}
    try:
        broken = rows.broken(rules)
    except duckdb.Error:
        return {}
    return _found(suite, rules, rows, broken, rows.count, personal)


def _by_spark(
    suite: Suite, rules: list[RowCheck], rows: Rows, count: int, personal: Collection[str]
) -> dict[str, Result]:
    from pyspark.errors import PySparkException

    try:
        return _found(suite, rules, rows, rows.broken(rules), count, personal)
    except PySparkException as error:
        told, known = str(error).splitlines()[0], {name for rule in rules for name in rule.columns}
        if personal:
            told = concealed(type(error).__name__, str(error), known)
        raise QualityError(
            f"table {suite.table}: {named(rules)} cannot be computed: {told}. Nothing of this check was recorded."
        ) from (None if personal else error)


def _found(
    suite: Suite, rules: list[RowCheck], rows: Rows, broken: list[int], count: int, personal: Collection[str]
) -> dict[str, Result]:
    verdicts = validate(suite.table, rules, broken)
    return {
        rule.name: Result(
            rule.name,
            rule.severity,
            holds,
            f"{wrong:,} of {count:,} rows break it",
            wrong,
            count,
            masked(rows.samples(rule) if wrong else [], personal),
        )
        for rule, holds, wrong in zip(rules, verdicts, broken, strict=True)
    }
