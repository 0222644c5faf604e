"""Numbers of a batch: they count like literals, and leave the code that Spark generates as it is."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.spark.batch_values import batch_value

NUMBERS = [-(2**63), -1, 0, 1_700_000_000_000_000, 2**63 - 1]


def with_code(spark: SparkSession, *, generated: bool) -> SparkSession:
    """A session that generates code for its plans, or interprets them as the sessions of other tests do."""
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", str(generated).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if generated else "NO_CODEGEN")
    return session


@pytest.fixture(params=[True, False], ids=["generated", "interpreted"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    return with_code(spark, generated=request.param)


def compared(session: SparkSession, number: int) -> DataFrame:
    value = batch_value(session, number)
    rows = session.range(3, numPartitions=1).withColumn("n", value)
    return rows.select("n", (F.col("id") >= value).alias("reached"), F.col("n") % 7)


@pytest.mark.parametrize("number", NUMBERS)
def test_it_is_the_number_in_each_row(session: SparkSession, number: int) -> None:
    found = [tuple(row) for row in compared(session, number).collect()]
    # As Spark does: the sign is that of the number.
    rest = abs(number) % 7 * (-1 if number < 0 else 1)
    assert found == [(number, row >= number, rest) for row in range(3)]


def test_the_code_is_the_same_whatever_the_number(spark: SparkSession) -> None:
    session = with_code(spark, generated=True)

    def code(frame: DataFrame) -> list[str]:
        stages = frame._jdf.queryExecution().debug().codegenToSeq()
        return [stages.apply(number)._2() for number in range(stages.size())]

    assert code(compared(session, 1)) == code(compared(session, 2)) != []
    literals = (session.range(3).where(F.col("id") > F.lit(number)) for number in (1, 2))
    assert len({str(code(frame)) for frame in literals}) == 2
