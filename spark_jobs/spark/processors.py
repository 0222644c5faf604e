"""Processors in Python on Spark's `transformWithState`.

Spark's key is a bucket of keys: what waits lies in one value of it, with one timer, so that an event costs no look at
the state, and a key one in a batch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from spark_jobs.plan.processing import Arrival, Bucket, ProcessRunner
from spark_jobs.spark.map_values import MapValues
from spark_jobs.spark.ordered import BUCKETS
from spark_jobs.spec import Process

GIVEN = StructType(
    [
        StructField("key", StringType()),
        StructField("at_us", LongType()),
        StructField("number", LongType()),
        StructField("events", LongType()),
        StructField("row", StringType()),
    ]
)
"""What a processor gives: the key and the row as JSON."""

JSON_OPTIONS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX", "ignoreNullFields": "false"}
"""How Spark writes and reads the values of events, keys, states and rows."""

_LINE = ("at_us", "seq", "time_us", "key", "event")
"""Of what `plan.processing.line_of` makes the line of an event. None of it is ever null."""

_BUCKET = StructType([StructField("timer_ms", LongType()), StructField("text", StringType())])
_KEY = StructType([StructField("key", StringType())])
_STATE = StructType([StructField("state", StringType())])


@dataclass
class _Processor(StatefulProcessor):
    """Spark's view of a bucket; the work is `plan.processing`'s, which knows no Spark."""

    step: Process
    columns: Mapping[str, str]
    by_clock: bool
    _runner: Any = field(default=None, init=False)

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._bucket = handle.getValueState("bucket", _BUCKET)
        self._keys = MapValues(handle.getMapState("keys", _KEY, _STATE))
        self._runner = ProcessRunner(self.step, self.columns)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        return self._advance(rows, timerValues, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        return self._advance(iter(()), timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass

    def _advance(self, frames: Iterator[Any], clock: Any, fired_ms: int | None) -> Iterator[Any]:
        import pandas as pd

        now_ms = clock.getCurrentProcessingTimeInMs() if self.by_clock else clock.getCurrentWatermarkInMs()
        kept = self._bucket.get()
        set_ms = kept[0] if kept is not None else None
        bucket = Bucket(self._runner, self.step, kept[1] if kept is not None else None)
        lines = chain.from_iterable(frame["line"] for frame in frames)
        found = [(key, *given) for key, given in bucket.advance(lines, now_ms * 1000, self._keys.get, self._keys.put)]
        # Spark's timers know milliseconds.
        timer_ms = None if bucket.next_us is None else max(-(-bucket.next_us // 1000), now_ms + 1)
        if timer_ms != set_ms:
            if set_ms is not None and set_ms != fired_ms:
                self._handle.deleteTimer(set_ms)
            if timer_ms is not None:
                self._handle.registerTimer(timer_ms)
        self._bucket.update((timer_ms, bucket.text))
        return iter([pd.DataFrame(found, columns=list(GIVEN.names))] if found else [])


def processed(arrived: DataFrame, step: Process, columns: Mapping[str, str]) -> DataFrame:
    """What a processor gives for a stream, as `GIVEN`.

    Args:
        arrived: `at_us`, `seq`, `time_us`, and `key` and `event` as JSON; by event time `at_us` carries the watermark.
        step: which names the processor.
        columns: of the events, with their SQL types.
    """
    by_clock = step.clock == "processing_time"
    bucket = F.expr(f"pmod(hash(key), {BUCKETS})").cast(IntegerType()).alias("bucket")
    # What Spark does for each row in Python, it does for each of its columns: so they are few.
    return (
        arrived.select(bucket, "at_us", F.concat_ws("\t", *_LINE).alias("line"))
        .groupBy("bucket")
        .transformWithStateInPandas(
            _Processor(step, dict(columns), by_clock),
            GIVEN,
            "append",
            "ProcessingTime" if by_clock else "EventTime",
        )
    )


def processed_in_batch(arrived: DataFrame, step: Process, columns: Mapping[str, str]) -> DataFrame:
    """The same of all events of a range, with their timers fired to the end.

    Args:
        arrived: as in `processed`.
        step: likewise.
        columns: likewise.
    """
    import pyarrow as pa

    end_us = 2**62

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        runner = ProcessRunner(step, columns)
        schema = pa.schema(
            [
                ("key", pa.string()),
                *((name, pa.int64()) for name in ("at_us", "number", "events")),
                ("row", pa.string()),
            ]
        )

        def of_key(key: str, events: list[Arrival]) -> Iterator[dict[str, Any]]:
            for given in runner.run(key, runner.state(None), events, end_us):
                yield {"key": key, **given._asdict()}

        key, events = None, list[Arrival]()
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                if row["key"] != key:
                    rows += of_key(key, events) if key is not None else ()
                    key, events = row["key"], []
                events.append((row["at_us"], row["seq"], row["time_us"], row["event"]))
            yield pa.RecordBatch.from_pylist(rows, schema)
        if key is not None:
            yield pa.RecordBatch.from_pylist(list(of_key(key, events)), schema)

    together = arrived.select("key", "at_us", "seq", "time_us", "event").repartition("key")
    return together.sortWithinPartitions("key", "at_us", "seq").mapInArrow(run, GIVEN)
