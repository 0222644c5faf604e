"""Conditions that DuckDB may judge for Spark: random ones, over odd values, give the same in both engines."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.spark.session import lenient_session
from spark_jobs.spec.equivalence import why_unproven
from spark_jobs.spec.expressions import known_to_duckdb

TYPES = {
    "s": "STRING",
    "u": "STRING",
    "i": "INT",
    "j": "BIGINT",
    "y": "TINYINT",
    "m": "DECIMAL(10, 2)",
    "d": "DOUBLE",
    "f": "FLOAT",
    "b": "BOOLEAN",
    "at": "TIMESTAMP",
    "day": "DATE",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
NAN = float("nan")
VALUES: dict[str, list[object]] = {
    "s": ["", " ", "a", "A", "ab", "a%b", "a_b", "Ä", "ß", "𝄞", "a\nb", "\x00", "7", "ﬀ", "e\u0301", None],
    "i": [0, 1, -1, 7, 2**31 - 1, -(2**31), None],
    "j": [0, 1, -1, 7, 2**53 + 1, 2**63 - 1, -(2**63), None],
    "y": [0, 1, -1, 7, 127, -128, None],
    "m": [Decimal("0.00"), Decimal("0.07"), Decimal("-0.01"), Decimal("99999999.99"), Decimal("7.00"), None],
    "d": [0.0, -0.0, 0.07, 7.0, NAN, float("inf"), -float("inf"), 1e308, 5e-324, None],
    "f": [0.0, -0.0, 0.10000000149011612, 7.0, NAN, float("inf"), 16777216.0, None],
    "b": [True, False, None],
    "at": [datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None],
    "day": [date(1970, 1, 1), date(2026, 1, 1), date(1, 1, 1), None],
}
VALUES["u"] = VALUES["s"]
ROWS = 120
CONDITIONS = 400


NUMBERS = ("i", "j", "y", "m", "d", "f", "0", "7", "-1", "0.07", "-0.5", "1e0", "16777216", "i + 1", "y * 2", "i % 7",
           "m + 0.01", "m * 2", "d - d", "length(s)", "coalesce(i, 7)", "if(b, i, y)")  # fmt: skip
OTHERS = ("s IN ('a', 'Ä', NULL)", "i IN (1, 7)", "m IN (0.07, 7)", "s LIKE 'a%b'", "s LIKE '_'", "s LIKE 'a_b'",
          r"s RLIKE '\\A(?s:[a-z].?)\\z'", "u IS NULL", "f IS NOT NULL")  # fmt: skip


def numbers(chance: random.Random) -> str:
    return chance.choice(NUMBERS)


def texts(chance: random.Random) -> str:
    return chance.choice(["s", "u", "''", "'a'", "'Ä'", "'7'", "coalesce(s, 'a')", "CASE WHEN b THEN s ELSE u END"])


def condition(chance: random.Random, depth: int = 2) -> str:
    """A condition of what may be on the list."""
    if depth and chance.random() < 0.6:
        left, right = (condition(chance, depth - 1) for _ in range(2))
        return chance.choice([f"({left}) AND ({right})", f"({left}) OR ({right})", f"NOT ({left})",
                              f"coalesce({left}, {right})", f"if({left}, {right}, b)"])  # fmt: skip
    sign = chance.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
    kind = chance.randrange(9)
    if kind < 3:
        return f"{numbers(chance)} {sign} {numbers(chance)}"
    if kind == 3:
        return f"{numbers(chance)} BETWEEN {numbers(chance)} AND {numbers(chance)}"
    if kind == 4:
        return f"{texts(chance)} {sign} {texts(chance)}"
    if kind == 5:
        return chance.choice(OTHERS)
    if kind == 6:
        return f"at {sign} TIMESTAMP '2026-01-01 00:00:00'"
    if kind == 7:
        return f"day {sign} DATE '1970-01-01'"
    return chance.choice(["b", "b = true", "b <=> NULL", "NOT b"])


@pytest.fixture(scope="module")
def rows() -> list[tuple[object, ...]]:
    chance = random.Random(4)
    return [tuple(chance.choice(VALUES[name]) for name in TYPES) for _ in range(ROWS)]


def test_random_conditions_of_the_list_are_judged_alike(spark: SparkSession, rows: list[tuple[object, ...]]) -> None:
    chance = random.Random(32)
    asked = list(dict.fromkeys(condition(chance) for _ in range(CONDITIONS)))
    proven = [sql for sql in asked if why_unproven(sql, TYPES) is None]
    assert len(proven) > CONDITIONS / 4, "the list is wide enough to be of use"

    lenient = lenient_session(spark)
    frame = lenient.createDataFrame(rows, SCHEMA)
    by_spark: list[tuple[object, ...]] = []
    for part in range(0, len(proven), 50):
        columns = [F.expr(sql).alias(f"c{number}") for number, sql in enumerate(proven[part : part + 50])]
        found = [tuple(row) for row in frame.select(*columns).collect()]
        by_spark += list(zip(*found, strict=True))

    kinds = {"s": pa.string(), "u": pa.string(), "i": pa.int32(), "j": pa.int64(), "y": pa.int8(),
             "m": pa.decimal128(10, 2), "d": pa.float64(), "f": pa.float32(), "b": pa.bool_(),
             "at": pa.timestamp("us", "UTC"), "day": pa.date32()}  # fmt: skip
    table = pa.table({name: pa.array([row[n] for row in rows], kinds[name]) for n, name in enumerate(TYPES)})
    differing = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", table)
        # As a check reads a table: spark_jobs/quality/frames.py.
        connection.execute("CREATE VIEW odd AS SELECT * REPLACE (CAST(f AS DOUBLE) AS f) FROM given")
        for sql, expected in zip(proven, by_spark, strict=True):
            try:
                got = tuple(row[0] for row in connection.execute(f"SELECT {known_to_duckdb(sql)} FROM odd").fetchall())
            except duckdb.Error:
                continue  # an error is no answer: then Spark is asked
            if got != expected:
                differing[sql] = next(
                    (row, one, other) for row, one, other in zip(rows, got, expected, strict=True) if one != other
                )
    assert differing == {}
