"""From the text of a row to typed columns, and the verdict on it: good, or why not."""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.spec import Files, Ingest, RowRule
from spark_jobs.spec.durations import duration_ms, format_duration
from spark_jobs.spec.expressions import columns

RAW = "__raw"
REASON = "__reason"
DETAIL = "__detail"
HEADER = "header"
UNPARSEABLE = "unparseable"
FUTURE = "future"
PAST = "before year 1"
UNREADABLE = "unreadable file"

# 0001-01-01 and 9999-12-31: what every reader of a table can show, and far from where arithmetic overflows.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999

_ROW = "__row"
_CORRUPT = "_corrupt"


def schema_ddl(definition: Ingest) -> str:
    """The payload columns as a Spark schema."""
    return ", ".join(f"`{name}` {sql_type}" for name, sql_type in definition.columns.items())


def parse(raw: DataFrame, definition: Ingest) -> DataFrame:
    """Adds the payload columns to rows of text, and `__reason` where the text gives none.

    Args:
        raw: has the text in `__raw`.
        definition: says which format, columns and types.
    """
    source = definition.source
    schema = f"{schema_ddl(definition)}, {_CORRUPT} STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if isinstance(source, Files) and source.format == "csv":
        row = F.from_csv(RAW, schema, {**options, "sep": source.delimiter, "escape": '"'})
    else:
        row = F.from_json(RAW, schema, options)
    parsed = raw.withColumn(_ROW, row)
    corrupt = F.col(f"{_ROW}.{_CORRUPT}").isNotNull() | F.col(_ROW).isNull() | F.col(RAW).isNull()
    if not (isinstance(source, Files) and source.format == "csv"):
        corrupt |= _holds_two_objects(F.col(RAW))
    return parsed.select(
        *raw.columns,
        *(F.col(f"{_ROW}.`{name}`").alias(name) for name in definition.columns),
        F.when(corrupt, F.lit(UNPARSEABLE)).alias(REASON),
    )


def _holds_two_objects(text: Column) -> Column:
    """Whether another object follows the first one, which `from_json` would pass over in silence."""
    seldom = F.when(text.rlike(r"\}\s*,?\s*\{"), F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))))
    return F.coalesce(seldom > 1, F.lit(False)) | (text.rlike(r"\}\s*\{") & seldom.isNull())


def header_of(line: Column) -> Column:
    """A header line without what programs add to it: quotes, blanks, carriage returns and byte order marks."""
    return F.regexp_replace(line, '[" \r\ufeff]', "")


def is_header_line(header: str) -> Column:
    """Whether a row is the header that is expected."""
    return header_of(F.col(RAW)) == F.lit(header.replace(" ", ""))


def expected_header(definition: Ingest, source: Files) -> str:
    """The header that a CSV file of this definition has."""
    return source.delimiter.join(definition.columns)


def judge(rows: DataFrame, definition: Ingest) -> DataFrame:
    """Completes `__reason` (the first rule that a row breaks; null for a good row) and adds `__detail`.

    A time further ahead of the row's arrival than `max_future` is a reason of its own, `future`: as an event it would
    drag the watermark forward and make all honest events late.
    """
    limit_us = duration_ms(definition.max_future) * 1000
    arrival = F.col("_ingest_time")
    if definition.arrival_time:
        arrival = F.least(F.col(definition.arrival_time), arrival)
    event_time = F.col(definition.event_time)
    # Compared without a difference, which could overflow: a stream would stop at such a row for ever.
    latest_us = F.least(F.unix_micros(arrival), F.lit(_LAST_US)) + F.lit(limit_us)
    too_far = F.unix_micros(event_time) > latest_us
    too_early = F.unix_micros(event_time) < F.lit(_FIRST_US)
    verdict = F.when(F.col(REASON).isNotNull(), F.col(REASON))
    detail = F.when(F.col(REASON).isNotNull(), F.concat(F.lit("no "), F.lit(_form(definition)), F.lit(" row")))
    for rule in definition.all_rules:
        if rule.on_failure == "quarantine":
            verdict = verdict.when(broken(rule), F.lit(rule.name))
            detail = detail.when(broken(rule), _values(sorted(columns(rule.condition))))
    verdict = verdict.when(too_far, F.lit(FUTURE)).when(too_early, F.lit(PAST))
    ahead = f", more than {format_duration(definition.max_future)} after its arrival"
    far = F.concat(_values([definition.event_time]), F.lit(ahead))
    detail = detail.when(too_far, far).when(too_early, _before_year_one(definition.event_time))
    return rows.withColumns({REASON: verdict, DETAIL: detail})


def broken(rule: RowRule) -> Column:
    """Whether a row breaks the rule; a condition that is null holds."""
    return ~F.coalesce(F.expr(rule.condition), F.lit(True))


def rules_with(definition: Ingest, on_failure: str) -> tuple[RowRule, ...]:
    """The rules that only warn, or that stop the stream."""
    return tuple(rule for rule in definition.all_rules if rule.on_failure == on_failure)


def _before_year_one(column: str) -> Column:
    return F.concat(F.lit(f"{column} is "), F.unix_micros(column).cast("string"), F.lit(" microseconds from 1970"))


def _form(definition: Ingest) -> str:
    return definition.source.format.upper() if isinstance(definition.source, Files) else "JSON"


def _values(names: Sequence[str]) -> Column:
    parts = [F.concat(F.lit(f"{name} is "), F.coalesce(F.col(name).cast("string"), F.lit("null"))) for name in names]
    return reduce(lambda left, right: F.concat(left, F.lit(", "), right), parts) if parts else F.lit("")
