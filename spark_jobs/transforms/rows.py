"""From the text of a row to typed columns, and the verdict on it: good, or why not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.plan.csv_headers import header_pattern
from spark_jobs.plan.quarantine import HEADER as HEADER
from spark_jobs.plan.quarantine import INSIDE_QUOTES, NOT_UTF8, SKIPPED
from spark_jobs.plan.quarantine import REPEATED_HEADER as REPEATED_HEADER
from spark_jobs.plan.quarantine import UNREADABLE as UNREADABLE
from spark_jobs.spark.columns import column
from spark_jobs.spark.schemas import schema_ddl
from spark_jobs.spark.strict import read_strictly
from spark_jobs.spec import Ingest, RowRule
from spark_jobs.spec.contract import UNKNOWN_FIELDS
from spark_jobs.spec.durations import format_duration
from spark_jobs.spec.expressions import columns
from spark_jobs.spec.names import in_spark
from spark_jobs.spec.personal import MASK, is_personal
from spark_jobs.transforms.csv_columns import NO_WIDER, Wider, csv_row, kept_values
from spark_jobs.transforms.csv_lines import leaves_quote_open
from spark_jobs.transforms.event_times import FIRST_US, LAST_US, outside_years, too_far_ahead

RAW = "__raw"
REASON = "__reason"
DETAIL = "__detail"
UNPARSEABLE = "unparseable"
FUTURE = "future"
PAST = "before year 1"
MISSING_COLUMN = "missing column"
WRONG_TYPE = "wrong type"

_DAY_US = 86_400_000_000

MORE = "__more"
"""Names of the fields of a JSON object that no column takes; null where there are none."""

MISFIT = "__misfit"
"""What is said of the values of a row of Parquet that are none of their type; null where there are none."""

_ROW = "__row"
_ALSO = "__also"
_FAULT = "__fault"
CORRUPT = "_corrupt"


@dataclass(frozen=True)
class Parsing:
    """How rows of text are parsed: columns that are built once, and used in each batch.

    Attributes:
        helpers: columns of their own: what is asked more than once is not found out again.
        added: the payload, `__reason` and `__detail`, out of these.
    """

    helpers: Mapping[str, Column]
    added: Sequence[Column]


def parsing(spark: SparkSession, definition: Ingest, wider: Wider = NO_WIDER) -> Parsing:
    """How the rows of an ingest of text are parsed.

    Args:
        spark: the session.
        definition: says which format, columns and types.
        wider: files of CSV that have more columns.
    """
    return _csv(spark, definition, wider) if definition.source.is_csv else _json(spark, definition)


def parse(raw: DataFrame, how: Parsing) -> DataFrame:
    """Adds the payload columns to rows of text, and `__reason` with `__detail` where the text gives none.

    Args:
        raw: has the text in `__raw`.
        how: of `parsing`.
    """
    return raw.withColumns({**how.helpers}).select("*", *how.added).drop(*how.helpers)


def _json(spark: SparkSession, definition: Ingest) -> Parsing:
    options = {
        **_options(definition),
        "keeps_more": UNKNOWN_FIELDS in definition.payload,
        "last_wins": definition.contract.repeated == "last",
        "refuses_missing": definition.contract.missing != "null",
    }
    row = read_strictly(spark, "json", F.col(RAW), schema_ddl(definition.columns), options)
    more = UNKNOWN_FIELDS if UNKNOWN_FIELDS in definition.payload else MORE
    added = (
        *(F.col(f"{_ROW}.{in_spark(name)}").alias(name) for name in definition.columns),
        F.col(f"{_ROW}.__more").alias(more),
        F.col(f"{_ROW}.__reason").alias(REASON),
        F.when(F.col(f"{_ROW}.__reason") == NOT_UTF8, not_utf8_detail(F.col(RAW)))
        .otherwise(F.col(f"{_ROW}.__detail"))
        .alias(DETAIL),
    )
    return Parsing({_ROW: row}, added)


def _csv(spark: SparkSession, definition: Ingest, wider: Wider) -> Parsing:
    delimiter = definition.source.delimiter
    texts = csv_row(RAW, dict.fromkeys(definition.columns, "STRING"), CORRUPT, delimiter, wider)
    row = read_strictly(spark, "csv", texts, schema_ddl(definition.columns), _options(definition))
    unsound = F.col(RAW).isNotNull() & ~F.is_valid_utf8(RAW)
    kept = kept_values(RAW, definition.columns, delimiter, wider)
    added = (
        *(F.col(f"{_ROW}.{in_spark(name)}").alias(name) for name in definition.columns),
        *([kept.alias(UNKNOWN_FIELDS)] if UNKNOWN_FIELDS in definition.payload else []),
        F.when(unsound, NOT_UTF8).when(F.col(_ALSO), UNPARSEABLE).otherwise(F.col(f"{_ROW}.__reason")).alias(REASON),
        F.when(unsound, not_utf8_detail(F.col(RAW)))
        .when(F.col(_ALSO), "no CSV row: a quote is not closed on its line")
        .otherwise(F.col(f"{_ROW}.__detail"))
        .alias(DETAIL),
    )
    return Parsing({_ROW: row, _ALSO: leaves_quote_open(F.col(RAW), delimiter)}, added)


def _options(definition: Ingest) -> dict[str, Any]:
    """How values are written, and what is said of those that are written otherwise."""

    def written(name: str) -> dict[str, Any]:
        parsing = definition.parsing.get(name)
        given = parsing.model_dump(mode="json", exclude_none=True) if parsing is not None else {}
        return {"type": definition.columns[name], **given}

    return {
        "columns": {name: written(name) for name in definition.columns},
        "wrong_type": WRONG_TYPE if definition.contract.retyped == "fail" else UNPARSEABLE,
        "personal": sorted(name for name in definition.columns if is_personal(name, definition.personal)),
        "mask": MASK,
    }


def typed(rows: DataFrame, definition: Ingest) -> DataFrame:
    """Adds `__reason` and `__detail` to rows that have their columns already, as those of Parquet files.

    A text that is not UTF-8 is refused by every reader of Delta tables that comes upon it, and a time that no calendar
    has by most. `MISFIT` is given up.
    """
    types = {name: rows.schema[name].dataType.simpleString() for name in definition.columns}
    texts = [column(name).cast("string") for name, kind in types.items() if "string" in kind]
    unsound = reduce(lambda left, right: left | right, (~F.is_valid_utf8(text) for text in texts), F.lit(False))
    unsound = F.coalesce(unsound, F.lit(False))
    shown = F.concat_ws(", ", *texts) if texts else F.lit("")
    times = {name: kind for name, kind in types.items() if kind.startswith(("timestamp", "date"))}
    odd = F.concat_ws(", ", *(F.when(no_calendar_has(column(name), kind), F.lit(name)) for name, kind in times.items()))
    is_odd = odd != "" if times else F.lit(False)
    told = F.concat(F.lit("a time before the year 1 or after 9999: "), odd)
    return rows.withColumns(
        {
            REASON: F.when(unsound, F.lit(NOT_UTF8)).when(F.col(MISFIT).isNotNull() | is_odd, F.lit(UNPARSEABLE)),
            DETAIL: F.when(unsound, not_utf8_detail(shown))
            .when(F.col(MISFIT).isNotNull(), F.col(MISFIT))
            .when(is_odd, told),
        }
    ).drop(MISFIT)


def no_calendar_has(time: Column, kind: str) -> Column:
    """Whether a time lies before the year 1 or after 9999.

    Args:
        time: a date or a timestamp.
        kind: `date`: the one; else the other.
    """
    if kind == "date":
        days = F.unix_date(time)
        return (days < F.lit(FIRST_US // _DAY_US)) | (days > F.lit(LAST_US // _DAY_US))
    return outside_years(F.unix_micros(time.cast("timestamp")))


def not_utf8_detail(text: Column) -> Column:
    """The bytes of a text that no table can hold; two texts that differ there alone must not become one."""
    return F.concat(F.lit("base64 of its bytes: "), F.base64(text.cast("binary")))


def part_of_value_set_aside(rows: DataFrame, marked: str) -> DataFrame:
    """Sets aside the lines that go on with a value of a line before: each may look like a row, and is none.

    Args:
        rows: with `__reason` and `__detail`.
        marked: column that is true for such lines; it is given up.
    """
    # The bytes of a line that is not UTF-8 are told by its detail alone.
    part = F.col(marked) & F.coalesce(F.col(REASON) != NOT_UTF8, F.lit(True))
    why = F.lit(INSIDE_QUOTES)
    verdict = {
        REASON: F.when(part, F.lit(UNPARSEABLE)).otherwise(F.col(REASON)),
        DETAIL: F.when(part, why).otherwise(F.col(DETAIL)),
    }
    return rows.withColumns(verdict).drop(marked)


def is_header_line(names: Sequence[str], delimiter: str) -> Column:
    """Whether a row is the header of a file with these columns."""
    return F.coalesce(F.col(RAW).rlike(header_pattern(names, delimiter)), F.lit(False))


@dataclass(frozen=True)
class Faults:
    """What may be wrong with a row: columns that are built once, and used in each batch.

    Attributes:
        first: the number of the first fault that a row has; null for a good row. A column of its own, so that no rule
            is computed again for the words about a row that breaks none.
        verdict: `__reason` and `__detail`, out of it.
    """

    first: Column
    verdict: Mapping[str, Column]


def judge(rows: DataFrame, faults: Faults) -> DataFrame:
    """Completes `__reason` (the first rule that a row breaks; null for a good row) and `__detail`.

    Args:
        rows: typed.
        faults: that they may have.
    """
    return rows.withColumn(_FAULT, faults.first).withColumns({**faults.verdict}).drop(_FAULT)


def faults_of(definition: Ingest, *, set_aside: Sequence[RowRule] = ()) -> Faults:
    """What may be wrong with a typed row of an ingest.

    A time further ahead of the row's arrival than `max_future` is a reason of its own, `future`: as an event it would
    drag the watermark forward and make all honest events late.

    Args:
        definition: its rules that quarantine are applied.
        set_aside: rules that are applied to what is left, because a person has decided so about the batch.
    """
    arrival = F.col("_ingest_time")
    if definition.arrival_time:
        arrival = F.least(column(definition.arrival_time), arrival)
    event_time = column(definition.event_time)
    too_far = too_far_ahead(event_time, arrival, definition.max_future)
    too_early = F.unix_micros(event_time) < F.lit(FIRST_US)
    ahead = f", more than {format_duration(definition.max_future)} after its arrival"
    far = F.concat(_values([definition.event_time], definition.personal), F.lit(ahead))
    quarantining = [rule for rule in definition.all_rules if rule.on_failure == "quarantine"]
    # Those of a decision come after all others: so they are the rows that were counted when the pipeline halted, and no
    # more.
    faults = [
        *((broken(rule), rule.name, values_read(rule, definition.personal)) for rule in quarantining),
        (too_far, FUTURE, far),
        (too_early, PAST, _before_year_one(definition.event_time, definition.personal)),
        *((broken(rule), rule.name, values_read(rule, definition.personal)) for rule in set_aside),
    ]
    first_broken = F.when(F.col(REASON).isNotNull(), F.lit(-1))
    for index, (is_broken, _, _) in enumerate(faults):
        first_broken = first_broken.when(is_broken, F.lit(index))
    fault, sound = F.col(_FAULT), F.col(_FAULT).isNull()
    reason, detail = (
        F.when(sound, None).when(fault < 0, F.col(REASON)),
        F.when(sound, None).when(fault < 0, F.col(DETAIL)),
    )
    for index, (_, name, values) in enumerate(faults):
        reason, detail = reason.when(fault == index, F.lit(name)), detail.when(fault == index, values)
    return Faults(first_broken, {REASON: reason, DETAIL: detail})


def skipped(rows: DataFrame) -> DataFrame:
    """Gives every judged row the reason `skipped`; the detail says what was wrong with it, if anything was."""
    # Of columns that are null `concat_ws` makes an empty text.
    why = F.when(F.col(REASON).isNotNull(), F.concat_ws(": ", REASON, DETAIL))
    return rows.withColumns({DETAIL: why, REASON: F.lit(SKIPPED)})


def unread(raw: DataFrame, definition: Ingest) -> DataFrame:
    """Rows as of `skipped`, of which nothing is looked at: their columns are null, their text is there.

    Args:
        raw: as the source gives them; of Parquet files, with their columns.
        definition: of the ingest.
    """
    rows = raw if MISFIT not in raw.columns else raw.drop(MISFIT)
    types = {name: kind for name, kind in definition.payload.items() if name not in rows.columns}
    nothing = {name: F.lit(None).cast(kind) for name, kind in types.items()}
    more = {MORE: F.lit(None).cast("array<string>")} if definition.reads_json else {}
    return rows.withColumns({**nothing, **more, REASON: F.lit(SKIPPED), DETAIL: F.lit(None).cast("string")})


def values_read(rule: RowRule, personal: Collection[str]) -> Column:
    """The values that a rule goes by, those of personal columns masked."""
    return _values(sorted(columns(rule.condition)), personal)


def broken(rule: RowRule) -> Column:
    """Whether a row breaks the rule; a condition that is null holds."""
    return ~F.coalesce(F.expr(rule.condition), F.lit(True))


def breaches(definition: Ingest) -> tuple[str, ...]:
    """The reasons at which the contract stops the stream."""
    contract = definition.contract
    asked = ((MISSING_COLUMN, contract.missing), (WRONG_TYPE, contract.retyped))
    return tuple(reason for reason, choice in asked if choice == "fail")


def rules_with(definition: Ingest, on_failure: str) -> tuple[RowRule, ...]:
    """The rules that only warn, or that stop the stream."""
    return tuple(rule for rule in definition.all_rules if rule.on_failure == on_failure)


def _before_year_one(name: str, personal: Collection[str]) -> Column:
    if is_personal(name, personal):
        return _values([name], personal)
    return F.concat(F.lit(f"{name} is "), F.unix_micros(column(name)).cast("string"), F.lit(" microseconds from 1970"))


def _values(names: Sequence[str], personal: Collection[str]) -> Column:
    def shown(name: str) -> Column:
        return F.lit(MASK) if is_personal(name, personal) else F.coalesce(column(name).cast("string"), F.lit("null"))

    parts = [F.concat(F.lit(f"{name} is "), shown(name)) for name in names]
    return reduce(lambda left, right: F.concat(left, F.lit(", "), right), parts) if parts else F.lit("")
