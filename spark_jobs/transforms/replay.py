"""What a stream has made of events whose batches decide: the recorded batches again, each with its watermark.

Rules: Spark's `session_window` joins an event to every session of its key that it touches and that is still in the
state; a session leaves the state when the watermark of a batch has reached its end.
"""

from collections.abc import Sequence
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from spark_jobs.plan.columns import BATCH, CLOSED, SESSION

_AT, _GAP, _FROM, _UPTO = "__at_us", "__gap_of_event_us", "__session_from_us", "__session_upto_us"


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
    found = timed.groupBy(*(F.col(f"`{name}`") for name in keys)).applyInArrow(_sessions, schema)
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
