"""Rows that an event can join to one: sessions.

No instant separates them for certain, so that rows are revised by clusters: what lies together of the rows that a table
has and of those that it should have. Each session that the table has is part of one that it should have, or the other
way round; a cluster is replaced as a whole or not at all, and belongs where it begins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.plan.columns import WINDOW_END, WINDOW_START
from spark_jobs.plan.identity import IDENTITY
from spark_jobs.recompute.differences import FROM, UPTO, near
from spark_jobs.recompute.frames import Recompute
from spark_jobs.recompute.ranges import Range
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spec.durations import duration_ms

_OPEN = "__open"

Choice = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class SessionClusters:
    """SessionClusters that are to be revised, and the rows that they should have.

    Attributes:
        rows: a row for each cluster: its key, `FROM` and `UPTO`; kept in memory until `release`.
        groups: what the step gives for the events of these clusters.
        where: which rows of the table may belong to them; SQL.
        times: where their events lie.
    """

    rows: DataFrame
    groups: DataFrame
    where: str
    times: tuple[Range, ...]

    def release(self) -> None:
        """Frees the memory that the frames of the clusters take."""
        self.rows.unpersist()

    def events(self, late: DataFrame) -> pa.Table:
        """Which of the late events belong to the clusters, by their identity.

        Args:
            late: as `Recompute.missed` gives them.
        """
        return near(late, self.rows).select(*IDENTITY).distinct().toArrow()


def starting_in(recompute: Recompute, part: Range, watermark_ms: int) -> SessionClusters:
    """The clusters that begin in a range."""
    begins = F.unix_micros(FROM)
    return _found(
        recompute,
        [part],
        watermark_ms,
        lambda clusters: clusters.where((begins >= part.begin_us) & (begins < part.end_us)),
    )


def holding(recompute: Recompute, late: DataFrame, times: Sequence[Range], watermark_ms: int) -> SessionClusters:
    """The clusters that late events belong to.

    Args:
        recompute: of the pipeline.
        late: as `Recompute.missed` gives them.
        times: where they lie.
        watermark_ms: of the stream.
    """
    keys = list(recompute.target.operator.state.event_keys)
    missed = F.broadcast(late.select(*(column(name).alias(f"__of_{name}") for name in keys), WINDOW_START))
    same = [column(name).eqNullSafe(column(f"__of_{name}")) for name in keys]
    inside = [F.col(WINDOW_START) >= F.col(FROM), F.col(WINDOW_START) < F.col(UPTO)]
    return _found(
        recompute,
        times,
        watermark_ms,
        lambda clusters: clusters.join(missed, [*same, *inside], "left_semi"),
        backwards=True,
    )


def _found(
    recompute: Recompute, times: Sequence[Range], watermark_ms: int, choose: Choice, *, backwards: bool = False
) -> SessionClusters:
    """Reads further, until the clusters are known whole; those that the stream has not closed are left as they are."""
    operator = recompute.target.operator
    before, after = (duration_ms(each) * 1000 for each in operator.recomputation.reach)
    # Events that reach into a range lie at most so far before it: what begins in it is known to begin there.
    step = max(before, after)
    most_us = watermark_ms * 1000 + step
    read = [Range(each.begin_us - step * (4 if backwards else 1), each.end_us + 4 * step) for each in times]
    while True:
        groups = recompute.groups(recompute.sources(read))
        closed = choose(_chains(recompute, groups, read, watermark_ms)).where(~F.col(_OPEN)).drop(_OPEN).persist()
        if not closed.where(~_whole(read, step, most_us)).limit(1).count():
            break
        closed.unpersist()
        # Twice as far each time: a session of a week takes a few rounds.
        read = [
            Range(each.begin_us - (each.end_us - each.begin_us if backwards else 0), 2 * each.end_us - each.begin_us)
            for each in read
        ]
    low, high = min(each.begin_us for each in read), max(each.end_us for each in read)
    where = f"{WINDOW_END} > timestamp_micros({low}L) AND {WINDOW_START} < timestamp_micros({high}L)"
    return SessionClusters(closed, near(groups, closed), where, tuple(read))


def _whole(read: Sequence[Range], step: int, most_us: int) -> Column:
    """Whether nothing that was not read can belong to a chain."""
    whole = F.lit(False)
    for each in read:
        starts = F.unix_micros(FROM) >= each.begin_us + step
        whole = whole | (starts & (F.lit(each.end_us > most_us) | (F.unix_micros(UPTO) < each.end_us)))
    return whole


def _chains(recompute: Recompute, groups: DataFrame, read: Sequence[Range], watermark_ms: int) -> DataFrame:
    """A row for each cluster: its key, `FROM`, `UPTO`, and whether the stream still holds a part of it."""
    target = recompute.target
    columns = [*target.operator.state.event_keys, WINDOW_START, WINDOW_END]
    reaches = [
        (F.col(WINDOW_END) > F.timestamp_micros(F.lit(each.begin_us)))
        & (F.col(WINDOW_START) < F.timestamp_micros(F.lit(each.end_us)))
        for each in read
    ]
    inside = reaches[0]
    for each in reaches[1:]:
        inside = inside | each
    is_open = F.unix_micros(WINDOW_END) > watermark_ms * 1000
    held = recompute.comparison.held(target.result, "true", columns).where(inside).withColumn(_OPEN, F.lit(False))
    both = groups.select(*columns_of(columns), is_open.alias(_OPEN)).unionByName(held)
    of_key = Window.partitionBy(*columns_of(target.operator.state.event_keys)).orderBy(WINDOW_START, WINDOW_END)
    reached = F.max(WINDOW_END).over(of_key.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.when(reached.isNull() | (F.col(WINDOW_START) >= reached), 1).otherwise(0)
    numbered = both.withColumn("__begins", begins).withColumn("__cluster", F.sum("__begins").over(of_key))
    clusters = numbered.groupBy(*columns_of(target.operator.state.event_keys), "__cluster").agg(
        F.min(WINDOW_START).alias(FROM), F.max(WINDOW_END).alias(UPTO), F.max(_OPEN).alias(_OPEN)
    )
    return clusters.drop("__cluster")
