"""Groups, measures and ranks."""

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan.columns import COUNTED_UPTO, EVENTS, GAP, JUDGED, SESSION, WINDOW
from spark_jobs.plan.comparing import MAY_BE, Leeway
from spark_jobs.plan.windowing import CalendarPeriods
from spark_jobs.spark.columns import EVENT_TIME_MARK, column, columns_of
from spark_jobs.spec import Aggregate, Calendar, Session, TopN, Window
from spark_jobs.spec.durations import duration_ms
from spark_jobs.spec.expressions import split_order_by
from spark_jobs.spec.names import in_spark


def aggregate(events: DataFrame, step: Aggregate, event_time: str | None, leeways: Sequence[Leeway] = ()) -> DataFrame:
    """One row for each window and key: `window_start`, `window_end`, the key, the measures and `__events`.

    Events may have `JUDGED`, the watermark by which they came too late for some of their windows, with `COUNTED_UPTO`,
    or their `SESSION`.

    On a stream this is Spark's own stateful aggregation; in batch it gives the rows that the stream would give if no
    event came late.

    Args:
        events: of the windows.
        step: that groups them.
        event_time: the column that windows go by.
        leeways: measures of which a column says, too, which values they may have: `MAY_BE` and their name.
    """
    keys: list[Column] = columns_of(step.by)
    if step.window is not None:
        if event_time is None:
            raise ValueError("a window needs an event time")
        in_session = SESSION in events.columns
        window = F.col(SESSION).alias(WINDOW) if in_session else window_column(event_time, step.window)
        if JUDGED in events.columns or isinstance(step.window, Calendar):
            # Of a window that is not Spark's own, Spark finds the mark of an event time only below the groups.
            events, window = events.select("*", window), F.col(WINDOW)
        if JUDGED in events.columns:
            # As the stream has counted them: not in windows that were closed when an event came.
            counted = f"{JUDGED} IS NULL OR {WINDOW}.end > {JUDGED}"
            if COUNTED_UPTO in events.columns:
                counted += f" OR {WINDOW}.end <= {COUNTED_UPTO}"
            events = events.where(counted)
        keys.insert(0, window)
    measures = [F.expr(sql).alias(name) for name, sql in step.measures.items()]
    parts = [F.expr(sql).alias(name) for each in leeways for name, sql in each.parts.items()]
    grouped = events.groupBy(*keys).agg(*measures, *parts, _event_count().alias(EVENTS))
    bounds = (
        [F.col(f"{WINDOW}.start").alias("window_start"), F.col(f"{WINDOW}.end").alias("window_end")]
        if step.window is not None
        else []
    )
    may_be = [F.expr(each.values).alias(f"{MAY_BE}{each.measure}") for each in leeways]
    return grouped.select(*bounds, *columns_of((*step.by, *step.measures)), *may_be, F.col(EVENTS))


def _event_count() -> Column:
    """A count that Spark does not merge with a `count(*)` of the user's, so that it stays the state's last column."""
    return F.sum(F.lit(1).cast("bigint"))


def top_n(results: DataFrame, step: TopN, by: Iterable[str], *, terms: Sequence[str] | None = None) -> DataFrame:
    """The first n rows of each window, with their `rank`; ties go by the key.

    Args:
        results: all groups of the windows that they belong to.
        step: how many, in which order.
        by: the key of a group inside its window.
        terms: of another order; None: that of the step.
    """
    order = ", ".join((*(terms or split_order_by(step.order_by)), *(in_spark(name) for name in by)))
    rank = F.expr(f"row_number() OVER (PARTITION BY window_start, window_end ORDER BY {order})")
    with_rank = results.withColumn("rank", rank).where(F.col("rank") <= step.n)
    bounds = ["window_start", "window_end", "rank"]
    return with_rank.select(*columns_of((*bounds, *(name for name in results.columns if name not in bounds))))


def gap_us(window: Session) -> Column:
    """How long an event keeps its session open, in microseconds."""
    return F.lit(duration_ms(window.gap) * 1000) if window.gap_sql is None else F.col(GAP)


def window_column(event_time: str, window: Window) -> Column:
    """The window of an event, as `__window`: a start and an end, by which Spark closes its groups.

    Args:
        event_time: the column that it goes by.
        window: as it is defined.
    """
    time = column(event_time)
    match window:
        case Calendar():
            periods = CalendarPeriods(window)
            bounds = {"start": periods.start_us, "end": periods.last_end_us}
            named = [F.timestamp_micros(F.expr(of(in_spark(event_time)))).alias(name) for name, of in bounds.items()]
            # Of a structure with this mark Spark takes the second field for the end, as of its own windows.
            return F.struct(*named).alias(WINDOW, metadata={EVENT_TIME_MARK: 0})
        case Session():
            gap = f"{duration_ms(window.gap)} milliseconds"
            given = gap if window.gap_sql is None else F.expr(f"concat({GAP}, ' microseconds')")
            return F.session_window(time, given).alias(WINDOW)
        case _:
            size, every, offset = (duration_ms(each) for each in (window.size, window.every, window.offset))
            return F.window(time, f"{size} milliseconds", f"{every} milliseconds", f"{offset} milliseconds").alias(
                WINDOW
            )
