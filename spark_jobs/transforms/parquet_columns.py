"""Columns of Parquet files as an ingest declares them, whatever type they are stored in, if no value is changed by it.

Spark reads some other types as the declared one, and some of these wrongly: of 200 as an INT it makes -56 as a TINYINT.
What it reads exactly is left to it. Everything else is read as it is stored and cast; a value that is another one when
it is cast back is refused with its row.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_jobs.spark.columns import column
from spark_jobs.spark.schemas import schema_ddl, schema_of
from spark_jobs.spec.personal import MASK, is_personal
from spark_jobs.transforms.rows import MISFIT, RAW, no_calendar_has

_LONGEST = 60
_INTEGERS: Mapping[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_DIGITS: Mapping[type[T.DataType], int] = {T.FloatType: 24, T.DoubleType: 53}
"""How many binary digits of a whole number they hold."""
_NUMBERS: tuple[type[T.DataType], ...] = (*_INTEGERS, T.FloatType, T.DoubleType, T.DecimalType)
_TIMES: tuple[type[T.DataType], ...] = (T.TimestampType, T.TimestampNTZType)
_TEXTS: tuple[type[T.DataType], ...] = (T.StringType, T.VarcharType, T.CharType, T.BinaryType)
_NESTED = (T.StructType, T.ArrayType, T.MapType)
_MOST_DIGITS = 38


class OtherTypeError(ValueError):
    """A file stores a column so that none of its values can be one of the declared type."""


Read = tuple[Column, Column | None]
"""A value of the declared type, and whether it is the one that is stored; None: it always is."""


@dataclass(frozen=True)
class ParquetColumns:
    """How the columns of some files are read.

    Attributes:
        declared: name -> type, as the ingest declares them.
        stored: the columns that Spark does not read as declared, and what they are stored as.
    """

    declared: tuple[tuple[str, str], ...]
    stored: tuple[tuple[str, pa.DataType], ...] = ()

    @classmethod
    def of(cls, columns: Mapping[str, str], file: pa.Schema) -> "ParquetColumns":
        """Those of a file.

        Args:
            columns: that the ingest declares.
            file: its schema; columns are found by their names, whatever the case, as Spark does.

        Raises:
            OtherTypeError: if it can never be read so, in words: of all such columns.
        """
        stored, wrong = [], []
        declared = tuple(columns.items())
        for field in _fields(declared):
            try:
                found = _named(file, field.name)
                if found is not None and not _is_native(found, field.dataType):
                    stored.append((field.name, _plain(found)))
            except OtherTypeError as error:
                wrong.append(f"{field.name} is no {columns[field.name]}: {error}")
        if wrong:
            raise OtherTypeError(
                f"wrong type: {', '.join(wrong)}. Write the file with the types that are declared, under another name, "
                "or declare those that it has"
            )
        return cls(declared, tuple(stored))

    @property
    def schema(self) -> T.StructType:
        """What is asked of Spark's reader."""
        stored = dict(self.stored)
        fields = _fields(self.declared)
        return T.StructType(
            [
                T.StructField(f.name, _read_as(stored[f.name], f.dataType) if f.name in stored else f.dataType)
                for f in fields
            ]
        )

    def columns(self, personal: Collection[str]) -> list[Column]:
        """The columns, `RAW` (the row as JSON, as it is stored) and `MISFIT` (which values are none of their type).

        Args:
            personal: columns whose values are not told.
        """
        stored, types = dict(self.stored), dict(self.declared)
        values, shown, misfits = [], [], []
        for field in _fields(self.declared):
            name, read = field.name, column(field.name)
            value, is_same = _read(read, stored[name], field.dataType) if name in stored else (read, None)
            values.append(value.alias(name))
            as_stored = value if is_same is None else _shown(read, stored[name])
            shown.append(as_stored.alias(name))
            if is_same is not None:
                told = F.lit(MASK) if is_personal(name, personal) else _text(as_stored, stored[name])
                misfits.append(F.when(~is_same, F.concat(F.lit(f"{name} is no {types[name]}: "), told)))
        misfit = F.lit(None).cast("string")
        if misfits:
            some = F.concat_ws(", ", *misfits)
            misfit = F.when(some != "", F.concat(F.lit("wrong type: "), some))
        return [*values, F.to_json(F.struct(*shown)).alias(RAW), misfit.alias(MISFIT)]


@lru_cache
def _fields(declared: tuple[tuple[str, str], ...]) -> T.StructType:
    """Asked for each file; the JVM parses it."""
    return schema_of(schema_ddl(dict(declared)))


def _shown(value: Column, stored: pa.DataType) -> Column:
    """A value as a person knows it; the number of nanoseconds is none."""
    return F.timestamp_micros(_thousandth(value)) if _is_nanos(stored) else value


def _text(value: Column, stored: pa.DataType) -> Column:
    text = F.to_json(value) if pa.types.is_nested(stored) else value.cast("string")
    return F.when(F.length(text) > _LONGEST, F.concat(F.substring(text, 1, _LONGEST), F.lit("…"))).otherwise(text)


def _plain(stored: pa.DataType) -> pa.DataType:
    """What a dictionary or an extension has its values in."""
    while True:
        if isinstance(stored, pa.BaseExtensionType):
            stored = stored.storage_type
        elif pa.types.is_dictionary(stored):
            stored = stored.value_type
        else:
            return stored


def _named(fields: pa.Schema | pa.StructType, name: str) -> pa.DataType | None:
    found = [field for field in fields if field.name.casefold() == name.casefold()]
    if len(found) > 1:
        raise OtherTypeError(f"the file has {' and '.join(field.name for field in found)}, which Spark takes for one")
    return found[0].type if found else None


def _is_list(stored: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(stored) or kinds.is_large_list(stored) or kinds.is_fixed_size_list(stored))


def _inner(stored: pa.DataType, kind: T.DataType) -> Iterator[tuple[pa.DataType, T.DataType]]:
    """The parts of a nested type that a file has, each with what is declared of it."""
    stored = _plain(stored)
    if isinstance(kind, T.StructType) and pa.types.is_struct(stored):
        for field in kind:
            if (found := _named(stored, field.name)) is not None:
                yield found, field.dataType
    elif isinstance(kind, T.ArrayType) and _is_list(stored):
        yield stored.value_type, kind.elementType
    elif isinstance(kind, T.MapType) and pa.types.is_map(stored):
        if not _is_native(stored.key_type, kind.keyType):
            raise OtherTypeError(f"the file has keys of {stored.key_type}")
        yield stored.item_type, kind.valueType
    else:
        raise OtherTypeError(f"the file has {stored}")


def _is_native(stored: pa.DataType, kind: T.DataType) -> bool:
    """Whether Spark reads it as declared, and exactly.

    Raises:
        OtherTypeError: if it can never be read so.
    """
    stored = _plain(stored)
    if pa.types.is_null(stored):
        return False
    if isinstance(kind, _NESTED):
        parts = [_is_native(*part) for part in _inner(stored, kind)]
        return all(parts)
    for is_so, native, others in _LEAVES:
        if is_so(stored):
            if native(stored, kind):
                return True
            if isinstance(kind, others):
                return False
            break
    # What is none of these is for Spark to tell.
    if not isinstance(kind, (*_NUMBERS, *_TIMES, *_TEXTS, T.DateType, T.BooleanType)):
        return True
    raise OtherTypeError(f"the file has {stored}")


def _is_nanos(stored: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(stored) and stored.unit == "ns")


def _bits(stored: pa.DataType) -> int:
    """How many bits with a sign its values need."""
    return int(stored.bit_width) + int(pa.types.is_unsigned_integer(stored))


def _is_whole(stored: pa.DataType) -> bool:
    kinds = pa.types
    # Parquet knows spans as numbers, and times of a day as numbers with a unit.
    return bool(kinds.is_integer(stored) or kinds.is_time(stored) or kinds.is_duration(stored))


def _whole_is_native(stored: pa.DataType, kind: T.DataType) -> bool:
    if type(kind) in _INTEGERS:
        return _bits(stored) <= _INTEGERS[type(kind)]
    return isinstance(kind, T.DoubleType) and _bits(stored) <= _INTEGERS[T.IntegerType]


def _decimal_is_native(stored: pa.DataType, kind: T.DataType) -> bool:
    more = (kind.scale - stored.scale) if isinstance(kind, T.DecimalType) else -1
    return isinstance(kind, T.DecimalType) and 0 <= more <= kind.precision - stored.precision


_Leaf = tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, T.DataType], bool], tuple[type[T.DataType], ...]]
_LEAVES: tuple[_Leaf, ...] = (
    (_is_whole, _whole_is_native, _NUMBERS),
    (pa.types.is_float32, lambda _, kind: isinstance(kind, T.FloatType | T.DoubleType), _NUMBERS),
    (pa.types.is_float64, lambda _, kind: isinstance(kind, T.DoubleType), _NUMBERS),
    (
        lambda stored: pa.types.is_decimal(stored) and stored.precision <= _MOST_DIGITS,
        _decimal_is_native,
        _NUMBERS,
    ),
    (
        pa.types.is_timestamp,
        lambda stored, kind: isinstance(kind, _TIMES) and not _is_nanos(stored),
        (*_TIMES, T.DateType),
    ),
    (pa.types.is_date, lambda _, kind: isinstance(kind, T.DateType), _TIMES),
    (pa.types.is_boolean, lambda _, kind: isinstance(kind, T.BooleanType), ()),
    (pa.types.is_fixed_size_binary, lambda _, kind: isinstance(kind, T.BinaryType), ()),
    (
        lambda stored: str(stored).removeprefix("large_").removesuffix("_view") in ("string", "binary"),
        lambda _, kind: isinstance(kind, _TEXTS),
        (),
    ),
)
"""What a file may have: whether it is that, whether Spark reads it as a type, and as which it may be cast."""


def _read_as(stored: pa.DataType, kind: T.DataType) -> T.DataType:
    """As which type Spark is to read it."""
    stored = _plain(stored)
    if pa.types.is_null(stored):
        return T.IntegerType()
    if _is_native(stored, kind):
        return kind
    if isinstance(kind, T.StructType):
        parts = ((field, _named(stored, field.name)) for field in kind)
        return T.StructType(
            [T.StructField(f.name, f.dataType if p is None else _read_as(p, f.dataType)) for f, p in parts]
        )
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_read_as(stored.value_type, kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, _read_as(stored.item_type, kind.valueType))
    if _is_whole(stored):
        if _bits(stored) <= _INTEGERS[T.IntegerType]:
            return T.IntegerType()
        return T.LongType() if _bits(stored) <= _INTEGERS[T.LongType] else T.DecimalType(20, 0)
    if pa.types.is_decimal(stored):
        return T.DecimalType(stored.precision, stored.scale)
    if pa.types.is_timestamp(stored):
        return T.LongType() if _is_nanos(stored) else T.TimestampType()
    if pa.types.is_date(stored):
        return T.DateType()
    return T.FloatType() if pa.types.is_float32(stored) else T.DoubleType()


def _read(value: Column, stored: pa.DataType, kind: T.DataType) -> Read:
    """From what Spark has read."""
    stored = _plain(stored)
    if pa.types.is_null(stored):
        return F.lit(None).cast(kind), None
    if _is_native(stored, kind):
        return value, None
    if isinstance(kind, T.StructType):
        return _read_struct(value, stored, kind)
    if isinstance(kind, T.ArrayType):
        return _read_list(value, stored.value_type, kind.elementType)
    if isinstance(kind, T.MapType):
        found = F.transform_values(value, lambda _, each: _read(each, stored.item_type, kind.valueType)[0])
        return found, _read_list(F.map_values(value), stored.item_type, kind.valueType)[1]
    if _is_nanos(stored):
        micros = _shown(value, stored)
        return (micros.cast(kind), None) if isinstance(kind, _TIMES) else _cast(micros, T.TimestampType(), kind)
    return _cast(value, _read_as(stored, kind), kind)


def _read_struct(value: Column, stored: pa.DataType, kind: T.StructType) -> Read:
    parts: dict[str, Read] = {}
    for field in kind:
        found, part = _named(stored, field.name), value.getField(field.name)
        parts[field.name] = (part, None) if found is None else _read(part, found, field.dataType)
    struct = F.when(value.isNotNull(), F.struct(*(part.alias(name) for name, (part, _) in parts.items())))
    same = [each for _, each in parts.values() if each is not None]
    return struct, value.isNull() | reduce(lambda left, right: left & right, same) if same else None


def _read_list(value: Column, stored: pa.DataType, kind: T.DataType) -> Read:
    found = F.transform(value, lambda each: _read(each, stored, kind)[0])
    if _read(value, stored, kind)[1] is None:
        return found, None

    def is_same(each: Column) -> Column:
        same = _read(each, stored, kind)[1]
        return F.lit(True) if same is None else same

    return found, F.coalesce(F.forall(value, is_same), F.lit(True))


def _cast(value: Column, read: T.DataType, kind: T.DataType) -> Read:
    """Cast, and the same when it is cast back."""
    found = value.try_cast(kind)
    if isinstance(read, T.DateType):
        # Of a day a million years ahead Spark makes no time, and no null either.
        found = F.when(~no_calendar_has(value, "date"), found)
    is_same = value.eqNullSafe(found.try_cast(read))
    for whole, number, floating in ((value, read, kind), (found, kind, read)):
        # The largest one becomes the power of two above it, of which Spark makes the largest one again.
        bits = _INTEGERS.get(type(number), 0) - 1
        if bits > _DIGITS.get(type(floating), bits):
            is_same = is_same & ~whole.eqNullSafe(F.lit(2**bits - 1))
    return found, is_same


def _thousandth(nanos: Column) -> Column:
    """Rounded down: what is behind a microsecond is cut off, as it is of a text."""
    rest = F.pmod(nanos, F.lit(1000))
    return F.call_function("div", nanos, F.lit(1000)) - F.when((nanos < 0) & (rest != 0), 1).otherwise(0)
