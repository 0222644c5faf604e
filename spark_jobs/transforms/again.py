"""Rows of a quarantine, read again as if the stream read them for the first time."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan.csv_headers import header_line
from spark_jobs.plan.quarantine import header_told
from spark_jobs.spec import Ingest
from spark_jobs.transforms.bronze import bronze_columns
from spark_jobs.transforms.rows import (
    HEADER,
    RAW,
    REASON,
    broken,
    faults_of,
    is_header_line,
    judge,
    parse,
    parsing,
    rules_with,
)

INDEX = "__index"
"""The place of a row among those that are read again."""

WAS = "__was"
"""Why it was set aside."""

PASSES = "__passes"
"""Whether it goes to bronze now."""

_WAS_DETAIL, _SOURCE = "__was_detail", "__source"


def read_again(set_aside: DataFrame, definition: Ingest) -> DataFrame:
    """The rows with the columns of the definition as it is now, `WAS`, `INDEX` and `PASSES`.

    A row arrived when it came for the first time: by that its event time is judged, however late it is read again.

    Args:
        set_aside: rows of the quarantine, with `INDEX`; none of which `plan.quarantine` says that they cannot be read.
        definition: of the ingest.
    """
    raw = set_aside.select(
        F.col("raw").alias(RAW),
        F.col("reason").alias(WAS),
        F.col("detail").alias(_WAS_DETAIL),
        F.col("_source").alias(_SOURCE),
        "_ingest_time",
        INDEX,
    )
    judged = judge(parse(raw, parsing(raw.sparkSession, definition)), faults_of(definition))
    strict = (broken(rule) for rule in rules_with(definition, "fail"))
    refused = reduce(lambda left, right: left | right, strict, F.col(REASON).isNotNull())
    if definition.source.has_header:
        names, delimiter = tuple(definition.columns), definition.source.delimiter
        # Its file's header stands in the detail.
        header = header_line(names, delimiter)
        known = (header_told(header, delimiter, quoted=quoted) for quoted in (True, False))
        same = reduce(lambda left, right: left | right, (_ends(f", got {each}") for each in known))
        other = (F.col(WAS) == HEADER) & ~same
        refused = refused | is_header_line(names, delimiter) | F.coalesce(other, F.lit(True))
    return judged.withColumn(PASSES, ~refused)


def _ends(text: str) -> Column:
    return F.endswith(F.col(_WAS_DETAIL), F.lit(text))


def for_bronze(passed: DataFrame, definition: Ingest, clock: Column, seq: Column) -> DataFrame:
    """Rows that have passed as bronze has them.

    Args:
        passed: from `read_again`.
        definition: of the ingest.
        clock: when they come to bronze.
        seq: their number there.
    """
    return passed.select(*bronze_columns(definition, seq=seq, clock=clock, source=F.col(_SOURCE)))
