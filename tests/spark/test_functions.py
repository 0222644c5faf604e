"""The functions that expressions may not call are held against all that Spark has."""

from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from spark_jobs.spec.expressions import parse

# What Spark makes of no argument and is the same each time: constants, empty collections, counts, hashes of nothing.
FIXED = {
    *("array", "arrays_zip", "count", "e", "grouping_id", "hash", "make_dt_interval", "make_interval"),
    *("make_ym_interval", "map", "map_concat", "mode", "named_struct", "pi", "printf", "struct", "try_parse_url"),
    *("when", "xxhash64"),
}


def functions_that_need_no_argument_or_are_not_deterministic(spark: SparkSession) -> Iterator[str]:
    jvm = spark._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    by_chance = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.expressions.Nondeterministic")
    no_arguments = jvm.PythonUtils.toSeq(jvm.java.util.ArrayList())
    names = registry.listFunction().iterator()
    while names.hasNext():
        name = names.next()
        kind = registry.lookupFunction(name).get().getClassName()
        if by_chance.isAssignableFrom(jvm.org.apache.spark.util.Utils.classForName(kind, True, False)):
            yield name.funcName()
            continue
        try:
            registry.lookupFunctionBuilder(name).get().apply(no_arguments)
        except (Py4JJavaError, PySparkException):
            continue
        yield name.funcName()


def is_taken(sql: str) -> bool:
    try:
        parse(sql)
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> set[str]:
    return set(functions_that_need_no_argument_or_are_not_deterministic(spark))


def test_every_function_of_spark_that_a_replay_would_not_repeat_is_refused(found: set[str]) -> None:
    assert {"rand", "shuffle", "now", "reflect", "spark_partition_id", "current_database"} <= found
    for call in ("{}()", "`{}`()"):
        assert {name for name in found if is_taken(call.format(name))} <= FIXED
    assert not is_taken("randstr(3)")
    assert not is_taken("shuffle(a)")


def test_functions_that_spark_calls_without_parentheses_are_refused(spark: SparkSession, found: set[str]) -> None:
    nobody, resolved = spark.range(0), set()
    for name in found:
        try:
            nobody.selectExpr(f"`{name}`")
        except AnalysisException:
            continue
        resolved.add(name)
    assert resolved == {"current_date", "current_time", "current_timestamp", "current_user", "session_user", "user"}
    assert {name for name in resolved if is_taken(f"`{name}`")} == {"user"}  # left to be a column
