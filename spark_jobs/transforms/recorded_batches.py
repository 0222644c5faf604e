"""What a stream has made of events, where what came before decides.

Rules: Spark's `session_window` joins an event to every session of its key that it touches and that is still in the
state; a session leaves the state when the watermark of a batch has reached its end. Spark's
`dropDuplicatesWithinWatermark` removes every event in time whose key is in the state, however far it lies from the
first one and on either side of it; a key leaves the state when the watermark of a batch has reached its first event's
time plus the time to live.
"""

from collections.abc import Sequence
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from spark_jobs.plan.columns import BATCH, CLOSED, IN_RESULT, INGEST_SEQ, SESSION, SOURCE_TABLE
from spark_jobs.spark.columns import column, columns_of

_AT, _GAP, _FROM, _UPTO = "__at_us", "__gap_of_event_us", "__session_from_us", "__session_upto_us"


def first_of_each(events: DataFrame, keys: Sequence[str], time: str, within_ms: int) -> DataFrame:
    """The events that the stream has let through, and of those that were late the ones that are the first of their key.

    The recorded batches are gone through again. The result tells which event Spark has taken of several in one batch,
    and is believed where a row that it lacks would have kept out one that it has. A late event, which Spark compared
    with nothing, is a duplicate of what is let through at most `within_ms` before or after it.

    Args:
        events: with `IN_RESULT`, `BATCH` and `CLOSED`; late ones only where they count.
        keys: of which there is to be one event.
        time: the event time.
        within_ms: how long a key is remembered, in milliseconds.
    """
    instant = F.unix_micros(column(time))
    late = instant <= F.col(CLOSED)
    # Of two tables' events with one number always the same one comes first.
    source = F.col(SOURCE_TABLE) if SOURCE_TABLE in events.columns else F.lit("")
    entry = F.struct(
        # They come in this order: what was in time batch by batch, then what was late; of equals what the result has.
        late.alias("late"),
        F.when(late, F.lit(0)).otherwise(F.col(BATCH)).alias("batch"),
        (~F.col(IN_RESULT)).alias("missing"),
        F.col(INGEST_SEQ).alias("seq"),
        source.alias("source"),
        F.col(CLOSED).alias("closed_us"),
        instant.alias("at_us"),
        F.struct(*columns_of(events.columns)).alias("event"),
    )
    grouped = events.groupBy(*columns_of(keys)).agg(F.collect_list(entry).alias("__entries"))
    order = ("late", "batch", "missing", "seq", "source")
    compared = " ".join(f"WHEN l.{name} < r.{name} THEN -1 WHEN l.{name} > r.{name} THEN 1" for name in order)
    in_order = grouped.select(F.expr(f"array_sort(__entries, (l, r) -> CASE {compared} ELSE 0 END)").alias("__entries"))
    # Of what was let through, the last one that was in time is what the state remembers.
    remembered = "k.batch = e.batch OR k.at_us + {within_us}L > e.closed_us"
    within_us = within_ms * 1000
    near = f"exists(kept, k -> abs(k.at_us - e.at_us) <= {within_us}L)"
    last = "element_at(kept, -1)"
    covered = f"exists(slice(kept, -1, 1), k -> {remembered.format(within_us=within_us)})"
    go_on = f"""CASE
        WHEN size(kept) = 0 THEN array(e)
        WHEN e.late THEN IF({near}, kept, concat(kept, array(e)))
        WHEN NOT {covered} THEN concat(kept, array(e))
        WHEN {last}.missing AND NOT e.missing THEN concat(slice(kept, 1, size(kept) - 1), array(e))
        ELSE kept END"""
    kept = f"aggregate(__entries, filter(__entries, e -> false), (kept, e) -> {go_on})"
    added = {IN_RESULT, BATCH, CLOSED}
    return in_order.select(F.explode(F.expr(kept)).alias("__one")).select("__one.event.*").drop(*added)


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
    # Sessions in the state, and those that have left it: from, up to, and which events they have.
    state: list[tuple[int, int, list[int]]] = []
    ended: list[tuple[int, int, list[int]]] = []
    for index, (_, closed_us, at_us, gap_us) in rows:
        begin, end, members = at_us, at_us + gap_us, [index]
        kept = []
        for session in state:
            if session[1] <= closed_us:
                ended.append(session)
            elif session[0] <= end and begin <= session[1]:
                begin, end = min(begin, session[0]), max(end, session[1])
                # The longer list takes the other in: a session of n events is not copied n times.
                fewer, members = sorted((members, session[2]), key=len)
                members += fewer
            else:
                kept.append(session)
        state = [*kept, (begin, end, members)]
    for begin, end, members in (*ended, *state):
        for member in members:
            found[member] = begin, end
    begins, ends = zip(*found, strict=True)
    return events.append_column(_FROM, pa.array(begins, pa.int64())).append_column(_UPTO, pa.array(ends, pa.int64()))
