"""What a session asks its JVM for."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.spark.java import java_class

_LOOK_UP = "r\n"
"""py4j's command for "what is of this name"."""


@pytest.fixture
def asked(spark: SparkSession) -> Iterator[list[str]]:
    """The commands that this session sends to its JVM meanwhile."""
    client, sent = spark._jvm._gateway_client, []
    send = client.send_command

    def listen(command: str, *args: object, **kwargs: object) -> object:
        sent.append(command)
        return send(command, *args, **kwargs)

    with patch.object(client, "send_command", listen):
        yield sent


def test_java_is_asked_once_what_a_name_means(spark: SparkSession, asked: list[str]) -> None:
    def use_names() -> None:
        spark.range(1).select(F.upper(F.lit("a")), F.coalesce("id", F.lit(1)))
        java_class(spark, "java.util.ArrayList")()
        spark._jvm.org.apache.spark.sql.types.Metadata.empty()

    use_names()
    asked.clear()
    use_names()
    assert asked
    assert [command for command in asked if command.startswith(_LOOK_UP)] == []


def test_the_value_of_a_static_field_is_asked_for_each_time(spark: SparkSession, asked: list[str]) -> None:
    for _ in range(2):
        assert java_class(spark, "java.lang.Integer").MAX_VALUE == 2**31 - 1
    assert sum("MAX_VALUE" in command for command in asked) == 2
