"""Rows of a state store with the names that a definition gives them, read with Spark's own reader."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_jobs.plan.columns import OTHER, WINDOW_END, WINDOW_START, WINDOWS_IN_STATE
from spark_jobs.plan.state_columns import measures_in_state
from spark_jobs.spark.state import state_frame
from spark_jobs.spec import Pipeline
from spark_jobs.spec.names import in_spark

EXPIRES_AT = "expires_at"
"""Of a key that is remembered: when it is forgotten, by the watermark."""
_SIDES = ("left", "right")
_EXPIRY = "expiresAtMicros"
_COMPARED = ("__on", f"{OTHER}__on")
"""By which a join compares: it repeats columns beside it."""


@dataclass(frozen=True)
class StoreFrame:
    """A store, and its rows.

    Attributes:
        operator: its number.
        name: Spark's name of the operator.
        side: of a join: `left` or `right`; empty: of none.
        frame: one row for each key, or each remembered event.
        keys: columns that tell rows apart, by which they are sorted.
    """

    operator: int
    name: str
    side: str
    frame: DataFrame
    keys: tuple[str, ...]


def store_frame(
    spark: SparkSession, folder: str, pipeline: Pipeline, *, operator: int, name: str, side: str = ""
) -> StoreFrame:
    """The rows of an operator's state.

    Args:
        spark: the session.
        folder: a checkpoint that nobody changes, with one batch.
        pipeline: whose state it is.
        operator: its number.
        name: Spark's name of it.
        side: of a join; empty: it has none.
    """
    options = {"operatorId": str(operator), **({"joinSide": side} if side else {})}
    state = state_frame(spark, folder, **options)
    key, value = _positions(state, "key"), _positions(state, "value")
    named = state.select(key.struct, value.struct)
    columns = _columns(pipeline, name, key, value)
    keys = tuple(each for each, is_key in ((c[0], c[2]) for c in columns) if is_key)
    return StoreFrame(operator, name, side, named.select(*(c[1].alias(c[0]) for c in columns)), keys)


def sides_of(name: str) -> Sequence[str]:
    """The sides of an operator's state: of a join two, else one without a name."""
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
