"""A plan that is made once gives of each batch what a plan of its own would have given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.spark.batch_values import BatchNumber
from spark_jobs.spark.java import java_class
from spark_jobs.spark.observed_rows import Figure, Figures, ObservedRows
from spark_jobs.spark.prepared import PreparedPlan
from tests.spark.test_batch_values import with_code

Event = tuple[str | None, int, list[int] | None]

SCHEMA = "k STRING, v BIGINT, w ARRAY<INT>"
BATCHES: Sequence[tuple[int, list[Event]]] = (
    (2, [("a", 1, [1, 2]), ("b", 2, [])]),
    (0, []),
    (-5, [("é", -4, None), ("a", -6, [7]), (None, 9, [-1]), ("a", 0, [0])]),
    (2**40, [(key, 2**40 + 1 + excess, [2**31 - 1]) for excess, key in enumerate("stuvwxyz")]),
)
"""Of each a number, and events that count where theirs is greater than it."""


@pytest.fixture(params=[True, False], ids=["generated", "interpreted"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    return with_code(spark, generated=request.param)


def handed_over(rows: DataFrame) -> DataFrame:
    """As Spark hands the rows of a batch over: it knows what was known of them before."""
    session = rows.sparkSession

    def companion(name: str) -> Any:
        return getattr(java_class(session, f"org.apache.spark.sql.{name}$"), "MODULE$")

    logical = companion("execution.LogicalRDD").fromDataset(rows._jdf.queryExecution().toRdd(), rows._jdf, False)
    return DataFrame(companion("classic.Dataset").ofRows(session._jsparkSession, logical), session)


def batch_of(session: SparkSession, events: Sequence[Event]) -> DataFrame:
    return handed_over(session.createDataFrame(events, SCHEMA).repartition(3))


class Counted:
    """Events above a number, each with its excess; and what was counted of all events."""

    def __init__(self, batch: DataFrame) -> None:
        self.number = BatchNumber(batch.sparkSession)
        self.plan = PreparedPlan(batch, self._compute)

    def _compute(self, rows: DataFrame) -> DataFrame:
        figures = Figures([Figure("events", "1"), Figure.count("above", "v > n")])
        self.observed = ObservedRows(rows.withColumn("n", self.number.column), figures)
        each = F.transform("w", lambda item: item + F.col("n")).alias("each")
        return self.observed.rows.where("v > n").select("k", (F.col("v") - F.col("n")).alias("excess"), each)

    def of(self, batch: DataFrame, number: int) -> tuple[list[Event], dict[str, int]]:
        self.number.set(number)
        self.observed.reset()
        rows = self.plan.fetch(batch).to_pylist()
        return [(row["k"], row["excess"], row["each"]) for row in rows], dict(self.observed.figures)


def test_each_batch_has_its_own_rows_numbers_and_counts(session: SparkSession) -> None:
    counted = Counted(batch_of(session, BATCHES[0][1]))
    for number, events in BATCHES:
        found, figures = counted.of(batch_of(session, events), number)
        above = [(k, v - number, w and [item + number for item in w]) for k, v, w in events if v > number]
        assert sorted(found, key=str) == sorted(above, key=str)
        assert figures == {"events": len(events), "above": len(above)}


def test_what_spark_knows_of_one_batch_is_not_taken_for_the_next(session: SparkSession) -> None:
    events = session.createDataFrame([("a", 1, None), ("b", -1, None)], SCHEMA)
    plan = PreparedPlan(handed_over(events.where("v > 0")), lambda rows: rows.where("v > 0").select("k"))
    assert plan.fetch(handed_over(events)).to_pylist() == [{"k": "a"}]


def test_all_columns_may_be_asked_for_as_they_are(session: SparkSession) -> None:
    batch = batch_of(session, [("a", 1, [1])])
    plan = PreparedPlan(batch, lambda rows: rows)
    assert plan.fetch(batch).to_pylist() == [{"k": "a", "v": 1, "w": [1]}]


def test_a_part_without_code_of_its_own_is_computed_too(session: SparkSession) -> None:
    batch = batch_of(session, BATCHES[2][1])
    with_a_positive = PreparedPlan(
        batch, lambda rows: rows.where(F.exists("w", lambda item: item > 0)).select((F.col("v") + 1).alias("next"), "k")
    )
    assert with_a_positive.fetch(batch).to_pylist() == [{"next": -5, "k": "a"}]


def test_a_batch_with_other_columns_is_refused(session: SparkSession) -> None:
    plan = PreparedPlan(batch_of(session, [("a", 1, None)]), lambda rows: rows.where("v > 0"))
    other = handed_over(session.createDataFrame([(1, "a", None)], "v BIGINT, k STRING, w ARRAY<INT>"))
    with pytest.raises(Exception, match="expected rows of STRUCT<k: STRING, v: BIGINT"):
        plan.fetch(other)
