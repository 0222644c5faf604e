"""Rows of a state store with the names that a definition gives them, read with Spark's own reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_jobs.plan.columns import OTHER, WINDOW_END, WINDOW_START, WINDOWS_IN_STATE
from spark_jobs.plan.operators import step_of
from spark_jobs.plan.operators.ordered import ORDERED
from spark_jobs.plan.operators.process import PROCESSED
from spark_jobs.plan.state_columns import measures_in_state
from spark_jobs.spark.ordered import Measures, Packing
from spark_jobs.spark.processors import JSON_OPTIONS
from spark_jobs.spark.state import state_frame
from spark_jobs.spec import Pipeline, Process
from spark_jobs.spec.names import in_spark

EXPIRES_AT = "expires_at"
"""Of a key that is remembered: when it is forgotten, by the watermark."""
_SIDES = ("left", "right")
WAITING, KEPT = "waiting", "kept"
"""Of a keyed operator: events that wait for the watermark, and what is kept of each key."""
_EXPIRY = "expiresAtMicros"
_COMPARED = ("__on", f"{OTHER}__on")
"""By which a join compares: it repeats columns beside it."""


@dataclass(frozen=True)
class StoreFrame:
    """A store, and its rows.

    Attributes:
        operator: its number.
        name: Spark's name of the operator.
        side: of a join: `left` or `right`; of a keyed operator: what waits for the watermark, or is kept of keys;
            empty: of none.
        frame: one row for each key, or each remembered event.
        keys: columns that tell rows apart, by which they are sorted.
    """

    operator: int
    name: str
    side: str
    frame: DataFrame
    keys: tuple[str, ...]


def store_frame(
    spark: SparkSession,
    folder: str,
    pipeline: Pipeline,
    *,
    operator: int,
    name: str,
    side: str = "",
    kept: Sequence[DataFrame] = (),
) -> StoreFrame:
    """The rows of an operator's state.

    Args:
        spark: the session.
        folder: a checkpoint that nobody changes, with one batch.
        pipeline: whose state it is.
        operator: its number.
        name: Spark's name of it.
        side: of a join, or what of a keyed operator's state; empty: it has none.
        kept: the events of each side as a keyed operator keeps them packed.
    """
    if name in _KEYED:
        frame, by = _KEYED[name](spark, folder, pipeline, operator, side, kept)
        return StoreFrame(operator, name, side, frame, by)
    options = {"operatorId": str(operator), **({"joinSide": side} if side else {})}
    state = state_frame(spark, folder, **options)
    key, value = _positions(state, "key"), _positions(state, "value")
    named = state.select(key.struct, value.struct)
    columns = _columns(pipeline, name, key, value)
    keys = tuple(each for each, is_key in ((c[0], c[2]) for c in columns) if is_key)
    return StoreFrame(operator, name, side, named.select(*(c[1].alias(c[0]) for c in columns)), keys)


def sides_of(name: str) -> Sequence[str]:
    """The sides of an operator's state: of a join two, else one without a name."""
    if name in _KEYED:
        return (WAITING, KEPT)
    return _SIDES if name == "symmetricHashJoin" else ("",)


@dataclass(frozen=True)
class _Struct:
    """A half of the state with a name for each place: Spark's own may be there twice."""

    struct: Column
    names: tuple[str, ...]
    half: str

    def at(self, place: int) -> Column:
        return F.col(f"{self.half}.p{place}")

    def where(self, name: str) -> Column:
        return self.at(self.names.index(name))


def _positions(state: DataFrame, half: str) -> _Struct:
    fields: list[StructField] = state.schema[half].dataType.fields  # type: ignore[attr-defined]
    renamed = StructType([StructField(f"p{at}", each.dataType, True) for at, each in enumerate(fields)])
    return _Struct(F.col(half).cast(renamed).alias(half), tuple(each.name for each in fields), half)


_Named = list[tuple[str, Column, bool]]
"""Name, column, and whether it is one of the key."""


def _columns(pipeline: Pipeline, name: str, key: _Struct, value: _Struct) -> _Named:
    if name.startswith("stateStore"):
        return [*_flat(key, is_key=True), *_measures(pipeline, value, 0)]
    if name.startswith("sessionWindow"):
        # Its values repeat the window and the key: `session_window`, the columns of the key, then what is computed.
        count = len(key.names)
        return [*_flat(value, is_key=True, upto=count), *_measures(pipeline, value, count)]
    if name.startswith("dedupe") and value.names == (_EXPIRY,):
        return [*_flat(key, is_key=True), (EXPIRES_AT, F.timestamp_micros(value.at(0)), False)]
    if name == "symmetricHashJoin":
        return [each for each in _flat(value) if each[0] not in _COMPARED]
    return [*_flat(key, is_key=True), *_flat(value)]


def _flat(half: _Struct, *, is_key: bool = False, upto: int | None = None) -> _Named:
    found: _Named = []
    for place, name in enumerate(half.names[:upto]):
        column = half.at(place)
        if name in WINDOWS_IN_STATE:
            found += [
                (WINDOW_START, column.getField("start"), is_key),
                (WINDOW_END, column.getField("end"), is_key),
            ]
        else:
            found.append((name, column, is_key))
    return found


def _measures(pipeline: Pipeline, value: _Struct, begin: int) -> _Named:
    measures = measures_in_state(pipeline, value.names[begin:])
    if measures is None:
        # As Spark calls them, numbered where a name is there twice.
        return [
            (name if value.names.count(name) == 1 else f"{name}_{place}", value.at(place), False)
            for place, name in enumerate(value.names)
            if place >= begin
        ]
    found: _Named = []
    for measure in measures:
        first, *rest = (value.at(begin + place) for place in measure.places)
        found.append((measure.name, F.try_divide(first, rest[0]) if rest else first, False))
    return found


def _ordered(
    spark: SparkSession, folder: str, pipeline: Pipeline, operator: int, side: str, kept: Sequence[DataFrame]
) -> tuple[DataFrame, tuple[str, ...]]:
    """Events that wait for the watermark, or are kept of a key; and what is kept of measures."""
    step = pipeline.stateful_steps[0]
    by: tuple[str, ...] = getattr(step, "on", ()) or getattr(step, "by", ())
    options = {"operatorId": str(operator), "stateVarName": side}
    state = state_frame(spark, folder, **options)
    if side == WAITING:
        events = state.select(F.explode("value.events").alias("event"))
    else:
        value = F.col("user_map_value")
        events = state.select(
            F.explode_outer(value.getField("events")).alias("event"), value.getField("total").alias("total")
        )
    # Of two sides the events of the other one have the number 0.
    sides = [(kept[0], 1)] if len(kept) == 1 else [(kept[0], 1), (kept[1], 0)]
    values: dict[str, Column] = {}
    for frame, number in sides:
        event = Packing(frame, frame.columns).unpacked(F.col("event.event"))
        for name in frame.columns:
            value = F.when(F.col("event.side") == number, event.getField(name))
            values[name] = F.coalesce(values[name], value) if name in values else value
    measures: Mapping[str, str] = getattr(step, "measures", {})
    if side == KEPT and measures and (taken := Measures(kept[0], measures)).not_running is None:
        now = taken.now(F.col("total"))
        values |= {name: now.getField(name) for name in measures}
    return events.select(*(value.alias(name) for name, value in values.items())), by


def _processed(
    spark: SparkSession, folder: str, pipeline: Pipeline, operator: int, side: str, kept: Sequence[DataFrame]
) -> tuple[DataFrame, tuple[str, ...]]:
    """Events that wait for the watermark, as JSON; or the fields of each key and its timers."""
    step = step_of(pipeline, Process)
    types = {field.name: field.dataType.simpleString() for field in kept[0].schema}
    keys = ", ".join(f"`{name}` {types[name]}" for name in step.by)

    def columns_of_key(text: Column) -> list[Column]:
        key = F.from_json(text, keys, JSON_OPTIONS)
        return [key.getField(name).alias(name) for name in step.by]

    if side == WAITING:
        state = state_frame(spark, folder, operatorId=str(operator), stateVarName="bucket")
        waiting = F.split(F.split("value.text", "\n\n").getItem(0), "\n")
        lines = state.select(F.explode(waiting).alias("line")).select(F.split("line", "\t").alias("line"))
        lines = lines.where(F.size("line") > 1)
        at = F.timestamp_micros(F.col("line").getItem(2).cast("bigint")).alias(str(pipeline.event_time))
        line = F.col("line")
        return lines.select(*columns_of_key(line.getItem(3)), at, line.getItem(4).alias("event")), step.by
    state = state_frame(spark, folder, operatorId=str(operator), stateVarName="keys")
    fields = ", ".join(f"`{name}`: {sql_type}" for name, sql_type in step.state.items())
    form = f"version INT, state STRUCT<{fields}>, timers MAP<STRING, BIGINT>, events BIGINT"
    value = F.from_json("user_map_value.state", form, JSON_OPTIONS)
    timers = F.transform_values(value.getField("timers"), lambda _, at: F.timestamp_micros(at)).alias("timers")
    of_processor = [value.getField("state").getField(name).alias(name) for name in step.state]
    if step.version > 1:  # what a lower one has kept has its fields, until the key is next needed
        of_processor.append(value.getField("version").alias("version"))
    return state.select(*columns_of_key(F.col("user_map_key.key")), *of_processor, timers), step.by


_KEYED = {ORDERED: _ordered, PROCESSED: _processed}
"""Spark's name of a keyed operator -> what reads its state."""


def only(frame: StoreFrame, keys: Sequence[tuple[str, str]], watermark_ms: int | None) -> DataFrame:
    """Rows with some values, of windows that end after a watermark, sorted.

    Args:
        frame: of a store.
        keys: column and value as a text; an empty one is also a null.
        watermark_ms: milliseconds since 1970; None: all windows.
    """
    found = frame.frame
    for name, value in keys:
        found = found.where(F.coalesce(F.col(in_spark(name)).cast("string"), F.lit("")) == value)
    if watermark_ms is not None and WINDOW_END in found.columns:
        found = found.where(F.unix_millis(WINDOW_END) > watermark_ms)
    return found.orderBy(*(F.col(in_spark(name)) for name in frame.keys)) if frame.keys else found
