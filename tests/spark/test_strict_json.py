"""What the strict readers make of a text: each value is what came, or the row says why not."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.spark.strict import read_strictly

pytestmark = pytest.mark.usefixtures("spark")


def read(spark: SparkSession, ddl: str, lines: Sequence[bytes | str | None], **options: Any) -> list[dict[str, Any]]:
    rows = [(number, line.encode() if isinstance(line, str) else line) for number, line in enumerate(lines)]
    given_rows = spark.createDataFrame(rows, "i INT, raw BINARY").withColumn("raw", F.col("raw").cast("string"))
    found = given_rows.select("i", read_strictly(spark, "json", F.col("raw"), ddl, options).alias("r"))
    return [row.asDict(True) for row in found.select("i", "r.*").orderBy("i").collect()]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)


VALUES: dict[str, list[tuple[str, Any]]] = {
    "STRING": [
        ("1.10", "1.10"),
        ("1e3", "1e3"),
        ('{"b": -999.99999999999999999999995}', '{"b": -999.99999999999999999999995}'),
        ('[ 1,  "x" ]', '[ 1,  "x" ]'),
        ("true", "true"),
        ('"\\ud83d\\ude00 \\u00e9"', "😀 é"),
        ("null", None),
    ],
    "TINYINT": [("-128", -128), ("127", 127), ("-0", 0)],
    "BIGINT": [("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63))],
    "FLOAT": [("1e38", pytest.approx(1e38, rel=1e-6)), ("0e99", 0.0)],
    "DOUBLE": [("1.5e-7", 1.5e-7), ("12", 12.0), ('"-Infinity"', float("-inf"))],
    "DECIMAL(10,2)": [
        ("2.330", Decimal("2.33")),
        ("1e7", Decimal("10000000")),
        ('"-12.5"', Decimal("-12.50")),
        ("0e200000000", Decimal(0)),
        ("0." + "0" * 400 + "12e402", Decimal("12")),
    ],
    "DECIMAL(38,20)": [("123456789012345678.12345678901234567891", Decimal("123456789012345678.12345678901234567891"))],
    "TIMESTAMP": [
        ('"2026-11-04T07:11:39.345Z"', at("2026-11-04T07:11:39.345+00:00")),
        ('"2026-11-04 07:11:39+01:00"', at("2026-11-04T07:11:39+01:00")),
        ('"2026-11-04T07:11:39.123456789Z"', at("2026-11-04T07:11:39.123456+00:00")),
        ('"2026-11-04"', at("2026-11-04T00:00:00+00:00")),
        ('"0002-01-01T00:00:00Z"', at("0002-01-01T00:00:00+00:00")),
    ],
    "DATE": [('"2024-02-29"', date(2024, 2, 29))],
    "BINARY": [('"aGk="', bytearray(b"hi"))],
    "STRUCT<x: INT, y: ARRAY<TINYINT>>": [('{"y": [1, null], "x": 3, "z": 0}', {"x": 3, "y": [1, None]})],
    "MAP<STRING, DECIMAL(5,2)>": [('{"k": 1.5, "l": null}', {"k": Decimal("1.50"), "l": None})],
}
REFUSED: dict[str, list[str]] = {
    "TINYINT": ["128", "200", "255", "-129", "1.0", "1e1", '"1"', "true", "99999999999999999999"],
    "BIGINT": ["9223372036854775808", "-9223372036854775809"],
    "FLOAT": ["1e39", "1e-60"],
    "DOUBLE": ["-1e309", "1e200000000", "1e-400", '"nan"', '"1"'],
    "DECIMAL(10,2)": ["0.004", '"1.234,50"', '"12,34"', "1e200000000", "1e-200000000", "100000000", '"."', '""'],
    "TIMESTAMP": ["1762240299", "1.5", '"07:11:39"', '"T07:11:39Z"', '"2026"', '"now"', '"2026-02-29T00:00:00Z"',
                  '"9999-12-31T23:59:59-18:00"', '"2026-11-04Tjunk"'],
    "DATE": ['"2026-11-04Tjunk"', '"2026-02-30"', "20261104"],
    "BINARY": ['"a$"'],
    "STRUCT<x: INT, y: ARRAY<TINYINT>>": ['{"y": [1, 200]}', '{"x": "3"}', "3", "[]"],
    "MAP<STRING, DECIMAL(5,2)>": ['{"k": 1000}', "[]"],
}  # fmt: skip


def test_a_value_is_what_came_or_the_row_says_which_is_not(spark: SparkSession) -> None:
    for sql_type, cases in VALUES.items():
        found = read(spark, f"c {sql_type}", [f'{{"c":{text}}}' for text, _ in cases])
        for (text, wanted), row in zip(cases, found, strict=True):
            assert (row["__reason"], row["c"]) == (None, wanted), (sql_type, text)
    for sql_type, texts in REFUSED.items():
        found = read(spark, f"c {sql_type}", [f'{{"c":{text}}}' for text in texts])
        for text, row in zip(texts, found, strict=True):
            assert (row["__reason"], row["c"]) == ("unparseable", None), (sql_type, text)
            assert row["__detail"].startswith("wrong type: c")


def test_a_line_is_one_object_and_nothing_beside_it(spark: SparkSession) -> None:
    good = ['{"a":"x"}', ' \t{ "a" : "x" } \r', "{}", '{"A":"x"}']
    assert [row["__reason"] for row in read(spark, "a STRING", good)] == [None] * len(good)
    bad: dict[bytes | str | None, str | None] = {
        None: "no JSON row",  # first of all, when nothing was read before
        '{"id":"m2"},{"id":"m3"}]': "no JSON row: more follows its first object",
        '{"id":1},1] garbage': "no JSON row: more follows its first object",
        '{"a":"x"} // c': "no JSON row: more follows its first object",
        '{"a":"x"': "no JSON row: broken at character 9",
        '{"a":"x",}': "no JSON row: broken at character 10",
        "{'a':'x'}": "no JSON row: broken at character 2",
        '{"a":NaN}': "no JSON row: broken at character 9",
        '{"a":01}': "no JSON row: broken at character 7",
        '\ufeff{"a":"x"}': "no JSON row",
        '{"a":"x","\\u0061":"y"}': "no JSON row: it has the key a twice",
        '{"z":1,"z":2}': "no JSON row: it has the key z twice",
        '{"s":{"x":1,"x":2}}': "no JSON row: it has the key s.x twice",
        '{"m":{"k":1,"k":2}}': "no JSON row: it has the key m.k twice",
        '{"a":"ab\\ud83d"}': "no JSON row: a has half a surrogate pair",
        '{"\\ude00":1}': "no JSON row: a name in it has half a surrogate pair",
        b'{"a":"\xff"}': None,
        b'{"a":"\xed\xa0\x80"}': None,
    }
    found = read(spark, "a STRING, s STRUCT<x: INT>, m MAP<STRING, INT>", list(bad))
    for (line, told), row in zip(bad.items(), found, strict=True):
        assert (row["__detail"], row["a"]) == (told, None), line
        assert row["__reason"] == ("not UTF-8" if told is None else "unparseable"), line
    # Whatever stands in a line that is refused goes on in none that follows.
    assert read(spark, "a STRING, b INT", ['{"a":"x","b":"y"}', "{}"])[1]["__reason"] is None
    deep = read(spark, "a STRING", ['{"a":' + "[" * 2000 + "]" * 2000 + "}"])[0]["__detail"]
    assert deep.startswith("no JSON row: it goes beyond a limit: ")


def test_how_a_column_is_written_can_be_declared(spark: SparkSession) -> None:
    columns: Mapping[str, Any] = {
        "s": {"unit": "seconds", "path": ["meta", "s"]},
        "n": {"unit": "nanos"},
        "p": {"pattern": "dd/MM/uuuu HH:mm"},
        "d": {"rounding": "half_up"},
    }
    lines = [
        '{"meta":{"s":1762240299.25,"other":1},"n":-1500,"p":"31/01/2026 09:30","d":0.005}',
        '{"meta":{"s":"1762240299"},"p":"31/02/2026 09:30"}',
        '{"meta":{"s":1,"s":2}}',
        '{"meta":7}',
    ]
    first, second, third, fourth = read(
        spark, "s TIMESTAMP, n TIMESTAMP, p TIMESTAMP, d DECIMAL(5,2)", lines, columns=columns
    )
    assert first["s"] == at("2025-11-04T07:11:39.250+00:00")
    assert first["n"] == datetime(1969, 12, 31, 23, 59, 59, 999998), "what is behind a microsecond is cut off"
    assert (first["p"], first["d"]) == (datetime(2026, 1, 31, 9, 30), Decimal("0.01"))
    assert second["__detail"] == 'wrong type: p is no TIMESTAMP: "31/02/2026 09:30"'
    assert third["__detail"] == "no JSON row: it has the key meta.s twice"
    assert fourth["__detail"] == "wrong type: meta is no OBJECT: 7"


def test_a_variant_takes_null_and_any_value_that_is_sound(spark: SparkSession) -> None:
    lines = ['{"v":null}', '{"v":{"x":[1,"y"]}}', '{"v":"t"}', '{"v":{"x":1,"x":2}}']
    rows = read(spark, "v VARIANT", lines)
    assert [json.loads(row["v"].toJson()) if row["v"] else None for row in rows] == [None, {"x": [1, "y"]}, "t", None]
    assert [row["__reason"] for row in rows] == [None, None, None, "unparseable"]


# A number as it was written: its value would hide how.
class Number(str):
    pass


class RefusedError(Exception):
    pass


def _refuse(_: str) -> Any:
    raise RefusedError


_STRICT = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_refuse, object_pairs_hook=tuple)
_DDL = "s STRING, i TINYINT, n DECIMAL(6,2), d DOUBLE"


def wanted(line: bytes) -> dict[str, Any]:
    """What Python's own reader makes of a line; of an object in a text column only that there is one."""
    try:
        text = line.decode("utf-8")
        tree = _STRICT.decode(text)
    except (ValueError, RecursionError):
        raise RefusedError from None
    if not isinstance(tree, tuple) or not text.lstrip(" \t\r").startswith("{"):
        raise RefusedError
    names = [name for name, _ in tree]
    if len(set(names)) < len(names):
        raise RefusedError
    found = dict(tree)
    for name in ("s", *names):
        _sound(name)
    for name in found.keys() & {"s"}:
        _sound(found[name])
    return {"s": found.get("s"), **{name: _number(found.get(name), name) for name in ("i", "n", "d")}}


def _sound(value: Any) -> None:
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        raise RefusedError from None


def _number(value: Any, name: str) -> Any:
    if value is None:
        return None
    if name == "n" and isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", value):
        exact = Decimal(value)
        if exact and (exact.adjusted() > 3 or exact != round(exact, 2)):
            raise RefusedError
        return exact + 0
    if name == "i" and isinstance(value, Number) and re.fullmatch(r"-?[0-9]+", value) and -128 <= int(value) <= 127:
        return int(value)
    if name == "d" and isinstance(value, Number):
        number = float(value)
        if abs(number) != float("inf") and (number or not re.search("[1-9]", value.lower().partition("e")[0])):
            return number
    raise RefusedError


_NUMBERS = st.one_of(
    st.integers(-300, 300).map(str),
    st.decimals(-2000, 20000, places=3, allow_nan=False).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["1e3", "1E-2", "-0.0", "0e9", "1e400", "1e-400", "12.340", "01", "+1", ".5", "1.", "NaN"]),
)
_TEXTS = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(['"\\ud83d"', '"\\ude00\\ud83d"', '"12.5"', '"\\u00e9\\n"', '"\x01"', '"\\x"']),
)
_ANY = st.recursive(
    st.one_of(_NUMBERS, _TEXTS, st.sampled_from(["null", "true", "false"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: "[" + ", ".join(parts) + "]"),
        st.lists(st.tuples(_TEXTS, inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{name}:{value}" for name, value in pairs) + "}"
        ),
    ),
    max_leaves=5,
)
_OBJECTS = st.lists(st.tuples(st.sampled_from(['"s"', '"i"', '"n"', '"d"', '"x"', '"\\u0069"']), _ANY), max_size=5).map(
    lambda pairs: "{" + " , ".join(f"{name} : {value}" for name, value in pairs) + "}"
)
_LINES = st.one_of(
    _OBJECTS,
    st.tuples(_OBJECTS, st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]]),
    st.tuples(_OBJECTS, st.sampled_from([",", "]", "}", " ", " x", "{}", "\t"])).map("".join),
    st.tuples(_OBJECTS, _OBJECTS).map("".join),
    _ANY,
).map(lambda line: line.encode("utf-8", "replace").replace(b"\n", b" "))


@settings(max_examples=15, derandomize=True)
@given(st.lists(_LINES, min_size=12, max_size=25))
def test_any_line_is_read_as_other_readers_read_it(spark: SparkSession, lines: list[bytes]) -> None:
    rows = [(number, line) for number, line in enumerate(lines)]
    frame = spark.createDataFrame(rows, "i INT, raw BINARY").withColumn("raw", F.col("raw").cast("string"))
    # A batch of its own, so that a line which it expands to many digits harms nobody.
    lenient = F.from_json("raw", _DDL)
    strict = read_strictly(spark, "json", F.col("raw"), _DDL, {})
    both = frame.select("i", strict.alias("strict"), lenient.alias("lenient")).orderBy("i").collect()
    for line, row in zip(lines, both, strict=True):
        got = row["strict"].asDict()
        try:
            want = wanted(line)
        except RefusedError:
            assert got["__reason"] is not None, line
            continue
        assert got["__reason"] is None, (line, got["__detail"])
        text = want.pop("s")
        assert {name: got[name] for name in want} == want, line
        if isinstance(text, tuple | list):
            assert got["s"].encode() in line
        else:
            assert got["s"] == (text if text is None or isinstance(text, str) else json.dumps(text)), line
        # Of good lines the lenient reader reads the same, but for texts that it writes anew.
        assert {name: row["lenient"][name] for name in want} == want, line
