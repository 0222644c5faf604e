"""Steps that take the events of a key in order of event time.

A stream holds them in the keyed operator of the JVM until the watermark has passed them (`spark/ordered.py`). In batch
all of a range are there, and Spark's own window functions compute the same rows.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from spark_jobs.plan.columns import (
    EVENT_COLUMNS,
    EVENTS,
    HEARTBEAT,
    INGEST_SEQ,
    OTHER,
    PLACE,
    SIDE,
    SOURCE_TABLE,
)
from spark_jobs.plan.operators import Side
from spark_jobs.plan.operators.join import BOTH, LEFT, RIGHT
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spark.ordered import WATERMARK, Measures, Packing, Rules, in_order, unpacked_measures
from spark_jobs.spec import AsOf, Counting, DefinitionError, Join, Running, Sliding
from spark_jobs.spec.durations import duration_ms
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.operators.base import Transform

_TIME_US, _SEQ, _SIDE, _KEY, _EVENT, _THEIRS, _ON = "time_us", "seq", "side", "key", "event", "__other_key_", "__on"
_OTHER_SIDE, _OWN_SIDE = 0, 1


def place_of(events: DataFrame, time: str, side: Side) -> tuple[Column, Column]:
    """Where an event stands among those of its side: its time, which carries the watermark, and its number."""
    delay_ms = duration_ms(side.delay) if side.delay is not None else 0
    time_us = F.unix_micros(column(time)).alias(_TIME_US, metadata={WATERMARK: delay_ms})
    seq = F.col(INGEST_SEQ)
    if SOURCE_TABLE in events.columns:
        # Numbers count up in each table: of two with the same one the table decides, in the order of the definition.
        tables = [table.name for table in side.tables]
        at = F.array_position(F.array(*map(F.lit, tables)), F.col(SOURCE_TABLE)) - 1
        seq = seq * len(tables) + at
    return time_us, seq.alias(_SEQ)


def _placed(events: DataFrame, time: str, side: Side, number: int) -> list[Column]:
    return [*place_of(events, time, side), F.lit(number).alias(_SIDE)]


def _key(events: DataFrame, names: Sequence[str], *, unique: Column | None = None) -> DataFrame:
    """The events with the columns of their key as one struct, `__on`, in which equal keys have equal bytes.

    Args:
        events: of one side.
        names: of the key's columns.
        unique: a number by which an event with a null in its key is like no other; None: nulls are equal.
    """
    types = {field.name: field.dataType for field in events.schema}
    parts = [
        # 0.0 and -0.0 are equal, and their bytes are not.
        (F.when(column(name) == 0, F.lit(0).cast(types[name])).otherwise(column(name)).alias(name))
        if isinstance(types.get(name), DoubleType | FloatType)
        else column(name)
        for name in names
    ]
    if unique is not None:
        null = F.lit(False)
        for name in names:
            null = null | column(name).isNull()
        parts.append(F.when(null, unique).otherwise(F.lit(-1).cast("bigint")).alias("__unique"))
    return events.withColumn(_ON, F.struct(*parts) if parts else F.struct(F.lit(0).alias("__all")))


class OrderedTransform(Transform):
    """`Sliding`, `Counting` and `Running`."""

    def results(self, *sides: DataFrame) -> DataFrame:
        """One row for each event, or for each so many."""
        (events,) = sides
        pipeline = self.operator.pipeline
        (events,) = self.kept(events)
        step = self._step
        measures = Measures(events, step.measures)
        if isinstance(step, Running) and (function := measures.not_running) is not None:
            raise DefinitionError(
                f"pipeline `{pipeline.name}`: Running cannot keep the state of {function} from batch to batch; use "
                "functions such as sum, count, avg, min, max. Nothing was started or written."
            )
        found = self._streamed(events, measures) if events.isStreaming else self._in_batch(events, measures)
        found = self._given(found)
        return with_row_steps(found, pipeline.result_steps, removed=WITHHELD)

    def kept(self, *sides: DataFrame) -> tuple[DataFrame, ...]:
        """The events, but for what only the stream needs of them."""
        return tuple(events.drop(PLACE, HEARTBEAT) for events in sides)

    @property
    def _step(self) -> Sliding | Counting | Running:
        kinds = (Sliding, Counting, Running)
        return next(step for step in self.operator.pipeline.steps if isinstance(step, kinds))

    @property
    def _time(self) -> str:
        return str(self.operator.pipeline.event_time)

    def _streamed(self, events: DataFrame, measures: Measures) -> DataFrame:
        rules, step = Rules(events.sparkSession), self._step
        match step:
            case Sliding():
                rule: Any = rules.sliding(duration_ms(step.size) * 1000, measures)
            case Counting():
                rule = rules.counting(step.size, measures)
            case Running():
                rule = rules.running(measures)
        keyed = _key(events, step.by)
        packing, key = Packing(keyed, events.columns), Packing(keyed, (_ON,))
        placed = _placed(events, self._time, self.operator.sides[0], _OWN_SIDE)
        given = in_order(keyed.select(*placed, packing.packed.alias(_EVENT), key.packed.alias(_KEY)), rule)
        found = given.select(
            packing.unpacked(F.col(_EVENT)).alias(_EVENT),
            unpacked_measures(events.sparkSession, measures, F.col("measures")).alias("measures"),
        )
        return found.select(f"{_EVENT}.*", "measures.*")

    def _in_batch(self, events: DataFrame, measures: Measures) -> DataFrame:
        step = self._step
        placed = _key(events, step.by).select("*", *_placed(events, self._time, self.operator.sides[0], _OWN_SIDE))
        of_key = Window.partitionBy(_ON)
        match step:
            case Sliding():
                window = of_key.orderBy(_TIME_US).rangeBetween(1 - duration_ms(step.size) * 1000, 0)
            case Running():
                window = of_key.orderBy(_TIME_US, _SEQ).rowsBetween(Window.unboundedPreceding, Window.currentRow)
            case Counting():
                number = F.row_number().over(of_key.orderBy(_TIME_US, _SEQ))
                placed = placed.withColumn("__number", number - 1)
                placed = placed.withColumn("__group", F.expr(f"__number div {step.size}"))
                window = Window.partitionBy(_ON, "__group").orderBy(_TIME_US, _SEQ)
                window = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        found = measures.over(placed, window)
        if isinstance(step, Counting):
            found = found.where(F.col("__number") % step.size == step.size - 1)
        return found.select(*columns_of((*events.columns, *step.measures)))

    def _given(self, found: DataFrame) -> DataFrame:
        step = self._step
        if not isinstance(step, Counting):
            return found
        own = [name for name in (*EVENT_COLUMNS, SOURCE_TABLE) if name in found.columns]
        kept = columns_of((*step.by, self._time, *step.measures, *own))
        return found.select(*kept, F.lit(step.size).cast("bigint").alias(EVENTS))

    def written(self, results: DataFrame) -> DataFrame:
        """The columns of events and the measures; of bronze's own columns last which event a row is of."""
        written = super().written(results)
        own = [name for name in (*EVENT_COLUMNS, SOURCE_TABLE, EVENTS) if name in written.columns]
        return written.select(*columns_of((*(name for name in written.columns if name not in own), *own)))


class LatestTransform(Transform):
    """`AsOf`, and `Join` with `keep`: each event with the latest one of the other side at its time."""

    def results(self, *sides: DataFrame) -> DataFrame:
        """One row for each event that has such a one, and for each without where the step gives these, too."""
        left, right = self.kept(*sides)
        step = self._step
        names = {name: f"{OTHER}{name}" for name in (*EVENT_COLUMNS, SOURCE_TABLE) if name in right.columns}
        left = _key(left, step.on, unique=F.col(INGEST_SEQ) * 2 + _OWN_SIDE)
        right = _key(right, step.on, unique=F.col(INGEST_SEQ) * 2 + _OTHER_SIDE)
        own, other = self._own_columns(left), [name for name in right.columns if name != _ON]
        placed = (
            left.select("*", *_placed(left, str(self.operator.pipeline.event_time), self.operator.sides[0], _OWN_SIDE)),
            right.select("*", *_placed(right, step.event_time, self.operator.sides[1], _OTHER_SIDE)),
        )
        put_together = self._streamed if left.isStreaming else self._in_batch
        pairs = put_together(placed, own, other)
        keys = [F.coalesce(F.col(f"own.{n}"), F.col(f"other.{n}")).alias(n) for n in step.on]
        both = F.when(F.col("other").isNull(), LEFT).when(F.col("own").isNull(), RIGHT).otherwise(BOTH)
        plain = [n for n in own if n not in (*step.on, *EVENT_COLUMNS, SOURCE_TABLE)]
        theirs = [n for n in other if n not in (*step.on, *names)]
        columns = [*keys, *(F.col("own").getField(n).alias(n) for n in plain)]
        columns += [F.col("other").getField(n).alias(n) for n in theirs]
        columns += [both.alias(SIDE), *(F.col("own").getField(n).alias(n) for n in EVENT_COLUMNS)]
        columns += [F.col("other").getField(n).alias(named) for n, named in names.items() if n != SOURCE_TABLE]
        columns += [F.col("own").getField(n).alias(n) for n in own if n == SOURCE_TABLE]
        return with_row_steps(pairs.select(*columns), self.operator.pipeline.result_steps, removed=WITHHELD)

    def kept(self, *sides: DataFrame) -> tuple[DataFrame, ...]:
        """The events, but for what only the stream needs of them."""
        return tuple(events.drop(PLACE, HEARTBEAT) for events in sides)

    @property
    def _step(self) -> AsOf | Join:
        return next(step for step in self.operator.pipeline.steps if isinstance(step, AsOf | Join))

    @property
    def _keep_us(self) -> int:
        step = self._step
        return duration_ms(step.keep) * 1000 if step.keep is not None else 0

    @property
    def _both_ask(self) -> bool:
        return isinstance(self._step, Join)

    @property
    def _alone(self) -> tuple[bool, bool]:
        """Whether events of the pipeline, and those of the other table, are rows without one of the other side."""
        return self._step.how in ("left", "full"), self._step.how in ("right", "full")

    @staticmethod
    def _own_columns(left: DataFrame) -> list[str]:
        return [name for name in left.columns if name != _ON]

    def _streamed(self, placed: tuple[DataFrame, DataFrame], own: Sequence[str], other: Sequence[str]) -> DataFrame:
        packings = [Packing(events, names) for events, names in zip(placed, (own, other), strict=True)]
        left, right = (
            events.select(
                _TIME_US,
                _SEQ,
                _SIDE,
                packing.packed.alias(_EVENT),
                Packing(events, (_ON,)).packed.alias(_KEY),
            )
            for events, packing in zip(placed, packings, strict=True)
        )
        own_alone, other_alone = self._alone
        rule = Rules(left.sparkSession).latest(
            keep_us=self._keep_us, both_ask=self._both_ask, own_alone=own_alone, other_alone=other_alone
        )
        given = in_order(left.unionByName(right), rule)
        return given.select(
            packings[0].unpacked(F.col(_EVENT)).alias("own"), packings[1].unpacked(F.col("other")).alias("other")
        )

    def _in_batch(self, placed: tuple[DataFrame, DataFrame], own: Sequence[str], other: Sequence[str]) -> DataFrame:
        left, right = placed
        place = [F.col(name) for name in (_TIME_US, _SEQ, _SIDE, _ON)]
        events = left.select(*place, F.struct(*columns_of(own)).alias("own")).unionByName(
            right.select(*place, F.struct(*columns_of(other)).alias("other")), allowMissingColumns=True
        )
        window: WindowSpec = Window.partitionBy(_ON).orderBy(_TIME_US, _SIDE, _SEQ)
        window = window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        held = {}
        for name in ("own", "other"):
            with_time = F.when(F.col(name).isNotNull(), F.struct(F.col(_TIME_US), F.col(name)))
            latest = F.last(with_time, ignorenulls=True).over(window)
            held[name] = F.when(latest.getField(_TIME_US) >= F.col(_TIME_US) - self._keep_us, latest.getField(name))
        own_alone, other_alone = self._alone
        of_other = F.col(_SIDE) == _OTHER_SIDE
        asks = F.when(of_other, F.lit(self._both_ask)).otherwise(F.lit(True))
        paired = F.col("own").isNotNull() & F.col("other").isNotNull()
        alone = F.when(of_other, F.lit(other_alone)).otherwise(F.lit(own_alone))
        asking = events.select(_SIDE, asks.alias("__asks"), *(each.alias(name) for name, each in held.items()))
        return asking.where(F.col("__asks") & (paired | alone)).select("own", "other")


__all__ = ["LatestTransform", "OrderedTransform"]
