"""What becomes of values in Parquet files that are stored otherwise than the ingest declares them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.sources.file_reader import FileReader
from spark_jobs.engine.sources.judging import Judge
from spark_jobs.spec import Files, Ingest, Sink

AT = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
NAN, D = float("nan"), Decimal


@dataclass(frozen=True)
class Refused:
    """A value of which the row is set aside, as it is told."""

    told: str


class Unreadable:
    """A file that is set aside."""


def read(
    spark: SparkSession,
    folder: Path,
    sql_type: str,
    stored: Mapping[str, pa.Array],
    *,
    written: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Of each file its values, or what is said of them; all are read as one batch."""
    for name, values in stored.items():
        times = pa.array([AT] * len(values), pa.timestamp("us", tz="UTC"))
        pq.write_table(pa.table({"t": times, "v": values}), folder / name, **(written or {}))
    columns = {"v": sql_type, "t": "TIMESTAMP"}
    definition = Ingest(
        name="ingest_events",
        source=Files(str(folder), format="parquet"),
        columns=columns,
        event_time="t",
        sink=Sink("bronze.events"),
        **fields,
    )
    judge = Judge(spark, definition, figures=(F.lit(0).alias("bytes"), F.max("__size").alias("size")))
    paths = [f"file:{folder}/{name}" for name in stored]
    reader = FileReader(spark, definition, paths, int(AT.timestamp() * 1000), str(folder))
    kept, unreadable = reader.read({}, judge.kept)
    found: dict[str, Any] = {path.rpartition("/")[2]: Unreadable for path, _ in unreadable}
    assert all(detail.startswith("wrong type: v is no ") for _, detail in unreadable)
    try:
        for row in kept.rows.orderBy("__name", "__position").collect():
            told = str(row["__detail"])
            assert row["t"].replace(tzinfo=UTC) == AT
            assert row["__reason"] in (None, "unparseable")
            of_file = found.setdefault(unquote(row["__name"]).rpartition("/")[2], [])
            begin = f"wrong type: v is no {sql_type}: "
            assert row["__reason"] is None or told.startswith(begin)
            value = row.asDict(True)["v"]
            if row["__reason"] is None:
                of_file.append(value.replace(tzinfo=UTC) if isinstance(value, datetime) else value)
            else:
                of_file.append(Refused(told.removeprefix(begin)))
    finally:
        kept.close()
    return found


WHOLE = {
    **{f"int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
}
TARGETS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


@pytest.mark.parametrize("sql_type", TARGETS)
def test_whole_numbers_of_any_width_are_what_came_or_refused(
    spark: SparkSession, tmp_path: Path, sql_type: str
) -> None:
    stored, expected = {}, {}
    low, high = -(2 ** (TARGETS[sql_type] - 1)), 2 ** (TARGETS[sql_type] - 1) - 1
    for name, kind in WHOLE.items():
        bits, signed = kind.bit_width, not name.startswith("u")
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        edges = {least, most, 0, low, high, low - 1, high + 1}
        values = sorted(each for each in edges if least <= each <= most)
        stored[name] = pa.array([*values, None], kind)
        expected[name] = [*(each if low <= each <= high else Refused(str(each)) for each in values), None]
    stored["null"], expected["null"] = pa.nulls(2), [None, None]
    stored["text"], expected["text"] = pa.array(["1"]), Unreadable
    stored["bool"], expected["bool"] = pa.array([True]), Unreadable
    stored["double"] = pa.array([1.0, -3.0, 2.5, NAN, 1e300, None])
    expected["double"] = [1, -3, Refused("2.5"), Refused("NaN"), Refused("1.0E300"), None]
    stored["above"] = pa.array([2.0**63, -(2.0**63)])
    expected["above"] = [
        Refused("9.223372036854776E18"),
        *([-(2**63)] if high == 2**63 - 1 else [Refused("-9.223372036854776E18")]),
    ]
    stored["float"], expected["float"] = (
        pa.array([2.0**31], pa.float32()),
        [2**31] if high > 2**31 else [Refused("2.14748365E9")],
    )
    stored["decimal"] = pa.array([D("7.00"), D("7.10")], pa.decimal128(9, 2))
    expected["decimal"] = [7, Refused("7.10")]
    assert read(spark, tmp_path, sql_type, stored) == expected


NANOS = 1_767_225_600_123_456_789


def at(nanos: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanos // 1000)


CASES: dict[str, dict[str, tuple[pa.Array, Any]]] = {
    "DOUBLE": {
        "int32": (pa.array([1, -(2**31)], pa.int32()), [1.0, -(2.0**31)]),
        "uint32": (pa.array([2**32 - 1], pa.uint32()), [2.0**32 - 1]),
        "int64": (pa.array([2**53, 2**53 + 1, 2**63 - 1]), [2.0**53, Refused(str(2**53 + 1)), Refused(str(2**63 - 1))]),
        "float": (pa.array([0.1, 2], pa.float32()), [float(np.float32(0.1)), 2.0]),
        "decimal": (pa.array([D("1.10"), None], pa.decimal128(10, 2)), [1.1, None]),
        "half": (pa.array(np.array([1], np.float16)), Unreadable),
    },
    "FLOAT": {
        "double": (pa.array([0.5, 0.1, 1e300, float("inf")]), [0.5, Refused("0.1"), Refused("1.0E300"), float("inf")]),
        "int": (pa.array([2**24, 2**24 + 1]), [2.0**24, Refused(str(2**24 + 1))]),
    },
    "DECIMAL(10, 2)": {
        "narrow": (pa.array([D("1.5")], pa.decimal128(5, 1)), [D("1.50")]),
        "wide": (pa.array([D("1.10"), D("123456789.10")], pa.decimal128(12, 2)), [D("1.10"), Refused("123456789.10")]),
        "fine": (pa.array([D("1.1000"), D("1.1234")], pa.decimal128(10, 4)), [D("1.10"), Refused("1.1234")]),
        "whole": (pa.array([D(7), D(10) ** 30], pa.decimal128(38, 0)), [D("7.00"), Refused(str(10**30))]),
        "most": (pa.array([D("1.10")], pa.decimal256(50, 2)), Unreadable),
        "int": (pa.array([7, 10**9], pa.int64()), [D("7.00"), Refused(str(10**9))]),
        "double": (pa.array([1.1, 2.125, NAN]), [D("1.10"), Refused("2.125"), Refused("NaN")]),
        "null": (pa.nulls(1), [None]),
    },
    "TIMESTAMP": {
        "nanos": (pa.array([NANOS, -1, 0, None], pa.timestamp("ns", tz="UTC")), [at(NANOS), at(-1), at(0), None]),
        "local nanos": (pa.array([NANOS, -1000, -1001], pa.timestamp("ns")), [at(NANOS), at(-1000), at(-1001)]),
        "millis": (pa.array([1], pa.timestamp("ms")), [at(1_000_000)]),
        "day": (pa.array([date(2026, 1, 1)]), [datetime(2026, 1, 1, tzinfo=UTC)]),
        "far": (pa.array([200_000_000], pa.date32()), [Refused(f"+{np.datetime64(200_000_000, 'D')}")]),
        "number": (pa.array([1]), Unreadable),
        "null": (pa.nulls(1), [None]),
    },
    "DATE": {
        "nanos": (pa.array([86_400 * 10**9, 1000], pa.timestamp("ns")), [date(1970, 1, 2),
                                                                         Refused("1970-01-01 00:00:00.000001")]),
        "micros": (pa.array([86_400_000_000], pa.timestamp("us", tz="UTC")), [date(1970, 1, 2)]),
        "date64": (pa.array([86_400_000], pa.date64()), [date(1970, 1, 2)]),
        "text": (pa.array(["2026-01-01"]), Unreadable),
    },
    "STRING": {
        "dictionary": (pa.array(["ä", "b", None]).dictionary_encode(), ["ä", "b", None]),
        "large": (pa.array(["a"], pa.large_string()), ["a"]),
        "view": (pa.array(["a"], pa.string_view()), ["a"]),
        "bytes": (pa.array([b"a"]), ["a"]),
        "null": (pa.nulls(1), [None]),
        "int": (pa.array([1]), Unreadable),
        "list": (pa.array([["a"]]), Unreadable),
        "time": (pa.array([1], pa.timestamp("us")), Unreadable),
    },
    "BOOLEAN": {"bool": (pa.array([True, None]), [True, None]), "int": (pa.array([1]), Unreadable)},
    "ARRAY<INT>": {
        "exact": (pa.array([[1, None], [], None], pa.list_(pa.int32())), [[1, None], [], None]),
        "longs": (pa.array([[1, None], [2, 2**40], None], pa.large_list(pa.int64())),
                  [[1, None], Refused(f"[2,{2**40}]"), None]),
        "nulls": (pa.array([[], [None], None], pa.list_(pa.null())), [[], [None], None]),
        "null": (pa.nulls(1), [None]),
    },
    "STRUCT<a: INT, at: TIMESTAMP, b: STRING>": {
        "longs": (
            pa.array([{"a": 1, "at": NANOS}, {"a": 2**40, "at": 0}, None, {"a": None, "at": None}],
                     pa.struct([("a", pa.int64()), ("at", pa.timestamp("ns"))])),
            [{"a": 1, "at": at(NANOS).replace(tzinfo=None), "b": None}, Refused(f'{{"a":{2**40},"at":0}}'), None,
             {"a": None, "at": None, "b": None}],
        ),
        "text": (pa.array([{"a": "1"}]), Unreadable),
        "twice": (pa.array([{"a": 1, "A": 1}]), Unreadable),
    },
    "MAP<STRING, ARRAY<DECIMAL(4, 1)>>": {
        "doubles": (pa.array([[("a", [1.5, None])], [("b", [1.25])], None],
                             pa.map_(pa.string(), pa.list_(pa.float64()))),
                    [{"a": [D("1.5"), None]}, Refused('{"b":[1.25]}'), None]),
        "keys": (pa.array([[(1, [1.5])]], pa.map_(pa.int32(), pa.list_(pa.float64()))), Unreadable),
    },
}  # fmt: skip


@pytest.mark.parametrize("sql_type", CASES)
def test_values_of_another_type_are_what_came_or_refused(spark: SparkSession, tmp_path: Path, sql_type: str) -> None:
    cases = CASES[sql_type]
    found = read(spark, tmp_path, sql_type, {name: stored for name, (stored, _) in cases.items()})
    assert found == {name: expected for name, (_, expected) in cases.items()}


def test_a_value_of_a_personal_column_is_not_told(spark: SparkSession, tmp_path: Path) -> None:
    found = read(spark, tmp_path, "INT", {"a": pa.array([2**40])}, personal=("v",))
    assert found == {"a": [Refused("‹masked›")]}


def test_times_of_96_bits_are_read_as_before(spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array([AT, None], pa.timestamp("ns", tz="UTC"))
    found = read(spark, tmp_path, "TIMESTAMP", {"a": times}, written={"use_deprecated_int96_timestamps": True})
    assert found == {"a": [AT, None]}
