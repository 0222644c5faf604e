"""Values of any type, held against each other.

Spark compares, sorts, joins and groups neither maps nor variants. They are compared as what they hold: a map as the
array of its entries in the order of their keys, a variant as its JSON. All of it is SQL.
"""

from collections.abc import Iterator
from itertools import count

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructField,
    StructType,
    VariantType,
)

from spark_jobs.spec.names import in_spark, text_in_spark

_SAME_DIGITS = "1E-9D"
"""Floating-point numbers are the same if they differ by less than this part of themselves."""


def same(one: str, other: str, kind: DataType) -> str:
    """Whether two values are the same; nulls are.

    Args:
        one: a value; SQL.
        other: likewise.
        kind: the type of both.
    """
    return f"({_plain(one, kind, _names())} <=> {_plain(other, kind, _names())})"


def close(one: str, other: str, kind: DataType) -> str:
    """The same, where numbers may differ in their last digits, wherever they lie in the values."""
    return among(other, f"array({one})", kind) if _has(kind, DoubleType, FloatType) else same(one, other, kind)


def among(value: str, values: str, kind: DataType) -> str:
    """Whether a value is one of several, part by part: a number also between the least and the greatest.

    Args:
        value: SQL.
        values: an array; SQL.
        kind: the type of the value.
    """
    names = _names()
    if _has(kind, MapType, VariantType):
        one = next(names)
        values = f"transform({values}, {one} -> {_plain(one, kind, names)})"
    return _among(_plain(value, kind, names), values, _plain_type(kind), names)


def _among(value: str, values: str, kind: DataType, names: Iterator[str]) -> str:
    one = next(names)
    is_one = f"exists({values}, {one} -> {one} <=> {value})"
    if not _has(kind, DoubleType, FloatType):
        return is_one
    both_null = f"exists({values}, {one} -> {one} IS NULL)"
    if isinstance(kind, StructType):
        parts = []
        for each in kind.fields:
            part, of = next(names), in_spark(each.name)
            parts.append(_among(f"{value}.{of}", f"transform({values}, {part} -> {part}.{of})", each.dataType, names))
        return f"IF({value} IS NULL, {both_null}, {' AND '.join(parts)})"
    if isinstance(kind, ArrayType):
        index, part = next(names), next(names)
        element = _among(
            f"get({value}, {index})", f"transform({values}, {part} -> get({part}, {index}))", kind.elementType, names
        )
        as_long = f"exists({values}, {one} -> size({one}) = size({value}))"
        all_of_them = f"forall(sequence(0, size({value}) - 1), {index} -> {element})"
        # Asked first: element by element, Spark computes the arrays anew for each element.
        return f"({is_one} OR IF({value} IS NULL, {both_null}, {as_long} AND (size({value}) = 0 OR {all_of_them})))"
    least, most = f"array_min({values})", f"array_max({values})"
    between = f"{value} >= {least} - abs({least}) * {_SAME_DIGITS} AND {value} <= {most} + abs({most}) * {_SAME_DIGITS}"
    return f"({is_one} OR coalesce({between}, false))"


def _plain(value: str, kind: DataType, names: Iterator[str]) -> str:
    """A value without maps and variants."""
    if not _has(kind, MapType, VariantType):
        return value
    one = next(names)
    match kind:
        case MapType():
            key, held = (_plain(f"{one}.{of}", part, names) for of, part in _entry(kind))
            entry = f"named_struct('key', {key}, 'value', {held})"
            return f"array_sort(transform(map_entries({value}), {one} -> {entry}))"
        case ArrayType():
            return f"transform({value}, {one} -> {_plain(one, kind.elementType, names)})"
        case StructType():
            parts = (
                f"{text_in_spark(each.name)}, {_plain(f'{value}.{in_spark(each.name)}', each.dataType, names)}"
                for each in kind.fields
            )
            return f"IF({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
    return f"to_json({value})"


def _entry(kind: MapType) -> tuple[tuple[str, DataType], tuple[str, DataType]]:
    return ("key", kind.keyType), ("value", kind.valueType)


def _plain_type(kind: DataType) -> DataType:
    match kind:
        case MapType():
            return ArrayType(StructType([StructField(name, _plain_type(part)) for name, part in _entry(kind)]))
        case ArrayType():
            return ArrayType(_plain_type(kind.elementType))
        case StructType():
            return StructType([StructField(each.name, _plain_type(each.dataType)) for each in kind.fields])
    return kind


def _has(kind: DataType, *wanted: type[DataType]) -> bool:
    """Whether a type is, or holds, one of these."""
    match kind:
        case _ if isinstance(kind, wanted):
            return True
        case ArrayType():
            return _has(kind.elementType, *wanted)
        case MapType():
            return _has(kind.keyType, *wanted) or _has(kind.valueType, *wanted)
        case StructType():
            return any(_has(each.dataType, *wanted) for each in kind.fields)
    return False


def _names() -> Iterator[str]:
    """Variables of lambdas, none twice in a text."""
    return (f"__v{number}" for number in count())
