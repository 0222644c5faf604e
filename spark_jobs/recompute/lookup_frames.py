"""Events with the number of the version range that they are looked up in, and the tables that have the columns."""

from collections.abc import Iterable, Sequence
from functools import reduce
from math import inf

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.plan.columns import INGEST_SEQ, LOOKED_UP, VERSION_RANGE
from spark_jobs.recompute.lookup_versions import End, Span, VersionRange, end_of, read_by, refuse_made_anew
from spark_jobs.recompute.target import Target
from spark_jobs.spark.columns import columns_of
from spark_jobs.transforms.branches import union


def with_version_range(
    events: DataFrame, target: Target, table: str, known: Sequence[VersionRange], span: Span
) -> DataFrame:
    """Adds `VERSION_RANGE`: in which range the stream has read an event; what it has not read is in the last.

    `_ingest_seq` grows from commit to commit, so that it tells the commits, and the files of one, apart.

    Args:
        events: of a source table.
        target: the pipeline.
        table: the source.
        known: the version ranges.
        span: those in which it has read these events.

    Raises:
        BackfillRefusedError: if the table's log does not tell any more.
    """
    ends = (end_of(target, table, each) for each in known[span.first : span.last])
    return events.withColumn(VERSION_RANGE, _first([_is_read(end) for end in ends], span))


def with_range_of_batch(late: DataFrame, known: Sequence[VersionRange], span: Span) -> DataFrame:
    """Adds `VERSION_RANGE` to events that say as of what batch they are looked up (`LOOKED_UP`)."""
    return late.withColumn(
        VERSION_RANGE,
        _first([F.col(LOOKED_UP) <= each.last_batch for each in known[span.first : span.last]], span),
    )


def _first(conditions: Sequence[Column], span: Span) -> Column:
    """The number of the first version range whose condition is true; else the last."""
    numbered = reversed(list(enumerate(conditions, start=span.first)))
    return reduce(lambda rest, each: F.when(each[1], each[0]).otherwise(rest), numbered, F.lit(span.last))


def _is_read(end: End) -> Column:
    seq = F.col(INGEST_SEQ)
    if end.below == inf:
        return F.lit(True)
    read = F.lit(False) if end.below == -inf else seq < int(end.below)
    return reduce(lambda found, each: found | seq.between(*each), end.further, read)


def lookup_frames(
    spark: SparkSession, target: Target, known: Sequence[VersionRange], which: Iterable[int]
) -> dict[str, DataFrame]:
    """Lookup table -> its rows in each of some version ranges, which are given by their numbers, with `VERSION_RANGE`.

    Raises:
        NotComparableError: if a table was removed and made anew since.
    """
    asked, frames = sorted(which), {}
    refuse_made_anew(target, known, asked, "Nothing was written.")
    for table in {table for each in known for table in each.versions}:
        versions: dict[int, list[int]] = {}
        for number in asked:
            versions.setdefault(known[number].versions[table], []).append(number)
        reader, address = spark.read.format("delta"), target.lake.table_path(table)
        columns = sorted({column for step in target.logical.lookups if step.table == table for column in read_by(step)})
        frames[table] = union(
            [
                reader.option("versionAsOf", version)
                .load(address)
                .select(*columns_of(columns), F.explode(F.lit(numbers)).alias(VERSION_RANGE))
                for version, numbers in versions.items()
            ]
        )
    return frames
