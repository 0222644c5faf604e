"""What a stream has made of events, where what came before decides.

Rules: Spark's `session_window` joins an event to every session of its key that it touches and that is still in the
state; a session leaves the state when the watermark of a batch has reached its end.
"""

from collections.abc import Sequence
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from spark_jobs.plan.columns import BATCH, CLOSED, IN_RESULT, INGEST_SEQ, SESSION, SOURCE_TABLE
from spark_jobs.spark.columns import columns_of
from spark_jobs.spec.names import in_spark

_AT, _GAP, _FROM, _UPTO = "__at_us", "__gap_of_event_us", "__session_from_us", "__session_upto_us"


def first_of_each(events: DataFrame, keys: Sequence[str], time: str, within_ms: int) -> DataFrame:
    """The events that are in the result, and those with no event of their key near them that is, in order of arrival.

    Args:
        events: with `IN_RESULT`.
        keys: of which there is to be one event.
        time: the event time.
        within_ms: two events of a key are the same where less than this lies between them, in milliseconds.
    """
    kept, event = "__kept", "__event"
    row = F.struct(*columns_of(events.columns)).alias(event)
    # What is in the result first, then by arrival; of two tables' events with one number always the same one.
    source = F.col(SOURCE_TABLE) if SOURCE_TABLE in events.columns else F.lit("")
    order = F.struct((~F.col(IN_RESULT)).alias("later"), F.col(INGEST_SEQ).alias("seq"), source.alias("source"), row)
    compared = " ".join(
        f"WHEN left.{field} < right.{field} THEN -1 WHEN left.{field} > right.{field} THEN 1"
        for field in ("later", "seq", "source")
    )
    distance = f"abs(unix_micros(k.{event}.{in_spark(time)}) - unix_micros(e.{event}.{in_spark(time)}))"
    taken = f"exists(kept, k -> {distance} < {within_ms * 1000}L)"
    empty = f"filter({kept}, e -> false)"
    grouped = events.groupBy(*columns_of(keys)).agg(F.collect_list(order).alias(kept))
    in_order = grouped.select(F.expr(f"array_sort({kept}, (left, right) -> CASE {compared} ELSE 0 END)").alias(kept))
    greedy = f"aggregate({kept}, {empty}, (kept, e) -> IF(e.later AND {taken}, kept, concat(kept, array(e))))"
    return in_order.select(F.explode(F.expr(greedy)).alias("__one")).select(f"__one.{event}.*").drop(IN_RESULT)


def with_sessions(events: DataFrame, keys: Sequence[str], time: Column, gap_us: Column) -> DataFrame:
    """Adds `SESSION`, the session into which the stream has counted an event.

    Args:
        events: those that were in time, with `BATCH` and `CLOSED`.
        keys: of the sessions.
        time: of an event.
        gap_us: how long it keeps its session open, in microseconds.
    """
    timed = events.withColumns({_AT: F.unix_micros(time), _GAP: gap_us})
    bounds = [StructField(name, LongType()) for name in (_FROM, _UPTO)]
    schema = StructType([*timed.schema.fields, *bounds])
    found = timed.groupBy(*columns_of(keys)).applyInArrow(_sessions, schema)
    session = F.struct(F.timestamp_micros(_FROM).alias("start"), F.timestamp_micros(_UPTO).alias("end"))
    return found.withColumn(SESSION, session).drop(_AT, _GAP, _FROM, _UPTO)


def _sessions(events: pa.Table) -> pa.Table:
    columns = [events.column(name).to_pylist() for name in (BATCH, CLOSED, _AT, _GAP)]
    rows = sorted(enumerate(zip(*columns, strict=True)), key=itemgetter(1))
    found: list[tuple[int, int]] = [(0, 0)] * events.num_rows
    # Sessions in the state: from, up to, and which events they have.
    state: list[tuple[int, int, list[int]]] = []
    for index, (_, closed_us, at_us, gap_us) in rows:
        begin, end, members = at_us, at_us + gap_us, [index]
        kept = []
        for session in state:
            if session[1] <= closed_us:
                continue
            if session[0] <= end and begin <= session[1]:
                begin, end, members = min(begin, session[0]), max(end, session[1]), members + session[2]
            else:
                kept.append(session)
        state = [*kept, (begin, end, members)]
        for member in members:
            found[member] = begin, end
    begins, ends = zip(*found, strict=True)
    return events.append_column(_FROM, pa.array(begins, pa.int64())).append_column(_UPTO, pa.array(ends, pa.int64()))
